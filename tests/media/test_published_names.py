"""PaddleOCR-VL as it is published: the fields of its text at the top of config.json, and tensors of
its tower that nothing reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.media.families import SEEING
from tests.media.test_families import GREEDY, chosen, prompts_of
from tests.media.tiny import TinyModel, save_tiny

UNREAD = ("embeddings.packing_position_embedding.weight", "head.probe")


def publish(path: Path) -> None:
    stored = load_file(path / "model.safetensors")
    assert {"mlp_AR.linear_1.weight", "model.norm.weight"} < stored.keys()
    stored |= {f"visual.vision_model.{name}": torch.ones(3, 4) for name in UNREAD}
    save_file(stored, path / "model.safetensors", {"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    text = {k: v for k, v in config.pop("text_config").items() if k != "model_type"}
    (path / "config.json").write_text(json.dumps({**text, **config}))


def answers(model: TinyModel, prompts: list[Any]) -> list[tuple[Any, list[float]]]:
    with model.llm() as llm:
        outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    return [(one.outputs[0].token_ids, chosen(one.outputs[0])) for one in outputs]


def test_files_as_published_answer_as_those_that_transformers_saves(tmp_path: Path) -> None:
    family = SEEING["paddleocr_vl"]
    model = save_tiny(tmp_path, family.make(), family.added, family.processor)
    prompts = prompts_of(family)[:4]
    wanted = answers(model, prompts)
    publish(tmp_path)
    assert answers(model, prompts) == wanted
