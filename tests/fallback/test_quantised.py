"""Quantised checkpoints of classes that Transformers computes: made plain as their layouts say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from quire import LLM
from quire.errors import CorruptModel, InvalidOption, NotSupported, UnsupportedModel
from quire.weights.quantised.plain import plain_tensors
from quire.weights.source import locate
from tests.fallback.judging import OPTIONS, way_of, wrong
from tests.fallback.tiny import tiny_model
from tests.weights.quantised_files import CASES, FP8, meant_model, write_quantised

FORCED = {**OPTIONS, "model_impl": "transformers"}
WIDE = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32}


@pytest.mark.parametrize("name", CASES)
def test_tensors_are_what_the_layout_means(name: str, tmp_path: Path) -> None:
    state = write_quantised(tiny_model("ArceeForCausalLM", **WIDE), tmp_path, CASES[name])
    files = locate(str(tmp_path))
    assert files.quantisation is not None
    found = plain_tensors(files.stored_tensors(), files.quantisation, torch.float32)
    assert set(found) == set(state)
    for weight, tensor in state.items():
        assert torch.equal(found[weight], tensor), weight


@pytest.mark.parametrize(
    ("architecture", "name", "more"),
    [
        ("ArceeForCausalLM", "gptq desc_act", {"quantization": "gptq"}),
        ("Ernie4_5_MoeForCausalLM", "fp8 blocks", {}),
    ],
)
def test_a_quantised_class_answers_as_its_weights_say(
    architecture: str, name: str, more: dict[str, Any], tmp_path: Path
) -> None:
    """Also experts, each of which is stored apart and which the class keeps together."""
    model = tiny_model(architecture, **WIDE)
    state = write_quantised(model, tmp_path / "q", CASES[name])
    judge = meant_model(model, tmp_path / "m", state)
    with LLM(str(tmp_path / "q"), **FORCED, **more) as llm:
        assert way_of(llm) == "fallback"
        assert not wrong(llm, judge)


def test_what_cannot_be_made_plain_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_quantised(tiny_model("ArceeForCausalLM", **WIDE), tmp_path, CASES["fp8 by tensor"])
    with pytest.raises(InvalidOption, match="the checkpoint is fp8"):
        LLM(str(tmp_path), **FORCED, quantization="awq")
    with pytest.raises(NotSupported, match="quantization='int8'"):
        LLM(str(tmp_path), **FORCED, quantization="int8")
    tensors = load_file(path)
    some = next(name for name in tensors if name.endswith("q_proj.weight"))
    save_file({**tensors, "model.experts": tensors[some][None].clone()}, path)
    with pytest.raises(UnsupportedModel, match="'model.experts' is stored as F8_E4M3"):
        LLM(str(tmp_path), **FORCED)
    del tensors[f"{some}_scale"]
    save_file(tensors, path)
    with pytest.raises(CorruptModel, match="weight_scale is missing"):
        LLM(str(tmp_path), **FORCED)


def test_weights_that_lie_the_other_way_round_are_refused(tmp_path: Path) -> None:
    """A square one would be taken for its transposed self."""
    model = tiny_model("OpenAIGPTLMHeadModel", n_embd=64)
    write_quantised(model, tmp_path, replace(CASES["fp8 by tensor"], config=FP8))
    with pytest.raises(UnsupportedModel, match=r"keeps weights \[in, out\]"):
        LLM(str(tmp_path), **FORCED)
