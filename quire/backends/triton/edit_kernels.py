"""The code that runs on the device for edits of logits: some lines, copied and changed.

The columns of rows and their lists in an arena are what executor/cuda/device_edits.py lays out:

    0 where its lists begin   1 allowed ids, -1 = all   2 banned ids   3 stop ids   4 biases
    5 seen ids   6 room for those   7 position from which stop ids may stand
    8 the line of `masks` that it draws by, -1 = none: bit t % 32 of word t // 32 allows token t
    9 phrases   10 how far they reach back
"""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends.triton.jit import kernel, part, power_of_two
from quire.params.row_sampling import MOST_SPELLED
from quire.steps.row_schema import EMPTIED, EMPTY

AT_ONCE = tl.constexpr(1024)  # list entries
TILE = tl.constexpr(4096)  # logits
_NO_ENTRY = tl.constexpr(2147483647)
_ANY_TOKEN = tl.constexpr(-1)  # padding of a shorter phrase
_EMPTY, _EMPTIED = tl.constexpr(EMPTY), tl.constexpr(EMPTIED)
_MOST_TAIL = tl.constexpr(power_of_two(MOST_SPELLED))


@kernel("count")
def leave_out(places: tl.tensor, rows: tl.tensor, count: tl.tensor, WIDTH: tl.constexpr) -> None:
    """Set these places of `rows` to -1: no row."""
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    place = tl.load(places + at, mask=at < count, other=-1)
    tl.store(rows + place, -1, mask=place >= 0)


