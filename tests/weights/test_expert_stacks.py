"""Experts of Qwen3-VL are published as [experts, in, out], and saved by Transformers as [experts,
out, in]: the shape of a tensor says which it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen3VLMoeForConditionalGeneration

from quire.errors import CorruptModel
from quire.ranks.shares import ALONE, RankShare
from quire.weights.hf_config import read_config, spec_from_hf
from quire.weights.load import load_weights
from quire.weights.source import locate
from tests.media.families import SEEING
from tests.media.tiny import save_tiny

FAMILY = SEEING["qwen3_vl_moe"]
STACKS = ("experts.gate_up_proj", "experts.down_proj")


def weights(path: Path, share: RankShare = ALONE) -> Mapping[str, Tensor]:
    spec = spec_from_hf(read_config(path))
    return load_weights(locate(path), spec, dtype=torch.float32, device="cpu", share=share)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved")
    save_tiny(path, FAMILY.make(), FAMILY.added, FAMILY.processor)
    return path


def turn_stacks(path: Path) -> None:
    """Write the files as they are published."""
    stored = load_file(path / "model.safetensors")
    turned = {
        name: weight.transpose(1, 2).contiguous() if name.endswith(STACKS) else weight
        for name, weight in stored.items()
    }
    assert sum(turned[name].shape != stored[name].shape for name in stored) == 4
    save_file(turned, path / "model.safetensors", {"format": "pt"})


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("published")
    save_tiny(path, FAMILY.make(), FAMILY.added, FAMILY.processor)
    turn_stacks(path)
    return path


@pytest.mark.parametrize("share", [ALONE, RankShare(1, 2)], ids=["whole", "a rank's share"])
def test_experts_as_published_are_those_that_transformers_saves(
    saved: Path, published: Path, share: RankShare
) -> None:
    wanted, found = weights(saved, share), weights(published, share)
    assert wanted.keys() == found.keys()
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)
    made = Qwen3VLMoeForConditionalGeneration.from_pretrained(published, dtype=torch.float32)
    theirs = made.model.language_model.layers[1].mlp.experts
    if share is ALONE:
        assert torch.equal(found["layers.1.mlp.experts.3.gate_up.weight"], theirs.gate_up_proj[3])
        assert torch.equal(found["layers.1.mlp.experts.3.down.weight"], theirs.down_proj[3])


def test_stacks_of_another_shape_are_refused(saved: Path, tmp_path: Path) -> None:
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    stored = load_file(tmp_path / "model.safetensors")
    name = next(name for name in stored if name.endswith(STACKS[1]))
    stored[name] = stored[name][..., 1:].contiguous()
    save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CorruptModel, match=r"experts.down_proj' has the shape \(32, 23\).*32, 24"):
        weights(tmp_path)
