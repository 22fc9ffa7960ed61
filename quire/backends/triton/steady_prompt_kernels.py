"""Device code for prompts of steady.py; compiled like steady_kernels.py."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends.triton.jit import kernel, part
from quire.backends.triton.softmax import attend_stretch, finished, nothing_yet
from quire.backends.triton.steady_pieces import mean_of, num_pieces, piece_begin


@part
def _folded(
    m: tl.tensor,
    mass: tl.tensor,
    acc: tl.tensor,
    top: tl.tensor,
    weight: tl.tensor,
    total: tl.tensor,
) -> Any:
    """top, weight, total with this piece merged, as the parts of a decode row are."""
    mean, log_sum = finished(m, mass, acc)
    new_top = tl.maximum(top, log_sum)
    share, shrink = tl.exp2(log_sum - new_top), tl.exp2(top - new_top)
    total = total * shrink[:, None] + mean * share[:, None]
    return new_top, weight * shrink + share, total


@part
def _attend_pieces(
    mine: tl.tensor,
    scale: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    first_seen: tl.tensor,
    last_seen: tl.tensor,
    head: tl.tensor,
    top: tl.tensor,
    weight: tl.tensor,
    total: tl.tensor,
    HAS_FIRST: tl.constexpr,
    MASKED: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SLOTS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    PRECISION: tl.constexpr,
    SOFTCAP: tl.constexpr,
) -> Any:
    """top, weight, total after pieces first .. last, each from nothing on, of which tokens begin ..
    end are there."""
    for number in range(first, last):
        start, stop = piece_begin(number), tl.minimum(piece_begin(number + 1), end)
        if HAS_FIRST:
            start = tl.maximum(start, begin)
        m, mass, acc = nothing_yet(mine.shape[0], PADDED)
        m, mass, acc = attend_stretch(
            *(mine, scale, keys, values, table, start, stop, first_seen, last_seen, head),
            *(m, mass, acc, HAS_FIRST, True, MASKED, True, True),
            *(KV_HEADS, SLOTS, KEYS, WIDTH, PADDED, PRECISION, SOFTCAP),
        )
        top, weight, total = _folded(m, mass, acc, top, weight, total)
    return top, weight, total


@part
def _attend_seen(
    mine: tl.tensor,
    scale: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    lowest: tl.tensor,
    highest: tl.tensor,
    position: tl.tensor,
    window: tl.tensor,
    head: tl.tensor,
    HAS_WINDOW: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SLOTS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    PRECISION: tl.constexpr,
    SOFTCAP: tl.constexpr,
) -> Any:
    """top, weight, total of all that queries at `position`, from lowest to before highest, see."""
    # Pieces that begin behind the windows of some, that all queries see whole, and that some
    # see the beginning of.
    last = num_pieces(highest)
    whole = num_pieces(lowest + 2) - 1
    shown, earliest, seen = 0, 0, position
    top, weight, total = nothing_yet(mine.shape[0], PADDED)
    if HAS_WINDOW:
        earliest, seen = tl.maximum(lowest - window + 1, 0), position - window + 1
        first_piece = num_pieces(earliest + 1) - 1
        shown = tl.maximum(num_pieces(tl.maximum(highest - window, 0)), first_piece)
        shown = tl.minimum(shown, last)
        top, weight, total = _attend_pieces(
            *(mine, scale, keys, values, table, first_piece, shown, earliest, highest),
            *(seen, position, head, top, weight, total, True, True),
            *(KV_HEADS, SLOTS, KEYS, WIDTH, PADDED, PRECISION, SOFTCAP),
        )
    whole = tl.maximum(whole, shown)
    top, weight, total = _attend_pieces(
        *(mine, scale, keys, values, table, shown, whole, earliest, highest),
        *(seen, position, head, top, weight, total, False, False),
        *(KV_HEADS, SLOTS, KEYS, WIDTH, PADDED, PRECISION, SOFTCAP),
    )
    top, weight, total = _attend_pieces(
        *(mine, scale, keys, values, table, whole, last, earliest, highest),
        *(seen, position, head, top, weight, total, False, True),
        *(KV_HEADS, SLOTS, KEYS, WIDTH, PADDED, PRECISION, SOFTCAP),
    )
    return top, weight, total


@kernel("table_stride", "window")
def attend_steady_tiles(
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
    PRECISION: tl.constexpr,
    SOFTCAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
) -> None:
    """One tile of QUERIES // GROUP tokens of one sequence, for one KV head, piece by piece."""
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
        position = context - end_token + token
        lowest = context - end_token + first
        highest = tl.minimum(lowest + per_tile, context)
        table = tables + sequence * table_stride
        top, weight, total = _attend_seen(
            *(mine, scale, keys, values, table, lowest, highest, position, window, head),
            *(HAS_WINDOW, KV_HEADS, SLOTS, KEYS, WIDTH, PADDED, PRECISION, SOFTCAP),
        )
        sink = 0.0
        if SINKS:
            sink = tl.load(sinks + head * GROUP + query % GROUP)
        made = mean_of(top, weight, total, sink, SINKS).to(out.dtype.element_ty)
        tl.store(out + offset * (KV_HEADS * GROUP * WIDTH) + place, made, mask=inside)