@part
def _masked(x: tl.tensor, bits: tl.tensor, token: tl.tensor, counts: tl.tensor) -> Any:
    """The logits of these tokens, -inf where the bits forbid them; `counts`: which to look up."""
    word = tl.load(bits + token // 32, mask=counts, other=-1)
    return tl.where(((word >> (token % 32)) & 1) != 0, x, float("-inf"))


@kernel("column_stride", "mask_stride")
def copy_lines(
    places: tl.tensor,
    logits: tl.tensor,
    rows: tl.tensor,
    positions: tl.tensor,
    columns: tl.tensor,
    masks: tl.tensor,
    scratch: tl.tensor,
    edited_rows: tl.tensor,
    edited_at: tl.tensor,
    stride: tl.tensor,
    column_stride: tl.tensor,
    mask_stride: tl.tensor,
    scratch_stride: tl.tensor,
    vocab: tl.tensor,
) -> None:
    """Line places[i] as float32 to line i of the scratch, -inf where a mask forbids the token or
    only some are allowed. Whose line that is goes to edited_rows and edited_at."""
    line, split, splits = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    place = tl.load(places + line).to(tl.int64)
    row = tl.load(rows + place, mask=place >= 0, other=-1)
    if split == 0:
        tl.store(edited_rows + line, row)
        tl.store(edited_at + line, tl.load(positions + place, mask=place >= 0, other=0))
    if row >= 0:
        all_allowed = tl.load(columns + column_stride + row) < 0
        allowing = tl.load(columns + 8 * column_stride + row).to(tl.int64)
        has_mask, bits = allowing >= 0, masks + allowing * mask_stride
        for first in range(split * TILE, vocab, splits * TILE):
            token = first + tl.arange(0, TILE)
            inside = token < vocab
            x = tl.load(logits + place * stride + token, mask=inside & all_allowed, other=0.0)
            x = tl.where(all_allowed, x.to(tl.float32), float("-inf"))
            x = _masked(x, bits, token, inside & has_mask)
            tl.store(scratch + line * scratch_stride + token, x, mask=inside)


@part
def _forbid(mine: tl.tensor, ids: tl.tensor, count: tl.tensor) -> Any:
    for first in range(0, count, AT_ONCE):
        at = first + tl.arange(0, AT_ONCE)
        token = tl.load(ids + at, mask=at < count, other=0)
        tl.store(mine + token, float("-inf"), mask=at < count)


@part
def _forbid_phrases(mine: tl.tensor, phrases: tl.tensor, count: tl.tensor, reach: tl.tensor) -> Any:
    """Forbid the last token of each phrase whose other tokens the row has just written: phrases
    [reach + 1, count], last tokens first; after them the row's own last tokens, newest first."""
    tail = phrases + (reach + 1) * count
    for first in range(0, count, AT_ONCE):
        at = first + tl.arange(0, AT_ONCE)
        written = at < count
        token = tl.load(phrases + at, mask=written, other=0)
        for back in range(reach):
            before = tl.load(phrases + (back + 1) * count + at, mask=written, other=_ANY_TOKEN)
            written = written & ((before == _ANY_TOKEN) | (before == tl.load(tail + back)))
        tl.store(mine + token, float("-inf"), mask=written)


@part
def _push(tail: tl.tensor, token: tl.tensor, reach: tl.tensor) -> Any:
    """Put a token at the front of a tail, and drop the oldest."""
    back = tl.arange(0, _MOST_TAIL)
    older = tl.load(tail + back - 1, mask=(back > 0) & (back < reach), other=0)
    tl.debug_barrier()  # all are read before one is written
    tl.store(tail + back, tl.where(back == 0, token, older), mask=back < reach)


@part
def _penalise(
    mine: tl.tensor,
    seen: tl.tensor,
    counts: tl.tensor,
    count: tl.tensor,
    repetition: tl.tensor,
    frequency: tl.tensor,
    presence: tl.tensor,
) -> Any:
    for first in range(0, count, AT_ONCE):
        at = first + tl.arange(0, AT_ONCE)
        real = at < count
        token = tl.load(seen + at, mask=real, other=0)
        times = tl.load(counts + at, mask=real, other=0)
        x = tl.load(mine + token, mask=real, other=0.0)
        x = tl.where(x > 0, tl.div_rn(x, x * 0.0 + repetition), x * repetition)
        x = x - frequency * times.to(tl.float32)
        x = x - presence * (times > 0).to(tl.float32)
        tl.store(mine + token, x, mask=real)


@kernel("stride", "column_stride", "mask_stride", "scratch_stride")
def edit_lines(
    places: tl.tensor,
    logits: tl.tensor,
    edited_rows: tl.tensor,
    edited_at: tl.tensor,
    columns: tl.tensor,
    penalties: tl.tensor,
    arena: tl.tensor,
    masks: tl.tensor,
    scratch: tl.tensor,
    stride: tl.tensor,
    column_stride: tl.tensor,
    mask_stride: tl.tensor,
    scratch_stride: tl.tensor,
) -> None:
    """The edits of a line's row, in the sampler's order. A barrier between any two: a token may
    be in several lists."""
    line = tl.program_id(0).to(tl.int64)
    row = tl.load(edited_rows + line)
    if row >= 0:
        mine, own = scratch + line * scratch_stride, columns + row
        raw = logits + tl.load(places + line).to(tl.int64) * stride
        ids = arena + tl.load(own)
        num_allowed = tl.maximum(tl.load(own + column_stride), 0)
        allowing = tl.load(own + 8 * column_stride).to(tl.int64)
        has_mask, bits = allowing >= 0, masks + allowing * mask_stride
        for first in range(0, num_allowed, AT_ONCE):
            at = first + tl.arange(0, AT_ONCE)
            token = tl.load(ids + at, mask=at < num_allowed, other=0)
            x = tl.load(raw + token, mask=at < num_allowed, other=0.0).to(tl.float32)
            x = _masked(x, bits, token, (at < num_allowed) & has_mask)
            tl.store(mine + token, x, mask=at < num_allowed)
        tl.debug_barrier()
        ids += num_allowed
        num_banned = tl.load(own + 2 * column_stride)
        _forbid(mine, ids, num_banned)
        ids += num_banned
        num_phrases, reach = tl.load(own + 9 * column_stride), tl.load(own + 10 * column_stride)
        _forbid_phrases(mine, ids, num_phrases, reach)
        ids += (reach + 1) * num_phrases + reach
        num_stops = tl.load(own + 3 * column_stride)
        early = tl.load(edited_at + line) < tl.load(own + 7 * column_stride)
        _forbid(mine, ids, tl.where(early, num_stops, 0))
        tl.debug_barrier()
        ids += num_stops
        num_biases = tl.load(own + 4 * column_stride)
        for first in range(0, num_biases, AT_ONCE):
            at = first + tl.arange(0, AT_ONCE)
            real = at < num_biases
            token = tl.load(ids + at, mask=real, other=0)
            bias = tl.load(ids + num_biases + at, mask=real, other=0).to(tl.float32, bitcast=True)
            x = tl.load(mine + token, mask=real, other=0.0)
            tl.store(mine + token, x + bias, mask=real)
        tl.debug_barrier()
        ids += 2 * num_biases
        num_seen = tl.load(own + 5 * column_stride)
        weights = penalties + row
        _penalise(
            *(mine, ids, ids + tl.load(own + 6 * column_stride), num_seen, tl.load(weights)),
            *(tl.load(weights + column_stride), tl.load(weights + 2 * column_stride)),
        )


@kernel("count")
def give_back(
    places: tl.tensor,
    edited_rows: tl.tensor,
    edited_tokens: tl.tensor,
    edited_failed: tl.tensor,
    tokens: tl.tensor,
    failed: tl.tensor,
    count: tl.tensor,
    WIDTH: tl.constexpr,
) -> None:
    """Copy the tokens of edited lines to their places. Where such a line has none above -inf, its
    edits are the reason."""
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    inside = at < count
    known = inside & (tl.load(edited_rows + at, mask=inside, other=-1) >= 0)
    place = tl.load(places + at, mask=known, other=0)
    tl.store(tokens + place, tl.load(edited_tokens + at, mask=known, other=0), mask=known)
    fails = tl.load(edited_failed + at, mask=known, other=0).to(tl.int32)
    fails = tl.where(fails == _EMPTY, _EMPTIED, fails)
    tl.store(failed + place, fails.to(tl.uint8), mask=known)


@kernel("column_stride")
def remember(
    edited_rows: tl.tensor,
    edited_tokens: tl.tensor,
    edited_failed: tl.tensor,
    columns: tl.tensor,
    arena: tl.tensor,
    column_stride: tl.tensor,
) -> None:
    """Add a row's token to its tail and count it among its seen tokens, if the row has these."""
    line = tl.program_id(0)
    row = tl.load(edited_rows + line)
    own = columns + row
    room = tl.load(own + 6 * column_stride, mask=row >= 0, other=0)
    reach = tl.load(own + 10 * column_stride, mask=row >= 0, other=0)
    fails = tl.load(edited_failed + line) != 0
    if ((room > 0) | (reach > 0)) & (not fails):
        token = tl.load(edited_tokens + line).to(tl.int32)
        num_fixed = tl.maximum(tl.load(own + column_stride), 0) + tl.load(own + 2 * column_stride)
        num_fixed += (reach + 1) * tl.load(own + 9 * column_stride)
        _push(arena + tl.load(own) + num_fixed, token, reach)
        num_fixed += reach + tl.load(own + 3 * column_stride)
        num_fixed += 2 * tl.load(own + 4 * column_stride)
        seen = arena + tl.load(own) + num_fixed
        count = tl.load(own + 5 * column_stride)
        found = tl.full([AT_ONCE], _NO_ENTRY, tl.int32)
        for first in range(0, count, AT_ONCE):
            at = first + tl.arange(0, AT_ONCE)
            same = tl.load(seen + at, mask=at < count, other=-1) == token
            found = tl.minimum(found, tl.where(same, at, _NO_ENTRY))
        place = tl.min(found, 0)
        new = place == _NO_ENTRY
        place = tl.where(new, count, place)
        fits = place < room
        before = tl.load(seen + room + place, mask=fits & (not new), other=0)
        tl.store(seen + place, token, mask=fits)
        tl.store(seen + room + place, before + 1, mask=fits)
        tl.store(own + 5 * column_stride, tl.where(new & fits, count + 1, count))
