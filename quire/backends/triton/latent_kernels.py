"""Device code of latent.py."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends.triton.decode_kernels import leave
from quire.backends.triton.jit import kernel, part
from quire.backends.triton.softmax import NOTHING, fetched, finished, nothing_yet


@part
def _attend_rows(
    latent: tl.tensor,
    turned: tl.tensor,
    keys: tl.tensor,
    table: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    last_seen: tl.tensor,
    scale: tl.tensor,
    m: tl.tensor,
    mass: tl.tensor,
    acc: tl.tensor,
    HAS_LAST: tl.constexpr,
    MASKED: tl.constexpr,
    SLOTS: tl.constexpr,
    KEYS: tl.constexpr,
    RANK: tl.constexpr,
    RANK_PADDED: tl.constexpr,
    TURNED: tl.constexpr,
    TURNED_PADDED: tl.constexpr,
    PRECISION: tl.constexpr,
) -> Any:
    """m, mass, acc (softmax.py) after the rows of tokens begin .. end as well, for queries of two
    parts; of those, query i may see only tokens up to last_seen[i] (HAS_LAST). `begin` is where a
    tile of KEYS begins; unless MASKED, so is `end`, and every query sees all tokens."""
    at, far, step = tl.arange(0, RANK_PADDED), tl.arange(0, TURNED_PADDED), tl.arange(0, KEYS)
    width: tl.constexpr = RANK + TURNED
    block = tl.load(table + (begin + step) // SLOTS, mask=begin + step < end, other=0)
    for base in range(begin, end, KEYS):
        index = base + step
        real = index < end
        line = (keys + (block.to(tl.int64) * SLOTS + index % SLOTS) * width)[:, None]
        # Numbers that were not loaded may be NaN, which a weight of 0 does not remove.
        asked = real[:, None]
        rows = fetched(line + at[None, :], asked, (at < RANK)[None, :], MASKED, RANK == RANK_PADDED)
        ends = line + RANK + far[None, :]
        ends = fetched(ends, asked, (far < TURNED)[None, :], MASKED, TURNED == TURNED_PADDED)
        after = index + KEYS  # read ahead of what waits for it
        block = tl.load(table + after // SLOTS, mask=after < end, other=0)
        scores = tl.dot(latent, tl.trans(rows), input_precision=PRECISION)
        scores = tl.dot(turned, tl.trans(ends), scores, input_precision=PRECISION) * scale
        if MASKED:
            seen = index[None, :] <= last_seen[:, None] if HAS_LAST else real[None, :]
            scores = tl.where(seen, scores, NOTHING)
        new_m = tl.maximum(m, tl.max(scores, 1))
        p = tl.exp2(scores - new_m[:, None])
        shrink = tl.exp2(m - new_m)
        acc = tl.dot(p.to(rows.dtype), rows, acc * shrink[:, None], input_precision=PRECISION)
        mass = mass * shrink + tl.sum(p, 1)
        m = new_m
    return m, mass, acc


@part
def _queries(
    q: tl.tensor,
    known: tl.tensor,
    RANK: tl.constexpr,
    RANK_PADDED: tl.constexpr,
    TURNED: tl.constexpr,
    TURNED_PADDED: tl.constexpr,
) -> Any:
    """Both parts of the queries at q [n]; zeros where one is not `known`."""
    at, far = tl.arange(0, RANK_PADDED)[None, :], tl.arange(0, TURNED_PADDED)[None, :]
    latent = tl.load(q[:, None] + at, mask=known[:, None] & (at < RANK), other=0.0)
    turned = tl.load(q[:, None] + RANK + far, mask=known[:, None] & (far < TURNED), other=0.0)
    return latent, turned


@kernel("table_stride")
def attend_row_items(
    q: tl.tensor,
    keys: tl.tensor,
    tables: tl.tensor,
    items: tl.tensor,
    spans: tl.tensor,
    parts: tl.tensor,
    sums: tl.tensor,
    counters: tl.tensor,
    out: tl.tensor,
    table_stride: tl.tensor,
    scale: tl.tensor,
    TILES: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    SLOTS: tl.constexpr,
    KEYS: tl.constexpr,
    RANK: tl.constexpr,
    RANK_PADDED: tl.constexpr,
    TURNED: tl.constexpr,
    TURNED_PADDED: tl.constexpr,
    MERGED: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """One item (decode.py) of one of the TILES of heads: GROUP queries of a row against a stretch
    of its tokens' rows."""
    tile, item = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row = tl.load(items + item * 4).to(tl.int64)
    begin, end = tl.load(items + item * 4 + 1), tl.load(items + item * 4 + 2)
    first = tl.load(spans + row * 2, mask=row >= 0, other=0)  # of the row's items
    count = tl.load(spans + row * 2 + 1, mask=row >= 0, other=0)
    query = tl.arange(0, QUERIES)
    lines = row * (TILES * GROUP) + tile * GROUP + query
    if begin < end:
        table = tables + tl.load(items + item * 4 + 3).to(tl.int64) * table_stride
        latent, turned = _queries(
            q + lines * (RANK + TURNED), query < GROUP, RANK, RANK_PADDED, TURNED, TURNED_PADDED
        )
        m, mass, acc = nothing_yet(QUERIES, RANK_PADDED)
        whole = begin + (end - begin) // KEYS * KEYS
        m, mass, acc = _attend_rows(
            *(latent, turned, keys, table, begin, whole, query, scale, m, mass, acc),
            *(False, False, SLOTS, KEYS, RANK, RANK_PADDED, TURNED, TURNED_PADDED, PRECISION),
        )
        m, mass, acc = _attend_rows(
            *(latent, turned, keys, table, whole, end, query, scale, m, mass, acc),
            *(False, True, SLOTS, KEYS, RANK, RANK_PADDED, TURNED, TURNED_PADDED, PRECISION),
        )
        mean, log_sum = finished(m, mass, acc)
        leave(
            *(mean, log_sum, item, row, tile, first, count, parts, sums, counters, out),
            *(TILES, GROUP, QUERIES, RANK, RANK_PADDED, True, MERGED, GROUP_ROWS),
        )
    elif row >= 0:
        at = tl.arange(0, RANK_PADDED)
        inside = (query < GROUP)[:, None] & (at < RANK)[None, :]
        none = tl.zeros([QUERIES, RANK_PADDED], out.dtype.element_ty)
        tl.store(out + lines[:, None] * RANK + at[None, :], none, mask=inside)


