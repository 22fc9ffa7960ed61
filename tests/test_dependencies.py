"""generate() needs torch, numpy, tokenizers, safetensors, jinja2 and tqdm, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BLOCKED = """
import sys
from importlib.abc import MetaPathFinder

GONE = {"transformers", "huggingface_hub", "pyarrow", "typer", "rich", "click", "llguidance",
        "pydantic", "fastapi", "gguf", "uvicorn", "PIL", "ray", "datasets"}

class Blocker(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in GONE:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from pathlib import Path
from quire import LLM, SamplingParams
from tests.tiny_llm import tiny_llm
with tiny_llm(Path(sys.argv[1])) as llm:
    chat = [{"role": "user", "content": "hi"}]
    llm.chat(chat, SamplingParams(temperature=0, max_tokens=2))
    out = llm.generate(["a", "b"], SamplingParams(temperature=0, max_tokens=3))
    print("made", sum(len(o.outputs[0].token_ids) for o in out))
"""


def test_generate_runs_with_the_core_packages_alone(tmp_path: Path, default_model: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "made 6" in done.stdout
