"""A pipeline written for Ray Data LLM, with its import line changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from quire.errors import InvalidOption, NotSupported, QuireWarning
from quire.ray import build_llm_processor, build_processor, vLLMEngineProcessorConfig
from tests.tiny_llm import CONFIG

ROOT = Path(__file__).resolve().parents[2]
PIPELINE = """
import json, sys
import ray
from quire.ray import build_processor, vLLMEngineProcessorConfig

model, out, journal = sys.argv[1:4]
ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
config = vLLMEngineProcessorConfig(
    model_source=model,
    engine_kwargs=dict(tokenizer="smollm2", load_format="dummy", dtype="float32",
                       kv_cache_memory_bytes=8 << 20, device="cpu"),
    concurrency=1, batch_size=4, journal=journal, id_column="id",
)
processor = build_processor(
    config,
    preprocess=lambda row: dict(
        messages=[{"role": "user", "content": f"Number {row['id']}"}],
        sampling_params=dict(temperature=0.0, max_tokens=-5 if row["id"] == 3 else 4,
                             detokenize=False, stop=["###"] if row["id"] % 2 else None),
    ),
    postprocess=lambda row: dict(id=row["id"], answer=row["generated_text"],
                                 tokens=row["num_generated_tokens"]),
)
rows = processor(ray.data.from_items([{"id": i} for i in range(10)])).take_all()
json.dump(rows, open(out, "w"), default=str)
"""


def test_a_pipeline_runs_after_its_import_line_is_changed(tmp_path: Path) -> None:
    pytest.importorskip("ray.data", reason="Ray is not installed: pip install 'quire-llm[ray]'")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    script, out, journal = tmp_path / "pipeline.py", tmp_path / "out.json", tmp_path / "journal"
    script.write_text(PIPELINE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(model), str(out), str(journal)],
        env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    rows = {row["id"]: row for row in json.loads(out.read_text())}
    assert sorted(rows) == list(range(10))
    assert "max_tokens" in rows[3]["__inference_error__"]
    assert all(rows[i]["tokens"] == 4 and rows[i]["answer"] for i in rows if i != 3)
    assert len(list(journal.glob("*.json"))) >= 3


def test_what_a_config_cannot_be() -> None:
    assert build_llm_processor is build_processor
    for bad in (
        {"batch_size": 0},
        {"concurrency": (3, 1)},
        {"journal": "x"},
        {"chat_template_stage": {"templates": "x"}},
        {"tokenize_stage": "yes"},
    ):
        with pytest.raises(InvalidOption):
            vLLMEngineProcessorConfig(model_source="smollm2", **bad)  # type: ignore[arg-type]
    with pytest.raises(NotSupported, match="task_type"):
        vLLMEngineProcessorConfig(model_source="smollm2", task_type="dance")
    with pytest.raises(TypeError):
        vLLMEngineProcessorConfig(model_source="smollm2", engine_kwargs={"max_modellen": 4})
    with pytest.warns(QuireWarning, match="tokenize_stage: batch_size, num_cpus has no effect"):
        vLLMEngineProcessorConfig(
            model_source="smollm2", tokenize_stage={"batch_size": 256, "num_cpus": 2}
        )
