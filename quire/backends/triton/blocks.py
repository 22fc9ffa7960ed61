"""Copies whole blocks of the KV cache, in all layers at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton.language as tl

from quire.backends.triton.jit import kernel

if TYPE_CHECKING:
    from torch import Tensor

AT_ONCE = 2048


def copy_blocks(cache: Tensor, pairs: Tensor) -> None:
    """cache [layers, 2 or 1, N, kv_heads, S, D]: copy block pairs[i, 0] to block pairs[i, 1].

    pairs int32 [n, 2] on the device; a pair with -1 copies nothing. A block that one pair writes
    must not be read or written by another, as all run at once.
    """
    num_parts, num_blocks, size = (
        cache.shape[0] * cache.shape[1],
        cache.shape[2],
        cache[0, 0, 0].numel(),
    )
    _copy_blocks[(pairs.shape[0], num_parts)](
        cache, pairs, num_blocks, size, BLOCK=AT_ONCE, num_warps=4
    )


@kernel("num_blocks")
def _copy_blocks(
    cache: tl.tensor, pairs: tl.tensor, num_blocks: tl.tensor, size: tl.tensor, BLOCK: tl.constexpr
) -> None:
    pair, part = tl.program_id(0), tl.program_id(1).to(tl.int64)
    old = tl.load(pairs + pair * 2).to(tl.int64)
    new = tl.load(pairs + pair * 2 + 1).to(tl.int64)
    if (old >= 0) & (new >= 0):
        source = cache + (part * num_blocks + old) * size
        target = cache + (part * num_blocks + new) * size
        for base in range(0, size, BLOCK):
            at = base + tl.arange(0, BLOCK)
            tl.store(target + at, tl.load(source + at, mask=at < size), mask=at < size)
