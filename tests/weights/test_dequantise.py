"""Dequantisation is bitwise what the `gguf` package computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quire.weights.dequantise import dequantise_into
from quire.weights.formats import GGUF_TYPES, READABLE

gguf = pytest.importorskip("gguf")

# Where each format keeps its float16 scales, to be filled with finite numbers.
HALVES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
    "MXFP4": [],
    "TQ1_0": [52],
    "TQ2_0": [64],
    "IQ1_S": [0],
    "IQ1_M": [],
    "IQ2_XXS": [0],
    "IQ2_XS": [0],
    "IQ2_S": [0],
    "IQ3_XXS": [0],
    "IQ3_S": [0],
    "NVFP4": [],
    "Q1_0": [0],
}


def random_blocks(name: str, rows: int, blocks: int) -> np.ndarray:
    rng = np.random.default_rng(sum(name.encode()))
    storage = READABLE[name]
    raw = rng.integers(0, 256, (rows * blocks, storage.block_bytes), dtype=np.uint8)
    for at in HALVES.get(name, []):
        scales = rng.normal(0, 1, (rows * blocks, 1)).astype(np.float16)
        raw[:, at : at + 2] = scales.view(np.uint8)
    if name == "MXFP4":  # the largest powers overflow
        raw[:, 0] %= 250
    if name == "NVFP4":  # scales have no sign
        raw[:, :4] %= 128
    if name == "IQ1_M":  # its scale is in four parts; not one that is infinite
        raw[:, 55] &= 0xBF
    if name in ("F32", "F16", "BF16"):
        values = rng.normal(0, 1, (rows * blocks, 1)).astype(np.float32)
        raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name]).view(np.uint8)
    return np.ascontiguousarray(raw).reshape(rows, -1)


def _meant(raw: np.ndarray, name: str) -> np.ndarray:
    """By the package, but for the one that it does not read: a bit is the sign of the scale."""
    if name != "Q1_0":
        made: np.ndarray = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
        return made
    blocks = raw.reshape(-1, 18)
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    return np.where(bits, scales, -scales).reshape(len(raw), -1)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", *HALVES])
def test_every_format_is_bitwise_what_gguf_computes(name: str) -> None:
    raw = random_blocks(name, rows=24, blocks=32)
    expected = _meant(raw, name)
    out = torch.empty(expected.shape, dtype=torch.float32)
    dequantise_into(out, torch.from_numpy(raw.copy()).view(-1), name)
    np.testing.assert_array_equal(out.numpy().view(np.uint32), expected.view(np.uint32))


def test_every_type_of_gguf_has_its_name() -> None:
    theirs = {kind.value: kind.name for kind in gguf.GGMLQuantizationType}
    assert theirs.items() <= GGUF_TYPES.items()
    sizes = {name: (f.block, f.block_bytes) for name, f in READABLE.items()}
    assert sizes == {
        name: gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]] for name in READABLE
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["F32", "BF16", "Q4_1", "Q6_K"])
def test_a_smaller_dtype_is_the_exact_value_rounded_once(name: str, dtype: torch.dtype) -> None:
    raw = torch.from_numpy(random_blocks(name, rows=8, blocks=16)).view(-1)
    storage = READABLE[name]
    count = raw.numel() // storage.block_bytes * storage.block
    exact, rounded = torch.empty(count), torch.empty(count, dtype=dtype)
    dequantise_into(exact, raw, name)
    dequantise_into(rounded, raw, name)
    assert torch.equal(rounded, exact.to(dtype))


def test_every_readable_format_is_covered() -> None:
    assert set(HALVES) | {"F32", "F16", "BF16", "F64"} == set(READABLE)
