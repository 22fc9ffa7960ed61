"""Stored blocks -> codes and scales -> numbers, in torch, on the device of the bytes.

BLOCKS describes how the blocks of each format are taken apart. Products and sums are in the order
of llama.cpp's definition, so numbers are bitwise those of the `gguf` package. Knows nothing of
files or names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.weights import grids
from quire.weights.formats import READABLE

PLAIN = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


# Codes [blocks, weights], scales float32 [blocks, groups], and minima of the same shape.
Parts = tuple[Tensor, Tensor, Tensor | None]


@dataclass(frozen=True, slots=True)
class Blocks:
    """A format: how `raw [blocks, bytes]` is taken apart. A weight is (code - zero) * scale +
    minimum; with a table, the table's entry for the code takes the place of code - zero."""

    part: Callable[[Tensor], Parts]
    zero: int = 0
    table: tuple[int, ...] | None = None


def dequantise_into(out: Tensor, raw: Tensor, format: str, scale: float = 1.0) -> None:
    """Fill `out` (contiguous, any float dtype) with the weights in `raw` (flat uint8), times a
    scale, rounded once."""
    if format in PLAIN:
        numbers = raw.view(PLAIN[format])
        out.view(-1).copy_(numbers if scale == 1.0 else numbers.float() * scale)
        return
    storage = READABLE[format]
    blocks = raw.view(-1, storage.block_bytes)
    is_exact, shape = out.dtype == torch.float32, (len(blocks), storage.block)
    exact = out.view(shape) if is_exact else torch.empty(shape, device=raw.device)
    if format in BLOCKS:
        _fill(exact, BLOCKS[format], blocks)
    else:
        grids.KERNELS[format](exact, blocks)
    if scale != 1.0:
        exact.mul_(scale)
    if not is_exact:
        out.view(-1).copy_(exact.view(-1))


def _fill(out: Tensor, format: Blocks, raw: Tensor) -> None:
    """Fill `out` [blocks, weights]. Scales are for equal runs of weights: 16 scales over 256
    weights are for 16 each."""
    codes, scales, minima = format.part(raw)
    if format.table is None:
        out.copy_(codes)
    else:
        table = torch.tensor(format.table, dtype=torch.float32, device=codes.device)
        out.copy_(table[codes.int()])
    if format.zero:
        out.sub_(format.zero)
    runs = out.view(*scales.shape, -1).mul_(scales.unsqueeze(-1))
    if minima is not None:
        runs.add_(minima.unsqueeze(-1))


def _half(raw: Tensor, at: int) -> Tensor:
    """The float16 at byte `at` of each block, as float32 [blocks, 1]."""
    return raw[:, at : at + 2].view(torch.float16).float()


def _nibbles(raw: Tensor, group: int) -> Tensor:
    """Low halves, then high halves, of every `group` bytes: 0xa1 0xb2, group 2 -> 1 2 a b."""
    packed = raw.reshape(raw.shape[0], -1, 1, group)
    return torch.cat([packed & 15, packed >> 4], 2).view(raw.shape[0], -1)


def _crumbs(raw: Tensor) -> Tensor:
    """Four 2-bit values of each byte: the lowest of 32 bytes, then their next, and so on."""
    packed = raw.reshape(raw.shape[0], -1, 1, 32)
    return torch.cat([(packed >> shift) & 3 for shift in (0, 2, 4, 6)], 2).view(raw.shape[0], -1)


def _high_bits(raw: Tensor, at: int) -> Tensor:
    """The 32 bits at byte `at`, lowest first, as uint8 [blocks, 32] holding 0 or 16."""
    places = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7], dtype=torch.uint8, device=raw.device)
    bits = (raw[:, at : at + 4, None] >> places) & 1
    return (bits << 4).view(raw.shape[0], 32)


def _planes(mask: Tensor) -> Tensor:
    """Bit j of each of 32 bytes, plane by plane: [blocks, 256] of 0 or 1."""
    return torch.cat([(mask >> j) & 1 for j in range(8)], 1)


def _q4_0(raw: Tensor) -> Parts:
    return _nibbles(raw[:, 2:], 16), _half(raw, 0), None


def _q4_1(raw: Tensor) -> Parts:
    return _nibbles(raw[:, 4:], 16), _half(raw, 0), _half(raw, 2)


def _q5_0(raw: Tensor) -> Parts:
    return _nibbles(raw[:, 6:], 16) | _high_bits(raw, 2), _half(raw, 0), None


def _q5_1(raw: Tensor) -> Parts:
    return _nibbles(raw[:, 8:], 16) | _high_bits(raw, 4), _half(raw, 0), _half(raw, 2)


def _q8_0(raw: Tensor) -> Parts:
    return raw[:, 2:].view(torch.int8), _half(raw, 0), None


def _q2_k(raw: Tensor) -> Parts:
    packed = raw[:, :16]
    scales, minima = _half(raw, 80) * (packed & 15), -_half(raw, 82) * (packed >> 4)
    return _crumbs(raw[:, 16:80]), scales, minima


