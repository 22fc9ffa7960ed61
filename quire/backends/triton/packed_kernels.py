"""Attention of few rows from the packed projection: one launch for what heads.py and
decode_kernels.py do in two.

A program rotates the queries of its item itself. The program of a row's last item also rotates the
new key, and stores it and its value before it reads its stretch, which ends with them. No other
program of that row and head reads so far.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from quire.backends.triton.decode_kernels import attend_item, leave
from quire.backends.triton.jit import kernel, part


@part
def _turned(
    source: tl.tensor,
    at: tl.tensor,
    inside: tl.tensor,
    weight: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    NORMED: tl.constexpr,
) -> Any:
    """Heads [any, WIDTH] at `source`, normed and rotated; `sin` is negative in the first half."""
    dtype: tl.constexpr = source.dtype.element_ty
    other = (at + WIDTH // 2) % WIDTH  # the partner of each number
    x = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(source + other, mask=inside, other=0.0).to(tl.float32)
    if NORMED:
        scale = tl.rsqrt(tl.sum(x * x, 1) / WIDTH + eps)[:, None]
        mine = tl.load(weight + at, mask=at < WIDTH, other=0.0).to(tl.float32)
        theirs = tl.load(weight + other, mask=at < WIDTH, other=0.0).to(tl.float32)
        x, y = x * scale, y * scale
        if weight.dtype.element_ty == dtype:  # else it is applied before rounding: see ops.py
            x, y = x.to(dtype).to(tl.float32), y.to(dtype).to(tl.float32)
        x = (x * mine).to(dtype).to(tl.float32)
        y = (y * theirs).to(dtype).to(tl.float32)
    return (x * cos + y * sin).to(dtype)


@part
def _store_new(
    source: tl.tensor,
    slot: tl.tensor,
    head: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    weight: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    eps: tl.tensor,
    KV_HEADS: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    NORMED: tl.constexpr,
) -> None:
    """Store the key at `source`, and the value KV_HEADS heads after it, in a slot."""
    at = tl.arange(0, PADDED)[None, :]
    known = at < WIDTH
    k = _turned(source, at, known, weight, cos, sin, eps, WIDTH, NORMED)
    v = tl.load(source + KV_HEADS * WIDTH + at, mask=known, other=0.0)
    place = ((slot // SLOTS * KV_HEADS + head) * SLOTS + slot % SLOTS) * WIDTH + at
    tl.store(keys + place, k, mask=known)
    tl.store(values + place, v, mask=known)
    tl.debug_barrier()


@part
def _item_at(items: tl.tensor, spans: tl.tensor, slots: tl.tensor, item: tl.tensor) -> Any:
    """(row, first token, end, the row's first item, how many it has, row of its table, slot of
    its new token), none of them from a cache that is older than this step."""
    row = tl.load(items + item * 4, cache_modifier=".cg").to(tl.int64)
    begin = tl.load(items + item * 4 + 1, cache_modifier=".cg")
    end = tl.load(items + item * 4 + 2, cache_modifier=".cg")
    owner = tl.load(items + item * 4 + 3, cache_modifier=".cg").to(tl.int64)
    first = tl.load(spans + row * 2, mask=row >= 0, other=0, cache_modifier=".cg")
    count = tl.load(spans + row * 2 + 1, mask=row >= 0, other=0, cache_modifier=".cg")
    slot = tl.load(slots + row, mask=row >= 0, other=-1, cache_modifier=".cg")
    return row, begin, end, first, count, owner, slot


@part
def _turn_of(
    cos: tl.tensor, sin: tl.tensor, row: tl.tensor, WIDTH: tl.constexpr, PADDED: tl.constexpr
) -> Any:
    """cos and sin of a row [1, PADDED], as _turned takes them."""
    half: tl.constexpr = WIDTH // 2
    at = tl.arange(0, PADDED)[None, :]
    known = (row >= 0) & (at < WIDTH)
    place = row * half + at % half
    c = tl.load(cos + place, mask=known, other=0.0, cache_modifier=".cg")
    s = tl.load(sin + place, mask=known, other=0.0, cache_modifier=".cg")
    return c, tl.where(at < half, -s, s)


@kernel("table_stride")
def attend_packed(
    qkv: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    slots: tl.tensor,
    q_weight: tl.tensor,
    k_weight: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    tables: tl.tensor,
    items: tl.tensor,
    spans: tl.tensor,
    parts: tl.tensor,
    sums: tl.tensor,
    counters: tl.tensor,
    out: tl.tensor,
    table_stride: tl.tensor,
    scale: tl.tensor,
    eps: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    SLOTS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    MERGED: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
    SOFTCAP: tl.constexpr,
    NORMED: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """One item of one KV head: the row's GROUP queries against a stretch of its keys. What is
    read before waiting was made before the layers (cuda/small_batch.py)."""
    head, item = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, begin, end, first, count, owner, slot = _item_at(items, spans, slots, item)
    table = tables + owner * table_stride
    c, s = _turn_of(cos, sin, row, WIDTH, PADDED)
    if OVERLAPS:  # the next kernel may load its weights, and then waits
        gdc_launch_dependents()
        gdc_wait()
    at, heads = tl.arange(0, PADDED)[None, :], head * GROUP + tl.arange(0, QUERIES)[:, None]
    inside = (heads < (head + 1) * GROUP) & (at < WIDTH)
    if begin < end:
        qkv += row * ((GROUP + 2) * KV_HEADS * WIDTH)
        mine = _turned(qkv + heads * WIDTH, at, inside, q_weight, c, s, eps, WIDTH, NORMED)
        if item == first + count - 1 and slot >= 0:
            new = (qkv + (KV_HEADS * GROUP + head) * WIDTH, slot, head, keys, values)
            _store_new(*new, k_weight, c, s, eps, KV_HEADS, SLOTS, WIDTH, PADDED, NORMED)
        mean, log_sum = attend_item(
            *(mine, keys, values, table, begin, end, head, scale),
            *(QUERIES, KV_HEADS, SLOTS, KEYS, WIDTH, PADDED, PRECISION, SOFTCAP, False),
        )
        leave(
            *(mean, log_sum, item, row, head, first, count, parts, sums, counters, out),
            *(KV_HEADS, GROUP, QUERIES, WIDTH, PADDED, True, MERGED, GROUP_ROWS),
        )
    elif row >= 0:
        nothing = tl.zeros([QUERIES, PADDED], out.dtype.element_ty)
        tl.store(out + (row * KV_HEADS * GROUP + heads) * WIDTH + at, nothing, mask=inside)
