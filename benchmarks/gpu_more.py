"""Parts of gpu.py beside its tables: loading real files, the memory checker, the default model.

Each of them also runs without a GPU, to test the script itself.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import shapes
from benchmarks.gpu_check import test_command
from benchmarks.harness import Budget

if TYPE_CHECKING:
    from quire.spec import ModelSpec

SANITIZED = ("tests/backends/cuda_c", "tests/backends/triton")
# Within so many nats the two likeliest tokens may change places.
NEAR_TIE = 1e-3
PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a",
    "def fibonacci(n):\n",
    "Water boils at a temperature of",
    "The three primary colours are",
    "In the year 1969",
)


def load(budget: Budget, model: str = "qwen3-0.6b") -> None:
    """GB/s of reading a safetensors file from the page cache to the device."""
    import torch

    from quire.weights.load import load_weights
    from quire.weights.source import locate

    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        config = json.loads((shapes.MODELS / f"{model}.json").read_text())
        (Path(folder) / "config.json").write_text(json.dumps(config))
        files = locate(folder, weights=False)
        spec = files.spec(None)
        size = _write_weights(Path(folder) / "model.safetensors", spec)
        files = locate(folder)
        taken = []
        for _ in range(3):
            before = time.perf_counter()
            weights = load_weights(files, spec, dtype=torch.bfloat16, device=device)
            if device == "cuda":
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - before)
            del weights
    found = {"bytes": size, "seconds": taken, "GB/s": [size / s / 1e9 for s in taken]}
    print(f"{model}, {size / 1e9:.2f} GB of safetensors to {device}: {found['GB/s']}", flush=True)
    budget.write("load", found)


def _write_weights(path: Path, spec: ModelSpec) -> int:
    """Random weights under the names that checkpoints use; returns the size of the file."""
    import torch
    from safetensors.torch import save_file

    from quire.weights.names import weights_of

    stored = {
        part.hf: torch.randn(part.rows, *weight.shape[1:], dtype=torch.bfloat16)
        for weight in weights_of(spec)
        for part in weight.parts
    }
    save_file(stored, path)
    return path.stat().st_size


def sanitize(budget: Budget) -> None:
    """Tests of kernels at small shapes under compute-sanitizer: what has a test is seen. Every
    tensor is an allocation of its own, so that a read beside one is not a read of the next; nothing
    can be captured then."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        print("compute-sanitizer is not installed", flush=True)
        return
    command = [tool, "--tool", "memcheck", "--target-processes", "all"]
    command += [*test_command(SANITIZED), "-k", "not real_shapes and not captured"]
    try:
        run = subprocess.run(
            command,
            env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
            capture_output=True,
            text=True,
            timeout=budget.left,
            check=False,
        )
        said = f"{run.stdout[-8000:]}{run.stderr[-2000:]}"
    except subprocess.TimeoutExpired:
        said = f"not over after {budget.left:.0f} s"
    last = [line for line in said.splitlines() if "SUMMARY" in line or "passed" in line]
    print(f"memcheck: {' '.join(last) or said}", flush=True)
    budget.write("sanitize", {"memcheck": said})


def default(budget: Budget, path: str = "smollm2") -> None:
    """Greedy answers of the default model in float32: the GPU's beside the CPU's."""
    import torch

    devices = ("cpu", "cuda" if torch.cuda.is_available() else "cpu")
    theirs, ours = (_greedy(path, device) for device in devices)
    equal, ties = 0, []
    for wanted, got in zip(theirs, ours, strict=True):
        at = next(
            (i for i, (a, b) in enumerate(zip(wanted[0], got[0], strict=True)) if a != b), None
        )
        if at is None:
            equal += 1
        else:
            ties.append({"position": at, "gap": wanted[1][at]})
    wrong = [tie for tie in ties if tie["gap"] > NEAR_TIE]
    verdict = "ok" if not wrong else "WRONG"
    print(f"default model: {equal} of {len(ours)} answers equal, {ties}: {verdict}", flush=True)
    budget.write("default", {"equal": equal, "ties": ties, "verdict": verdict})


def _greedy(path: str, device: str) -> list[tuple[list[int], list[float]]]:
    """Of each prompt: the tokens, and how far the second likeliest was behind at each."""
    from quire import LLM, SamplingParams

    options: dict[str, Any] = {"device": device, "dtype": "float32", "max_model_len": 512}
    with LLM(path, **options) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True, logprobs=2)
        made = llm.generate(list(PROMPTS), params, use_tqdm=False)
    answers = []
    for output in made:
        best = output.outputs[0]
        gaps = []
        for entry in best.logprobs or ():
            first, second = sorted((one.logprob for one in entry.values()), reverse=True)[:2]
            gaps.append(first - second)
        answers.append((list(best.token_ids), gaps))
    return answers