def _q3_k(raw: Tensor) -> Parts:
    low = torch.cat([raw[:, 96:104] & 15, raw[:, 96:104] >> 4], 1)
    high = torch.cat([(raw[:, 104:108] >> shift) & 3 for shift in (0, 2, 4, 6)], 1)
    scales = (low | (high << 4)).to(torch.int8) - 32
    # A mask bit of 1 means that 4 is *not* subtracted.
    codes = _crumbs(raw[:, 32:96]) | (_planes(raw[:, :32]) << 2)
    return codes, _half(raw, 108) * scales, None


def _six_bit(raw: Tensor) -> tuple[Tensor, Tensor]:
    """The eight scales and eight minima of a Q4_K or Q5_K block, of 6 bits each in 12 bytes."""
    first, second, rest = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    scales = torch.cat([first & 63, (rest & 15) | ((first >> 6) << 4)], 1)
    minima = torch.cat([second & 63, (rest >> 4) | ((second >> 6) << 4)], 1)
    return _half(raw, 0) * scales, -_half(raw, 2) * minima


def _q4_k(raw: Tensor) -> Parts:
    return _nibbles(raw[:, 16:], 32), *_six_bit(raw)


def _q5_k(raw: Tensor) -> Parts:
    return _nibbles(raw[:, 48:], 32) | (_planes(raw[:, 16:48]) << 4), *_six_bit(raw)


def _q6_k(raw: Tensor) -> Parts:
    codes = _nibbles(raw[:, :128], 64) | (_crumbs(raw[:, 128:192]) << 4)
    return codes, _half(raw, 208) * raw[:, 192:208].view(torch.int8), None


# The numbers of IQ4's codes: denser around zero, where most weights are.
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# fp4 numbers (1 bit of fraction, 2 of exponent), doubled to be whole.
FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _iq4_xs(raw: Tensor) -> Parts:
    # Scales of 6 bits: 2 bits of each in two bytes, then 4 bits of each in four.
    high = torch.stack([(raw[:, 2:4] >> shift) & 3 for shift in (0, 2, 4, 6)], 2)
    low = torch.stack([raw[:, 4:8] & 15, raw[:, 4:8] >> 4], 2)
    scales = (low.flatten(1) | (high.flatten(1) << 4)).to(torch.int8) - 32
    return _nibbles(raw[:, 8:], 16), _half(raw, 0) * scales, None


def _mxfp4(raw: Tensor) -> Parts:
    power = raw[:, :1].int()
    # Half of 2^(power - 127), as the bits of a float32; the two smallest are subnormal.
    bits = torch.where(power < 2, 0x00200000 << power, (power - 1) << 23)
    return _nibbles(raw[:, 1:], 16), bits.view(torch.float32), None


def _nvfp4(raw: Tensor) -> Parts:
    # Scales, each for 16 weights, are fp8 numbers without sign; they are halved, as the table is
    # doubled to be whole.
    scales = (raw[:, :4] & 127).view(torch.float8_e4m3fn).float() * 0.5
    return _nibbles(raw[:, 4:], 8), scales.nan_to_num(0.0), None


def _trits(raw: Tensor, count: int) -> Tensor:
    """Values 0, 1, 2: each byte has `count` of them as digits of a fraction in base 3. First come
    the first digits of all bytes, then the second digits, and so on."""
    digits = [((raw * 3**i).to(torch.int16) * 3) >> 8 for i in range(count)]
    return torch.cat(digits, 1)


def _tq1_0(raw: Tensor) -> Parts:
    parts = (_trits(raw[:, :32], 5), _trits(raw[:, 32:48], 5), _trits(raw[:, 48:52], 4))
    return torch.cat(parts, 1), _half(raw, 52), None


def _tq2_0(raw: Tensor) -> Parts:
    return _crumbs(raw[:, :64]), _half(raw, 64), None


def _q1_0(raw: Tensor) -> Parts:
    places = torch.arange(8, dtype=torch.uint8, device=raw.device)
    return ((raw[:, 2:, None] >> places) & 1).flatten(1), _half(raw, 0), None


BLOCKS = {
    "Q4_0": Blocks(_q4_0, zero=8),
    "Q4_1": Blocks(_q4_1),
    "Q5_0": Blocks(_q5_0, zero=16),
    "Q5_1": Blocks(_q5_1),
    "Q8_0": Blocks(_q8_0),
    "Q2_K": Blocks(_q2_k),
    "Q3_K": Blocks(_q3_k, zero=4),
    "Q4_K": Blocks(_q4_k),
    "Q5_K": Blocks(_q5_k),
    "Q6_K": Blocks(_q6_k, zero=32),
    "IQ4_NL": Blocks(_q4_0, table=IQ4),
    "IQ4_XS": Blocks(_iq4_xs, table=IQ4),
    "MXFP4": Blocks(_mxfp4, table=FP4),
    "TQ1_0": Blocks(_tq1_0, zero=1),
    "TQ2_0": Blocks(_tq2_0, zero=1),
    "NVFP4": Blocks(_nvfp4, table=FP4),
    "Q1_0": Blocks(_q1_0, table=(-1, 1)),
}
