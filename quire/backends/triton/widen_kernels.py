"""Device code of widen.py."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends.triton.fp8_kernels import fetch_pairs, fetch_scales
from quire.backends.triton.jit import kernel, part
from quire.backends.triton.softmax import fetch_keys


@part
def _scales(
    cache: tl.tensor,
    table: tl.tensor,
    index: tl.tensor,
    end: tl.tensor,
    head: tl.tensor,
    KV_HEADS: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> Any:
    """The scales of the fp8 numbers of tokens `index`; 0 from `end` on."""
    real = index < end
    block = tl.load(table + index // SLOTS, mask=real, other=0)
    found = fetch_scales(cache, block, index, head, real, KV_HEADS, SLOTS, WIDTH)
    return tl.where(real, tl.exp2(found), 0.0)


@kernel("width", "table_stride")
def widen_blocks(
    keys: tl.tensor,
    values: tl.tensor,
    tables: tl.tensor,
    context_lens: tl.tensor,
    out_keys: tl.tensor,
    out_values: tl.tensor,
    width: tl.tensor,
    table_stride: tl.tensor,
    KV_HEADS: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    PIECE: tl.constexpr,
) -> None:
    """A piece of the part of one KV head of one block of a sequence, as numbers of the outputs'
    type, which are 0 behind its context."""
    entry, head = tl.program_id(0), tl.program_id(1)
    sequence = (entry // width).to(tl.int64)
    end = tl.load(context_lens + sequence).to(tl.int32)
    piece, first = tl.program_id(2) * PIECE, entry % width * SLOTS
    base = first + piece
    table = tables + sequence * table_stride
    block = tl.load(table + entry % width)
    if (first < end) & (block >= 0):  # before a window there may be none
        at, step = tl.arange(0, PADDED), tl.arange(0, PIECE)
        inside = (at < WIDTH)[None, :]
        kind: tl.constexpr = out_keys.dtype.element_ty
        index = base + step
        found = fetch_keys(keys, block, index, head, at, KV_HEADS, SLOTS, WIDTH, PADDED, False)
        found = tl.where((index < end)[:, None], found, 0.0)
        by = _scales(keys, table, index, end, head, KV_HEADS, SLOTS, WIDTH)
        row = (entry.to(tl.int64) * KV_HEADS + head) * SLOTS + piece
        place = (row + step)[:, None] * WIDTH + at[None, :]
        tl.store(out_keys + place, (found.to(tl.float32) * by[:, None]).to(kind), mask=inside)
        even, odd = fetch_pairs(
            *(values, table, base, end, head, at, KV_HEADS, SLOTS, PIECE, WIDTH, PADDED, False),
        )
        pair = 2 * tl.arange(0, PIECE // 2)
        by = _scales(values, table, base + pair, end, head, KV_HEADS, SLOTS, WIDTH)
        by_next = _scales(values, table, base + pair + 1, end, head, KV_HEADS, SLOTS, WIDTH)
        place = (row + pair)[:, None] * WIDTH + at[None, :]
        tl.store(out_values + place, (even.to(tl.float32) * by[:, None]).to(kind), mask=inside)
        place += WIDTH
        tl.store(out_values + place, (odd.to(tl.float32) * by_next[:, None]).to(kind), mask=inside)
