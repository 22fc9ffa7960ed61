"""The code that runs on the device for logprobs: a drawn token's own, its rank, the likeliest.

Two passes over a line: the best of each lane gives a bound that enough tokens reach, and the
second adds the masses up, counts what is larger than the drawn token, and puts aside what reaches
the bound. Where too many tokens tie for that, each of the likeliest is a pass of its own.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends.triton.jit import kernel, part
from quire.backends.triton.order_kernels import order_of, value_at
from quire.backends.triton.topk_kernels import NO_TOKEN, reached_by

_LOG2_E = tl.constexpr(1.4426950408889634)


@part
def _measure(
    logits: tl.tensor,
    vocab: tl.tensor,
    own: tl.tensor,
    least: tl.tensor,
    top: tl.tensor,
    values: tl.tensor,
    ids: tl.tensor,
    counter: tl.tensor,
    ROOM: tl.constexpr,
    TILE: tl.constexpr,
) -> Any:
    """(how many logits are larger than `own`, how many reach `least`, the mass of all of them);
    the first ROOM of those that reach it go to `values` and `ids`, in any order."""
    tl.atomic_xchg(counter, 0)
    tl.debug_barrier()
    mass, larger = tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.int32)
    for first in range(0, vocab, TILE):
        token = first + tl.arange(0, TILE)
        inside = token < vocab
        x = tl.load(logits + token, mask=inside, other=float("-inf")).to(tl.float32)
        mass += tl.exp2((x - top) * _LOG2_E)
        larger += (x > own).to(tl.int32)
        reaches = inside & (x >= least)
        place = tl.atomic_add(counter + tl.zeros([TILE], tl.int32), 1, mask=reaches)
        keep = reaches & (place < ROOM)
        tl.store(values + place, x, mask=keep)
        tl.store(ids + place, token, mask=keep)
    tl.debug_barrier()
    return tl.sum(larger, 0), tl.atomic_add(counter, 0), tl.sum(mass.to(tl.float64), 0)


@part
def _next_of_line(
    logits: tl.tensor, vocab: tl.tensor, value: tl.tensor, token: tl.tensor, TILE: tl.constexpr
) -> Any:
    """(logit, id) of the token after this one, by falling logits and then rising ids, by a pass
    over the line."""
    best = tl.full([TILE], float("-inf"), tl.float32)
    found = tl.full([TILE], NO_TOKEN, tl.int32)
    for first in range(0, vocab, TILE):
        at = first + tl.arange(0, TILE)
        inside = at < vocab
        x = tl.load(logits + at, mask=inside, other=float("-inf")).to(tl.float32)
        later = inside & ((x < value) | ((x == value) & (at > token)))
        # The first of a lane is taken even if it is -inf; of equal ones the lowest id comes first.
        takes = later & ((x > best) | (found == NO_TOKEN))
        best, found = tl.where(takes, x, best), tl.where(takes, at, found)
    top = tl.max(best, 0)
    return top, tl.min(tl.where(best == top, found, NO_TOKEN), 0)


@part
def _store_one(out: tl.tensor, number: tl.tensor, token: tl.tensor, value: tl.tensor) -> Any:
    tl.store(out + 2 + 2 * number, token)
    tl.store(out + 3 + 2 * number, value.to(tl.int32, bitcast=True))


@part
def _store_likeliest(
    logits: tl.tensor,
    vocab: tl.tensor,
    wanted: tl.tensor,
    count: tl.tensor,
    values: tl.tensor,
    ids: tl.tensor,
    out: tl.tensor,
    top: tl.tensor,
    log_sum: tl.tensor,
    ROOM: tl.constexpr,
    TILE: tl.constexpr,
) -> Any:
    """Write the `wanted` likeliest tokens to `out`, best first; of equal ones the lowest ids."""
    if count <= ROOM:
        at = tl.arange(0, ROOM)
        x = tl.load(values + at, mask=at < count, other=float("-inf"))
        token = tl.load(ids + at, mask=at < count, other=NO_TOKEN)
        for number in range(wanted):
            value = tl.max(x, 0)
            chosen = tl.min(tl.where(x == value, token, NO_TOKEN), 0)
            _store_one(out, number, chosen, value - top - log_sum)
            gone = token == chosen
            x = tl.where(gone, float("-inf"), x)
            token = tl.where(gone, NO_TOKEN, token)
    else:
        value, chosen = tl.full([], float("inf"), tl.float32), tl.full([], -1, tl.int32)
        for number in range(wanted):
            value, chosen = _next_of_line(logits, vocab, value, chosen, TILE)
            _store_one(out, number, chosen, value - top - log_sum)


@kernel("line_stride", "step_stride")
def score_drawn(
    logits: tl.tensor,
    rows: tl.tensor,
    tokens: tl.tensor,
    failed: tl.tensor,
    num_logprobs: tl.tensor,
    out: tl.tensor,
    step: tl.tensor,
    values: tl.tensor,
    ids: tl.tensor,
    counters: tl.tensor,
    stride: tl.tensor,
    vocab: tl.tensor,
    line_stride: tl.tensor,
    step_stride: tl.tensor,
    AS_LOGITS: tl.constexpr,
    ROOM: tl.constexpr,
    TILE: tl.constexpr,
    SHIFT: tl.constexpr,
) -> None:
    """A line's entry: logprob, rank, then id and logprob of each of the likeliest; floats as
    the integers of the same bits. Lines whose rows did not ask are left alone."""
    line = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + line)
    wanted = tl.load(num_logprobs + row, mask=row >= 0, other=-1)
    bad = tl.load(failed + line) != 0
    if (wanted >= 0) & (not bad):
        wanted = tl.minimum(wanted, vocab)
        mine = logits + line * stride
        entry = out + tl.load(step).to(tl.int64) * step_stride + line * line_stride
        most = tl.full([TILE], float("-inf"), tl.float32)
        for first in range(0, vocab, TILE):
            token = first + tl.arange(0, TILE)
            x = tl.load(mine + token, mask=token < vocab, other=float("-inf"))
            most = tl.maximum(most, x.to(tl.float32))
        top = tl.max(most, 0)
        base = order_of(tl.full([], float("-inf"), tl.float32), SHIFT)
        high = order_of(top, SHIFT)
        # k lanes whose best tokens reach a bound: then k tokens do.
        bound = reached_by(order_of(most, SHIFT), tl.maximum(wanted, 1), base, high)
        least = value_at(bound, SHIFT)
        own = tl.load(mine + tl.load(tokens + line)).to(tl.float32)
        larger, count, mass = _measure(
            *(mine, vocab, own, least, top, values + line * ROOM, ids + line * ROOM),
            *(counters + line, ROOM, TILE),
        )
        log_sum = tl.log(mass).to(tl.float32)
        if AS_LOGITS:
            top, log_sum = top * 0.0, log_sum * 0.0
        tl.store(entry, (own - top - log_sum).to(tl.int32, bitcast=True))
        tl.store(entry + 1, larger + 1)
        if wanted > 0:
            _store_likeliest(
                *(mine, vocab, wanted, count, values + line * ROOM, ids + line * ROOM),
                *(entry, top, log_sum, ROOM, TILE),
            )
