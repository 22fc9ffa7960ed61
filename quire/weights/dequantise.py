"""Stored blocks -> numbers, in torch, on whatever device the bytes are.

Every function fills `out [blocks, weights per block]` (float32) from `raw [blocks, bytes per
block]` (uint8), with the products and sums in the order that llama.cpp's definition has them, so
results are bitwise those of the `gguf` package. Knows nothing of files or names.
"""

from __future__ import annotations

from collections.abc import Callable

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


def dequantise_into(out: Tensor, raw: Tensor, format: str, scale: float = 1.0) -> None:
    """Fill `out` (contiguous, any float dtype) with the weights in `raw` (flat uint8), times a
    scale; all that is rounded once."""
    if format in PLAIN:
        numbers = raw.view(PLAIN[format])
        out.view(-1).copy_(numbers if scale == 1.0 else numbers.float() * scale)
        return
    storage = READABLE[format]
    blocks = raw.view(-1, storage.block_bytes)
    is_exact, shape = out.dtype == torch.float32, (len(blocks), storage.block)
    exact = out.view(shape) if is_exact else torch.empty(shape, device=raw.device)
    _KERNELS[format](exact, blocks)
    if scale != 1.0:
        exact.mul_(scale)
    if not is_exact:
        out.view(-1).copy_(exact.view(-1))


def half(raw: Tensor, at: int) -> Tensor:
    """The float16 at byte `at` of each block, as float32 [blocks, 1]."""
    return raw[:, at : at + 2].view(torch.float16).float()


def nibbles(raw: Tensor, group: int) -> Tensor:
    """Low halves, then high halves, of every `group` bytes: 0xa1 0xb2, group 2 -> 1 2 a b."""
    packed = raw.reshape(raw.shape[0], -1, 1, group)
    return torch.cat([packed & 15, packed >> 4], 2).view(raw.shape[0], -1)


def crumbs(raw: Tensor) -> Tensor:
    """Four 2-bit values of each byte: the lowest of 32 bytes, then their next, and so on."""
    packed = raw.reshape(raw.shape[0], -1, 1, 32)
    return torch.cat([(packed >> shift) & 3 for shift in (0, 2, 4, 6)], 2).view(raw.shape[0], -1)


def high_bits(raw: Tensor, at: int) -> Tensor:
    """The 32 bits at byte `at`, lowest first, as uint8 [blocks, 32] holding 0 or 16."""
    places = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7], dtype=torch.uint8, device=raw.device)
    bits = (raw[:, at : at + 4, None] >> places) & 1
    return (bits << 4).view(raw.shape[0], 32)


def planes(mask: Tensor, count: int) -> Tensor:
    """Bit j of each of 32 bytes, for j < count: plane by plane, [blocks, count * 32] of 0 or 1."""
    return torch.cat([(mask >> j) & 1 for j in range(count)], 1)


def _q4_0(out: Tensor, raw: Tensor) -> None:
    out.copy_(nibbles(raw[:, 2:], 16)).sub_(8).mul_(half(raw, 0))


def _q4_1(out: Tensor, raw: Tensor) -> None:
    out.copy_(nibbles(raw[:, 4:], 16)).mul_(half(raw, 0)).add_(half(raw, 2))


def _q5_0(out: Tensor, raw: Tensor) -> None:
    values = nibbles(raw[:, 6:], 16) | high_bits(raw, 2)
    out.copy_(values).sub_(16).mul_(half(raw, 0))


def _q5_1(out: Tensor, raw: Tensor) -> None:
    values = nibbles(raw[:, 8:], 16) | high_bits(raw, 4)
    out.copy_(values).mul_(half(raw, 0)).add_(half(raw, 2))


def _q8_0(out: Tensor, raw: Tensor) -> None:
    out.copy_(raw[:, 2:].view(torch.int8)).mul_(half(raw, 0))


def _scale(out: Tensor, scales: Tensor, minima: Tensor | None = None) -> None:
    """out = out * scale - minimum, by sub-blocks: 16 scales over 256 weights cover 16 each."""
    parts = out.view(*scales.shape, -1)
    parts.mul_(scales.unsqueeze(-1))
    if minima is not None:
        parts.sub_(minima.unsqueeze(-1))


def _q2_k(out: Tensor, raw: Tensor) -> None:
    packed = raw[:, :16]
    out.copy_(crumbs(raw[:, 16:80]))
    _scale(out, half(raw, 80) * (packed & 15), half(raw, 82) * (packed >> 4))


def _q3_k(out: Tensor, raw: Tensor) -> None:
    low = torch.cat([raw[:, 96:104] & 15, raw[:, 96:104] >> 4], 1)
    high = torch.cat([(raw[:, 104:108] >> shift) & 3 for shift in (0, 2, 4, 6)], 1)
    scales = (low | (high << 4)).to(torch.int8) - 32
    # The mask's bit says that 4 is *not* taken away.
    values = crumbs(raw[:, 32:96]) | (planes(raw[:, :32], 8) << 2)
    out.copy_(values).sub_(4)
    _scale(out, half(raw, 108) * scales)


