"""Device code of prefix.py."""

from __future__ import annotations

import triton.language as tl

from quire.backends.triton.jit import kernel
from quire.backends.triton.softmax import attend_many


@kernel("part_base", "window")
def attend_prefixes(
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    items: tl.tensor,
    members: tl.tensor,
    block_ids: tl.tensor,
    lengths: tl.tensor,
    parts: tl.tensor,
    sums: tl.tensor,
    part_base: tl.tensor,
    q_stride: tl.tensor,
    scale: tl.tensor,
    window: tl.tensor,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    SLOTS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    PRECISION: tl.constexpr,
    SOFTCAP: tl.constexpr,
) -> None:
    """One tile of members x GROUP queries against one stretch of their prefix."""
    item, head = items + tl.program_id(0) * 8, tl.program_id(1)
    count, num_tokens = tl.load(item + 1), tl.load(item + 3)
    if num_tokens > 0:
        query, at = tl.arange(0, QUERIES), tl.arange(0, PADDED)
        number = query // GROUP
        known = number < tl.minimum(count, QUERIES // GROUP)
        row = tl.load(members + tl.load(item) + number, mask=known, other=0).to(tl.int64)
        heads = head * GROUP + query % GROUP
        inside = known[:, None] & (at < WIDTH)[None, :]
        place = q + row[:, None] * q_stride + heads[:, None] * WIDTH + at[None, :]
        mine = tl.load(place, mask=inside, other=0.0)
        first_seen = row
        if HAS_WINDOW:
            length = tl.load(lengths + row, mask=known, other=0)
            first_seen = length - window - tl.load(item + 4)
        mean, log_sum = attend_many(
            *(mine, scale, keys, values, block_ids + tl.load(item + 2), 0, num_tokens),
            *(num_tokens, first_seen, row, head),
            *(HAS_WINDOW, False, KV_HEADS, SLOTS, KEYS, WIDTH, PADDED, PRECISION, SOFTCAP),
        )
        part = part_base + tl.load(item + 5) + number * tl.load(item + 6)
        out = part.to(tl.int64) * (KV_HEADS * GROUP) + heads
        tl.store(parts + out[:, None] * WIDTH + at[None, :], mean, mask=inside)
        tl.store(sums + out, log_sum, mask=known)
