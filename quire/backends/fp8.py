"""fp8 in plain torch: how numbers are rounded to it, and the layout of KV in it.

float8_e4m3 has 3 fraction bits and a range from 2^-9 to 448, so numbers are stored in lines with a
float32 scale each. A line is a token's key or value of one head, and its largest magnitude becomes
448.
"""

from __future__ import annotations

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
SCALE_BYTES = 4
LARGEST = 448.0
LEAST_SCALE = 1e-12
MOST_WIDENED = 1 << 16  # most tokens of an fp8 cache that a pass converts at a time


def round_lines(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., n] -> fp8 [..., n] and float32 scales [...]. A line with numbers that are not finite
    has fp8 zeros and the scale NaN."""
    wide = x.float()
    whole = wide.isfinite().all(-1)
    wide = torch.where(whole[..., None], wide, 0.0)
    scale = (wide.abs().amax(-1) / LARGEST).clamp(min=LEAST_SCALE)
    small = (wide / scale[..., None]).clamp(-LARGEST, LARGEST)
    return small.to(FP8), torch.where(whole, scale, torch.nan)


def block_shape(
    num_kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype
) -> tuple[int, ...]:
    """The shape of the keys (or values) of a block: numbers, or in fp8 bytes, where the scales of a
    head's slots follow their numbers (triton/fp8_kernels.py)."""
    if dtype == FP8:
        return num_kv_heads, block_size * (head_dim + SCALE_BYTES)
    return num_kv_heads, block_size, head_dim


def wide_keys(keys: Tensor, block_size: int) -> Tensor:
    """A layer's keys in fp8 [N, kv_heads, bytes] as float32 [N, kv_heads, S, D]."""
    numbers, scales = _parts(keys, block_size)
    return numbers * scales[..., None]


def wide_values(values: Tensor, block_size: int) -> Tensor:
    """The same for values, which are stored in pairs of slots."""
    numbers, scales = _parts(values, block_size)
    count, heads, slots, width = numbers.shape
    pairs = numbers.view(count, heads, slots // 2, width, 2)
    return pairs.transpose(3, 4).reshape(numbers.shape) * scales[..., None]


def _parts(cache: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    count, heads, size = cache.shape
    width = size // block_size - SCALE_BYTES
    numbers, scales = cache[..., : block_size * width], cache[..., block_size * width :]
    wide = numbers.float().view(count, heads, block_size, width)
    return wide, scales.contiguous().view(torch.float32).exp2()
