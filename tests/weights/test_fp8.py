"""Matrices rounded to fp8 while they are loaded."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quire.backends.fp8 import Fp8Matrix, round_lines
from quire.errors import NotEnoughMemory
from quire.spec import plain_decoder
from quire.weights import checks, load
from quire.weights.load import (
    dummy_fp8_weights,
    dummy_weights,
    is_rounded,
    load_fp8_weights,
    load_weights,
)
from quire.weights.names import weights_of
from quire.weights.source import locate
from tests.weights.tiny import tiny_model, write_gguf

SPEC = plain_decoder(
    "qwen3", 512, 64, 128, 2, 4, 2, 16, 128, 1e-6, 1e4, qk_norm=True, qkv_bias=True
)


@pytest.mark.parametrize("kind", ["hf", "gguf"])
def test_matrices_of_layers_are_rounded_row_by_row(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces of a few rows; with a GGUF, from rows that come rearranged."""
    model = tiny_model("llama", attention_bias=True)
    if kind == "hf":
        model.save_pretrained(tmp_path)
    else:
        write_gguf(model, tmp_path / "model.gguf")
    files = locate(str(tmp_path if kind == "hf" else tmp_path / "model.gguf"))
    spec = files.spec()
    monkeypatch.setattr(load, "_ROUNDED_READ", 3000)
    made = load_fp8_weights(files, spec, device="cpu")
    exact = load_weights(files, spec, dtype=torch.float32, device="cpu")
    assert made.keys() == exact.keys()
    for weight in weights_of(spec):
        mine, theirs = made[weight.name], exact[weight.name]
        assert isinstance(mine, Fp8Matrix) == is_rounded(weight)
        if isinstance(mine, Fp8Matrix):
            numbers, scales = round_lines(theirs)
            assert torch.equal(mine.numbers.view(torch.uint8), numbers.view(torch.uint8))
            assert torch.equal(mine.scales[:, 0], scales)
        else:
            assert isinstance(mine, Tensor)
            assert torch.equal(mine, theirs.bfloat16())
    kept = {weight.name for weight in weights_of(spec) if not is_rounded(weight)}
    assert {"embed.weight", "head.weight", "norm.weight", "layers.0.attn.qkv.bias"} <= kept
    assert not any(name.endswith(("qkv.weight", "down.weight")) for name in kept)


def test_dummy_weights_are_those_of_bfloat16_rounded() -> None:
    made = dummy_fp8_weights(SPEC, device="cpu", seed=3)
    plain = dummy_weights(SPEC, dtype=torch.bfloat16, device="cpu", seed=3)
    down = made["layers.1.mlp.down.weight"]
    assert isinstance(down, Fp8Matrix)
    wide = down.numbers.float() * down.scales
    torch.testing.assert_close(
        wide, plain["layers.1.mlp.down.weight"].float(), rtol=0.07, atol=1e-4
    )
    table = made["embed.weight"]
    assert isinstance(table, Tensor)
    assert torch.equal(table, plain["embed.weight"])


def test_a_size_that_torch_does_not_multiply_stays_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "quire")
    narrower = plain_decoder("qwen3", 512, 64, 120, 2, 4, 2, 16, 128, 1e-6, 1e4, qkv_bias=True)
    made = dummy_fp8_weights(narrower, device="cpu")
    assert isinstance(made["layers.0.mlp.gate_up.weight"], Fp8Matrix)
    assert isinstance(made["layers.0.mlp.down.weight"], Tensor)
    assert "2 matrices stay in bfloat16" in caplog.text


def test_memory_is_counted_by_what_each_weight_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = sum(
        torch.Size(w.shape).numel() * (1 if is_rounded(w) else 2) for w in weights_of(SPEC)
    )
    monkeypatch.setattr(checks, "_available", lambda device: needed)
    dummy_fp8_weights(SPEC, device="cpu")
    monkeypatch.setattr(checks, "_available", lambda device: needed - 1)
    with pytest.raises(NotEnoughMemory, match="GB in float8_e4m3fn"):
        dummy_fp8_weights(SPEC, device="cpu")
