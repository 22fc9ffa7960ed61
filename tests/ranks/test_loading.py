"""A rank reads from files what is cut from the whole model's weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from quire.backends.cpu.int8 import Int8Matrix, TorchInt8
from quire.errors import NotSupported
from quire.ranks.shares import RankShare, of_rank
from quire.spec import ModelSpec
from quire.weights.cuts import cut_of
from quire.weights.load import (
    cut_tensor,
    dummy_int8_weights,
    dummy_weights,
    load_int8_weights,
    load_weights,
    rank_weights,
)
from quire.weights.load_kept import load_kept_weights
from quire.weights.names import weights_of
from quire.weights.quantised.kept import Products
from quire.weights.source import ModelFiles, locate
from tests.parity.test_more_families import ALL
from tests.weights.quantised_files import CASES as QUANTISED
from tests.weights.quantised_files import write_quantised
from tests.weights.test_load import CASES
from tests.weights.tiny import tiny_model, write_gguf


def check(files: ModelFiles, spec: ModelSpec, size: int) -> None:
    """The shares of all ranks, in float32 and in bytes."""
    whole = load_weights(files, spec, dtype=torch.float32, device="cpu")
    if spec.tied_embeddings:
        whole["head.weight"] = whole["embed.weight"]
    for rank in range(size):
        share = RankShare(rank, size)
        found = load_weights(files, spec, dtype=torch.float32, device="cpu", share=share)
        in_bytes = load_int8_weights(files, spec, TorchInt8(), share)
        shapes = {w.name: w.shape for w in weights_of(of_rank(spec, share))}
        for weight in rank_weights(spec, share):
            expected = cut_tensor(whole[weight.name], cut_of(weight, spec, share))
            assert torch.equal(found[weight.name], expected), weight.name
            if not weight.name.startswith("head."):
                assert found[weight.name].shape == shapes[weight.name]
            matrix = in_bytes[weight.name]
            if not isinstance(matrix, Int8Matrix):
                assert torch.equal(matrix, expected)
                continue
            assert weight.is_matrix
            packed = Int8Matrix.of(expected, TorchInt8())
            for one, other in zip(matrix.tensors(), packed.tensors(), strict=True):
                assert torch.equal(one, other), weight.name


@pytest.mark.parametrize("case", ["llama, tied", "llama with biases", "qwen3", "phi3", "gemma3"])
def test_a_rank_reads_its_share_of_a_directory_and_of_a_gguf_file(
    case: str, tmp_path: Path
) -> None:
    family, changes = CASES[case]
    model = tiny_model(family, **changes)
    model.save_pretrained(tmp_path / "hf", max_shard_size="60KB")
    write_gguf(model, tmp_path / "model.gguf")
    write_gguf(model, tmp_path / "packed.gguf", quantised="Q8_0")
    for path in ("hf", "model.gguf", "packed.gguf"):
        files = locate(str(tmp_path / path))
        check(files, files.spec(), 3)


@pytest.mark.parametrize("case", ["awq", "gptq", "packed with zeros", "fp8 blocks", "nf4"])
def test_quantised_checkpoints_are_cut_while_they_are_read(case: str, tmp_path: Path) -> None:
    write_quantised(tiny_model("llama"), tmp_path, QUANTISED[case])
    files = locate(str(tmp_path))
    check(files, files.spec(), 2)


def test_scattered_groups_are_not_cut_where_they_are_kept(tmp_path: Path) -> None:
    write_quantised(tiny_model("llama"), tmp_path, QUANTISED["gptq desc_act"])
    files, device = locate(str(tmp_path)), torch.device("cpu")
    with pytest.raises(NotSupported, match="desc_act"):
        load_kept_weights(
            files,
            files.spec(),
            dtype=torch.float32,
            device=device,
            products=Products(fp8=False, experts=False),
            share=RankShare(0, 2),
        )


@pytest.mark.parametrize(
    "name",
    [
        *("olmoe", "qwen2 moe", "glm", "deepseek v3, groups, yarn", "qwen3_next", "qwen3_5"),
        *("granite hybrid, experts, every bias, rope, untied", "nemotron h", "lfm2 moe"),
        *("mamba2", "mamba2, every bias, one group, narrow, tied", "codegen", "dbrx"),
        "bitnet",
    ],
)
def test_experts_widths_and_states_are_cut_while_they_are_read(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(ALL[name]).save_pretrained(tmp_path)
    files = locate(str(tmp_path))
    check(files, files.spec(), 4)


def test_random_weights_of_ranks_are_cut_from_the_same_ones(tmp_path: Path) -> None:
    tiny_model("qwen2", tie_word_embeddings=True).save_pretrained(tmp_path)
    spec = locate(str(tmp_path)).spec()
    whole = dummy_weights(spec, dtype=torch.float32, device="cpu", seed=3)
    whole["head.weight"] = whole["embed.weight"]
    for share in (RankShare(0, 2), RankShare(1, 2)):
        found = dummy_weights(spec, dtype=torch.float32, device="cpu", seed=3, share=share)
        in_bytes = dummy_int8_weights(spec, TorchInt8(), seed=3, share=share)
        for weight in rank_weights(spec, share):
            expected = cut_tensor(whole[weight.name], cut_of(weight, spec, share))
            assert torch.equal(found[weight.name], expected)
            assert isinstance(in_bytes[weight.name], Int8Matrix) is weight.is_matrix
