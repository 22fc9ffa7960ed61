"""Device code of prefill.py."""

from __future__ import annotations

import triton.language as tl

from quire.backends.triton.jit import kernel
from quire.backends.triton.softmax import attend_many, with_sinks


@kernel("num_sequences", "num_tiles")
def make_tiles(
    query_starts: tl.tensor,
    tiles: tl.tensor,
    num_sequences: tl.tensor,
    num_tiles: tl.tensor,
    PER_TILE: tl.constexpr,
    TILES: tl.constexpr,
    SEQUENCES: tl.constexpr,
) -> None:
    """TILES tiles per program: a tile's sequence is the number of those that end before it."""
    tile = tl.program_id(0) * TILES + tl.arange(0, TILES)
    owner = tl.zeros([TILES], tl.int32)
    before = tl.zeros([TILES], tl.int32)
    so_far = tl.full([], 0, tl.int32)
    for base in range(0, num_sequences, SEQUENCES):
        number = base + tl.arange(0, SEQUENCES)
        real = number < num_sequences
        first = tl.load(query_starts + number, mask=real, other=0).to(tl.int32)
        end = tl.load(query_starts + number + 1, mask=real, other=0).to(tl.int32)
        count = tl.cdiv(end - first, PER_TILE)
        ends = so_far + tl.cumsum(count, 0)
        passed = (ends[None, :] <= tile[:, None]) & real[None, :]
        owner += tl.sum(passed.to(tl.int32), 1)
        before += tl.sum(tl.where(passed, count[None, :], 0), 1)
        so_far += tl.sum(count)
    real = tile < so_far
    start = tl.load(query_starts + owner, mask=real, other=0).to(tl.int32)
    kept = tile < num_tiles
    tl.store(tiles + tile * 2, tl.where(real, owner, -1), mask=kept)
    tl.store(tiles + tile * 2 + 1, start + (tile - before) * PER_TILE, mask=kept)


@kernel("table_stride", "window")
def attend_tiles(
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    out: tl.tensor,
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    tables: tl.tensor,
    tiles: tl.tensor,
    sinks: tl.tensor,
    table_stride: tl.tensor,
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
    SINKS: tl.constexpr,
) -> None:
    """One tile of QUERIES // GROUP tokens of one sequence, for one KV head."""
    # The last tiles of a sequence see the most keys, so they start first.
    tile, head = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    sequence = tl.load(tiles + tile * 2).to(tl.int64)
    if sequence >= 0:
        first = tl.load(tiles + tile * 2 + 1)
        end_token = tl.load(query_starts + sequence + 1).to(tl.int32)
        context = tl.load(context_lens + sequence).to(tl.int32)
        per_tile: tl.constexpr = QUERIES // GROUP
        query, at = tl.arange(0, QUERIES), tl.arange(0, PADDED)
        token = first + query // GROUP
        known = (token < end_token) & (query < per_tile * GROUP)
        inside = known[:, None] & (at < WIDTH)[None, :]
        offset = token.to(tl.int64)[:, None]
        place = (head * GROUP + query % GROUP)[:, None] * WIDTH + at[None, :]
        mine = tl.load(q + offset * q_stride + place, mask=inside, other=0.0)
        # A sequence's queries are the last tokens of its context.
        position = context - end_token + token
        lowest = context - end_token + first
        highest = tl.minimum(lowest + per_tile, context)
        begin = 0
        if HAS_WINDOW:
            # At the beginning of a block; blocks behind the window belong to other rows.
            begin = tl.maximum(lowest - window + 1, 0) // SLOTS * SLOTS
        mean, log_sum = attend_many(
            *(mine, scale, keys, values, tables + sequence * table_stride, begin, highest),
            *(lowest + 1, position - window + 1, position, head),
            *(HAS_WINDOW, True, KV_HEADS, SLOTS, KEYS, WIDTH, PADDED, PRECISION, SOFTCAP),
        )
        if SINKS:
            own = tl.load(sinks + head * GROUP + query % GROUP)
            mean, log_sum = with_sinks(mean, log_sum, own)
        made = mean.to(out.dtype.element_ty)
        tl.store(out + offset * (KV_HEADS * GROUP * WIDTH) + place, made, mask=inside)
