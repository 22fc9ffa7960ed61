"""The code that runs on the device for dense.py."""

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
    """What the numbers in fp8 of tokens `index` are multiplied with; 0 from `end` on."""
    real = index < end
    block = tl.load(table + index // SLOTS, mask=real, other=0)
    found = fetch_scales(cache, block, index, head, real, KV_HEADS, SLOTS, WIDTH)
    return tl.where(real, tl.exp2(found), 0.0)


@part
def _gather_fp8(
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    out_keys: tl.tensor,
    out_values: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    number: tl.tensor,
    head: tl.tensor,
    KV_HEADS: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    TOKENS: tl.constexpr,
) -> None:
    """TOKENS tokens from begin + number on of a cache in fp8, as numbers of the outputs' type."""
    at, step = tl.arange(0, PADDED), tl.arange(0, TOKENS)
    inside = (at < WIDTH)[None, :]
    kind: tl.constexpr = out_keys.dtype.element_ty
    index = begin + number + step
    block = tl.load(table + index // SLOTS, mask=index < end, other=0)
    found = fetch_keys(keys, block, index, head, at, KV_HEADS, SLOTS, WIDTH, PADDED, False)
    by = _scales(keys, table, index, end, head, KV_HEADS, SLOTS, WIDTH)
    place = (number + step).to(tl.int64)[:, None] * (KV_HEADS * WIDTH) + head * WIDTH + at[None, :]
    tl.store(out_keys + place, (found.to(tl.float32) * by[:, None]).to(kind), mask=inside)
    even, odd = fetch_pairs(
        *(values, table, begin + number, end, head, at),
        *(KV_HEADS, SLOTS, TOKENS, WIDTH, PADDED, False),
    )
    pair = 2 * tl.arange(0, TOKENS // 2)
    first = begin + number + pair
    by = _scales(values, table, first, end, head, KV_HEADS, SLOTS, WIDTH)
    by_next = _scales(values, table, first + 1, end, head, KV_HEADS, SLOTS, WIDTH)
    place = (number + pair).to(tl.int64)[:, None] * (KV_HEADS * WIDTH) + head * WIDTH + at[None, :]
    tl.store(out_values + place, (even.to(tl.float32) * by[:, None]).to(kind), mask=inside)
    place += KV_HEADS * WIDTH
    tl.store(out_values + place, (odd.to(tl.float32) * by_next[:, None]).to(kind), mask=inside)


@kernel("begin", "end")
def gather_tokens(
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    out_keys: tl.tensor,
    out_values: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    KV_HEADS: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    TOKENS: tl.constexpr,
) -> None:
    """TOKENS tokens of one KV head out of their blocks, from position `begin` (even) on; what would
    stand at `end` or behind it is 0."""
    number, head = tl.program_id(0) * TOKENS, tl.program_id(1)
    if keys.dtype.element_ty == tl.float8e4nv:
        _gather_fp8(
            *(keys, values, table, out_keys, out_values, begin, end, number, head),
            *(KV_HEADS, SLOTS, WIDTH, PADDED, TOKENS),
        )
    else:
        at, step = tl.arange(0, PADDED), tl.arange(0, TOKENS)
        index = begin + number + step
        block = tl.load(table + index // SLOTS, mask=index < end, other=0).to(tl.int64)
        line = (block * KV_HEADS + head) * SLOTS + index % SLOTS
        source = line[:, None] * WIDTH + at[None, :]
        inside = (at < WIDTH)[None, :]
        real = (index < end)[:, None] & inside
        place = (number + step).to(tl.int64)[:, None] * KV_HEADS + head
        place = place * WIDTH + at[None, :]
        tl.store(out_keys + place, tl.load(keys + source, mask=real, other=0.0), mask=inside)
        tl.store(out_values + place, tl.load(values + source, mask=real, other=0.0), mask=inside)


@kernel("first", "away", "sums_stride", "more_stride", "total_stride")
def merge_two(
    means: tl.tensor,
    sums: tl.tensor,
    more_means: tl.tensor,
    more_sums: tl.tensor,
    out: tl.tensor,
    totals: tl.tensor,
    first: tl.tensor,
    away: tl.tensor,
    sums_stride: tl.tensor,
    more_stride: tl.tensor,
    total_stride: tl.tensor,
    HEADS: tl.constexpr,
    HEAD_ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
) -> None:
    """What two sets of keys make of tokens from `first` on, as one: means [T, HEADS, WIDTH], and
    sums [HEADS, T], the logarithms of what their weights add up to. Token i becomes line i - away
    of `out`, which may be `means`, as `totals` may be `sums`."""
    token = first + tl.program_id(0).to(tl.int64)
    head, at = tl.arange(0, HEAD_ROWS), tl.arange(0, PADDED)
    known = head < HEADS
    one = tl.load(sums + head * sums_stride + token, mask=known, other=0.0)
    other = tl.load(more_sums + head * more_stride + token, mask=known, other=0.0)
    top = tl.maximum(one, other)
    weight, more = tl.exp(one - top), tl.exp(other - top)
    total = weight + more
    inside = known[:, None] & (at < WIDTH)[None, :]
    place = (token * HEADS + head[:, None]) * WIDTH + at[None, :]
    left = tl.load(means + place, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(more_means + place, mask=inside, other=0.0).to(tl.float32)
    merged = left * (weight / total)[:, None] + right * (more / total)[:, None]
    place -= away * (HEADS * WIDTH)
    tl.store(out + place, merged.to(out.dtype.element_ty), mask=inside)
    tl.store(totals + head * total_stride + token, top + tl.log(total), mask=known)