def six_bit(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Eight 6-bit scales and eight 6-bit minima from the 12 bytes of a Q4_K or Q5_K block."""
    first, second, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = torch.cat([first & 63, (rest & 15) | ((first >> 6) << 4)], 1)
    minima = torch.cat([second & 63, (rest >> 4) | ((second >> 6) << 4)], 1)
    return scales, minima


def _q4_k(out: Tensor, raw: Tensor) -> None:
    scales, minima = six_bit(raw[:, 4:16])
    out.copy_(nibbles(raw[:, 16:], 32))
    _scale(out, half(raw, 0) * scales, half(raw, 2) * minima)


def _q5_k(out: Tensor, raw: Tensor) -> None:
    scales, minima = six_bit(raw[:, 4:16])
    out.copy_(nibbles(raw[:, 48:], 32) | (planes(raw[:, 16:48], 8) << 4))
    _scale(out, half(raw, 0) * scales, half(raw, 2) * minima)


def _q6_k(out: Tensor, raw: Tensor) -> None:
    low = nibbles(raw[:, :128], 64)
    high = crumbs(raw[:, 128:192])
    out.copy_(low | (high << 4)).sub_(32)
    _scale(out, half(raw, 208) * raw[:, 192:208].view(torch.int8))


def _looked_up(codes: Tensor, values: tuple[int, ...]) -> Tensor:
    """The value of each 4-bit code, as float32."""
    table = torch.tensor(values, dtype=torch.float32, device=codes.device)
    return table[codes.int()]


# What the codes of IQ4 stand for: closer together around zero, where most weights are.
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# fp4 numbers (1 bit of fraction, 2 of exponent), doubled to be whole.
FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _iq4_nl(out: Tensor, raw: Tensor) -> None:
    out.copy_(_looked_up(nibbles(raw[:, 2:], 16), IQ4)).mul_(half(raw, 0))


def _iq4_xs(out: Tensor, raw: Tensor) -> None:
    # Scales of 6 bits: 2 bits of each in two bytes, then 4 bits of each in four.
    high = torch.stack([(raw[:, 2:4] >> shift) & 3 for shift in (0, 2, 4, 6)], 2)
    low = torch.stack([raw[:, 4:8] & 15, raw[:, 4:8] >> 4], 2)
    scales = (low.flatten(1) | (high.flatten(1) << 4)).to(torch.int8) - 32
    out.copy_(_looked_up(nibbles(raw[:, 8:], 16), IQ4))
    _scale(out, half(raw, 0) * scales)


def _mxfp4(out: Tensor, raw: Tensor) -> None:
    power = raw[:, :1].int()
    # Half of 2^(power - 127), as the bits of a float32; the two smallest have no leading one.
    bits = torch.where(power < 2, 0x00200000 << power, (power - 1) << 23)
    out.copy_(_looked_up(nibbles(raw[:, 1:], 16), FP4)).mul_(bits.view(torch.float32))


def _nvfp4(out: Tensor, raw: Tensor) -> None:
    # Scales of 16 weights each are fp8 numbers without a sign; the table is doubled to be whole.
    scales = (raw[:, :4] & 127).view(torch.float8_e4m3fn).float() * 0.5
    values = _looked_up(nibbles(raw[:, 4:], 8), FP4)
    _scale(out.copy_(values), scales.nan_to_num(0.0))


def _trits(raw: Tensor, count: int) -> Tensor:
    """Values 0, 1, 2: `count` of them in each byte as digits of a fraction to base 3, the first
    of all bytes, then the second of all, and so on."""
    digits = [((raw * 3**i).to(torch.int16) * 3) >> 8 for i in range(count)]
    return torch.cat(digits, 1)


def _tq1_0(out: Tensor, raw: Tensor) -> None:
    parts = (_trits(raw[:, :32], 5), _trits(raw[:, 32:48], 5), _trits(raw[:, 48:52], 4))
    out.copy_(torch.cat(parts, 1)).sub_(1).mul_(half(raw, 52))


def _tq2_0(out: Tensor, raw: Tensor) -> None:
    out.copy_(crumbs(raw[:, :64])).sub_(1).mul_(half(raw, 64))


def _q1_0(out: Tensor, raw: Tensor) -> None:
    places = torch.arange(8, dtype=torch.uint8, device=raw.device)
    bits = (raw[:, 2:, None] >> places) & 1
    out.copy_(bits.flatten(1)).mul_(2).sub_(1).mul_(half(raw, 0))


_KERNELS: dict[str, Callable[[Tensor, Tensor], None]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
    "NVFP4": _nvfp4,
    "Q1_0": _q1_0,
    **grids.KERNELS,
}