@kernel("table_stride")
def attend_row_tiles(
    q: tl.tensor,
    keys: tl.tensor,
    out: tl.tensor,
    query_starts: tl.tensor,
    context_lens: tl.tensor,
    tables: tl.tensor,
    tiles: tl.tensor,
    table_stride: tl.tensor,
    scale: tl.tensor,
    TILES: tl.constexpr,
    GROUP: tl.constexpr,
    PER_TILE: tl.constexpr,
    QUERIES: tl.constexpr,
    SLOTS: tl.constexpr,
    KEYS: tl.constexpr,
    RANK: tl.constexpr,
    RANK_PADDED: tl.constexpr,
    TURNED: tl.constexpr,
    TURNED_PADDED: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """PER_TILE tokens of one sequence (prefill.py), for GROUP of its heads."""
    # The last tiles of a sequence see the most keys, so they start first.
    tile, heads = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    sequence = tl.load(tiles + tile * 2).to(tl.int64)
    if sequence >= 0:
        first = tl.load(tiles + tile * 2 + 1)
        end_token = tl.load(query_starts + sequence + 1).to(tl.int32)
        context = tl.load(context_lens + sequence).to(tl.int32)
        query = tl.arange(0, QUERIES)
        token = first + query // GROUP
        known = (token < end_token) & (query < PER_TILE * GROUP)
        lines = token.to(tl.int64) * (TILES * GROUP) + heads * GROUP + query % GROUP
        latent, turned = _queries(
            q + lines * (RANK + TURNED), known, RANK, RANK_PADDED, TURNED, TURNED_PADDED
        )
        # A sequence's queries are the last tokens of its context.
        position = context - end_token + token
        lowest = context - end_token + first
        highest = tl.minimum(lowest + PER_TILE, context)
        table = tables + sequence * table_stride
        m, mass, acc = nothing_yet(QUERIES, RANK_PADDED)
        whole = (lowest + 1) // KEYS * KEYS
        m, mass, acc = _attend_rows(
            *(latent, turned, keys, table, 0, whole, position, scale, m, mass, acc),
            *(True, False, SLOTS, KEYS, RANK, RANK_PADDED, TURNED, TURNED_PADDED, PRECISION),
        )
        m, mass, acc = _attend_rows(
            *(latent, turned, keys, table, whole, highest, position, scale, m, mass, acc),
            *(True, True, SLOTS, KEYS, RANK, RANK_PADDED, TURNED, TURNED_PADDED, PRECISION),
        )
        mean, _ = finished(m, mass, acc)
        at = tl.arange(0, RANK_PADDED)
        place = out + lines[:, None] * RANK + at[None, :]
        inside = known[:, None] & (at < RANK)[None, :]
        tl.store(place, mean.to(out.dtype.element_ty), mask=inside)


@part
def _turned(
    source: tl.tensor,
    target: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    inside: tl.tensor,
    HALF: tl.constexpr,
) -> None:
    """Rotate pairs of numbers, HALF apart, from `source` to `target`."""
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    kind = target.dtype.element_ty
    tl.store(target, (first * cos - second * sin).to(kind), mask=inside)
    tl.store(target + HALF, (second * cos + first * sin).to(kind), mask=inside)


@kernel("num_slots")
def turn_rows(
    q: tl.tensor,
    row: tl.tensor,
    weight: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    slots: tl.tensor,
    keys: tl.tensor,
    out: tl.tensor,
    num_slots: tl.tensor,
    row_stride: tl.tensor,
    eps: tl.tensor,
    HEADS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    QUERY: tl.constexpr,
    RANK: tl.constexpr,
    RANK_PADDED: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr,
) -> None:
    """Rotate the ends of some heads of a token, or, in the last program, norm and store its row."""
    token, at = tl.program_id(0).to(tl.int64), tl.arange(0, HALF_PADDED)
    width: tl.constexpr = RANK + 2 * HALF
    by = tl.load(cos + token * HALF + at, mask=at < HALF, other=0.0)
    across = tl.load(sin + token * HALF + at, mask=at < HALF, other=0.0)
    if tl.program_id(1) < tl.num_programs(1) - 1:
        head = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
        line = (token * HEADS + head)[:, None]
        source = q + line * QUERY + QUERY - 2 * HALF + at[None, :]
        inside = (head < HEADS)[:, None] & (at < HALF)[None, :]
        target = out + line * width + RANK + at[None, :]
        _turned(source, target, by[None, :], across[None, :], inside, HALF)
    else:
        slot = tl.load(slots + token, mask=token < num_slots, other=-1).to(tl.int64)
        if slot >= 0:
            own, kept = row + token * row_stride, keys + slot * width
            number = tl.arange(0, RANK_PADDED)
            known = number < RANK
            x = tl.load(own + number, mask=known, other=0.0).to(tl.float32)
            x = x * tl.rsqrt(tl.sum(x * x, 0) / RANK + eps)
            by_weight = tl.load(weight + number, mask=known, other=0.0)
            if weight.dtype.element_ty == row.dtype.element_ty:  # rounded before it is applied
                x = x.to(row.dtype.element_ty).to(tl.float32)
            x = (x * by_weight.to(tl.float32)).to(row.dtype.element_ty)
            tl.store(kept + number, x.to(keys.dtype.element_ty), mask=known)
            _turned(own + RANK + at, kept + RANK + at, by, across, at < HALF, HALF)
