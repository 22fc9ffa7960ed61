"""The only words scheduler and executor exchange: a StepPlan goes down, a StepResult comes back.

Plain frozen data, numbers and numpy arrays that are not written after they are made, so that both
can go to another process or into a file (steps/codec.py). What cannot is named by a number and
found in the executor's Handles. Plans run in their order: a block freed in plan i may be taken in
plan i + 1.
Within one plan the order is: ends, starts, assigned blocks, copies, chosen tokens, encoded media
(those `forgotten` first), then the forward pass. In the pass every slice and decode row writes its
KV before any of them reads, so a slice may read blocks that an earlier slice of the same plan
fills.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.params.row_sampling import RowSampling
from quire.request import HiddenKind, Ints

Floats = npt.NDArray[np.float32]

MOST_TRIED = 512  # lines of logits of a plan that wait for the host: 160 MB of a large vocabulary


def no_ints() -> Ints:
    return np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class RowStart:
    """A sequence takes a row: everything about it that stays on the device.

    `noise_key` and `sample` key its random numbers, with the position of the token drawn.
    The device stops a row by itself (inside `repeat`) at one of `freezing_ids`, once
    `sampling.min_tokens` outputs exist, and when `max_tokens` outputs exist. `request` is its
    number among the executor's Handles; with `has_processors` the functions found there edit
    the row's logits before anything else does. `paced`: each of its tokens has come home before a
    plan asks for the next, and when it decodes it is in `StepPlan.single` or `tried`.
    `adapter` is the number, there too, of the LoRA adapter that the row is computed with; 0: none.
    `automaton` likewise is the grammar that the device follows by itself, 0 where it is given masks
    or there is none, and `state` where in it the row stands; see steps/automata.py.
    """

    row: int
    sampling: RowSampling
    noise_key: int
    sample: int
    prompt_ids: Ints
    output_ids: Ints
    stop_ids: Ints
    max_tokens: int
    request: int = -1
    has_processors: bool = False
    paced: bool = False
    delta: int = 0  # added to its positions where heads are turned, once its prompt is computed
    adapter: int = 0
    heard: int = 0  # the serial of the item that its tokens attend to; 0: none
    automaton: int = 0
    state: int = 0

    @property
    def freezing_ids(self) -> Ints:
        """The stop ids that the device judges by itself. Of a row that follows a grammar the host
        judges all: one in the middle of its text ends nothing. What ends a text of its grammar
        stops a row there."""
        return self.stop_ids[:0] if self.sampling.guided else self.stop_ids


@dataclass(frozen=True, slots=True)
class Targets:
    """Tokens to score: token_ids[i] as the one after the slice's token number offsets[i].

    Offsets rise, and one may come several times (the first tokens of several continuations).
    `num_top` of the likeliest tokens are wanted beside each, -1 for all, and behind these the
    tokens named[i]; -1 there names none, and what stands beside it means nothing. With `as_asked`
    the scores follow the engine's logprobs_mode; otherwise they are always log-probabilities.
    """

    offsets: Ints
    token_ids: Ints
    num_top: int = 0
    as_asked: bool = True
    named: Ints | None = None  # [targets, k]

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Encode:
    """An item that a plan has encoded before its pass; the rows stay under its serial."""

    serial: int
    kind: str
    count: int
    arrays: dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class MediaPart:
    """Tokens of a slice that take rows of an item for their embedding: the one at offsets[i] takes
    row first + i."""

    serial: int
    first: int
    offsets: Ints


@dataclass(frozen=True, slots=True)
class Slice:
    """Tokens of one row to compute: positions start .. start + len(token_ids).

    `sample_into` names the rows that each draw a token from the logits of the last position:
    empty for a chunk that does not reach the end, several for the siblings of n > 1.
    `targets` are tokens whose logprobs are wanted, `hidden` says which last hidden states are.

    The last `num_guessed` tokens are guesses at what the row, the only one in `sample_into`, will
    draw. It draws at each of these positions and at the one before them, and keeps what it drew
    as far as the guesses were right, and one token more: of [7 8 9 5] with 3 guesses that draws
    [8 9 4 1] it keeps [8 9 4]. KV of wrong guesses is written over when the row goes on.
    """

    row: int
    start: int
    token_ids: Ints
    sample_into: tuple[int, ...] = ()
    targets: Targets | None = None
    num_guessed: int = 0
    hidden: HiddenKind | None = None
    media: tuple[MediaPart, ...] = ()
    coordinates: Ints | None = None  # [3, tokens], where positions have three
    two_way: Ints | None = None  # [n, 2] positions: tokens from one up to the other see each other


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """Rows that feed their last token, which the device holds, at `positions`."""

    rows: Ints = field(default_factory=no_ints)
    positions: Ints = field(default_factory=no_ints)

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class Assigned:
    """Changes of the block tables: entry indices[i] of row rows[i] is now, in the table of group g
    of layers, block blocks[g * n + i], for n entries. -1: nothing that will be read."""

    rows: Ints = field(default_factory=no_ints)
    indices: Ints = field(default_factory=no_ints)
    blocks: Ints = field(default_factory=no_ints)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Decode rows whose last token the host chose: row rows[i] feeds tokens[i], at its position in
    the plan, whatever the device drew for it, and however far it went on from that."""

    rows: Ints = field(default_factory=no_ints)
    tokens: Ints = field(default_factory=no_ints)


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """Decode rows whose tables begin with `blocks`, read once for all; groups as in Assigned."""

    blocks: Ints
    rows: Ints


@dataclass(frozen=True, slots=True)
class Masks:
    """Allowed tokens of some rows: bit t % 32 of bits[i, t // 32] allows token t for rows[i].

    With a ticket the bits may still be being filled while the pass is computed:
    `Handles.wait_for` returns when they can be read. A row whose mask failed has all bits zero,
    and so draws nothing.
    """

    rows: Ints
    bits: npt.NDArray[np.uint32]
    ticket: int = 0


MOST_GUESSES, MOST_HISTORY = 15, 32_768  # of a row in a pass; tokens they are looked up among


@dataclass(frozen=True, slots=True)
class Guessing:
    """The decode rows of a plan may guess: in each pass a row feeds its last token and up to
    `count` more, those that followed when its last tokens occurred before (at least `shortest` of
    them agree, at most `longest` are compared). It draws at each, and keeps tokens as for a Slice
    with guesses. Decode row i looks among the first lengths[i] of tokens[i], its last ones, and
    what it writes from here on; one with length 0 does not guess."""

    count: int
    shortest: int
    longest: int
    tokens: Ints  # [rows, longest of them]
    lengths: Ints


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The next forward pass, or `repeat` decode passes in a row, as data.

    Rows in `released` compute nothing: each draws a token from logits that an earlier plan made
    and that its processors are done with. For rows in `searched`, which are among those that
    draw, the `num_candidates` likeliest tokens come home: the host chooses. Decode rows in `single`
    draw one token, in the first of the passes, and rest in the others: the host must see it before
    they can go on. One that was in it once is in it for as long as it decodes.

    So it is with decode rows in `tried`, but that tried[i] may go on for num_tried[i] passes by
    what the device draws for it, without all that edits its logits. Each of these passes counts as
    far as the row draws the same when its logits are edited, and the first in which it does not
    counts, too: with that other token. KV behind it is written over when the row goes on. All
    together try at most MOST_TRIED passes, or one each. Not with `guessing`, nor are slices. One
    with a mask draws by it in the first pass, and without it in the others; the host judges how far
    that counts, and tells by `chosen` where the row goes on.
    """

    starts: tuple[RowStart, ...] = ()
    ends: Ints = field(default_factory=no_ints)
    assigned: Assigned = field(default_factory=Assigned)
    copies: tuple[tuple[int, int], ...] = ()
    prefill: tuple[Slice, ...] = ()
    decode: DecodeRows = field(default_factory=DecodeRows)
    groups: tuple[PrefixGroup, ...] = ()
    masks: Masks | None = None
    repeat: int = 1
    released: Ints = field(default_factory=no_ints)
    chosen: Chosen = field(default_factory=Chosen)
    searched: Ints = field(default_factory=no_ints)
    num_candidates: int = 0
    single: Ints = field(default_factory=no_ints)
    tried: Ints = field(default_factory=no_ints)
    num_tried: Ints = field(default_factory=no_ints)
    forgotten: Ints = field(default_factory=no_ints)
    encode: tuple[Encode, ...] = ()
    guessing: Guessing | None = None

    @property
    def num_tokens(self) -> int:
        return sum(len(s.token_ids) for s in self.prefill) + len(self.decode) * self.most_drawn

    @property
    def most_drawn(self) -> int:
        """The most tokens that a decode row may get."""
        return self.repeat * (1 + self.guessing.count if self.guessing else 1)

    def sampled_rows(self) -> Ints:
        """The rows a result has tokens for, in its order: slices, decode rows, released."""
        drawn = [row for s in self.prefill for row in s.sample_into]
        return np.concatenate([np.asarray(drawn, np.int32), self.decode.rows, self.released])


@dataclass(frozen=True, slots=True)
class Scores:
    """Tokens and how likely they were, one line each: log-probability and rank (1 = the
    likeliest) of the token, and of the k likeliest tokens there, or of k that were asked for,
    ids and log-probabilities [lines, k]. Arrays, because there may be thousands a step."""

    token_ids: Ints
    logprobs: Floats
    ranks: Ints
    top_ids: Ints
    top_logprobs: Floats

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays())

    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """The fields, in their order."""
        return self.token_ids, self.logprobs, self.ranks, self.top_ids, self.top_logprobs

    def part(self, first: int, last: int, num_top: int | None = None) -> Scores:
        """Lines first .. last, with at most `num_top` of the likeliest tokens."""
        ids, logprobs, ranks, top_ids, top_logprobs = (a[first:last] for a in self.arrays())
        return Scores(ids, logprobs, ranks, top_ids[:, :num_top], top_logprobs[:, :num_top])

    def take(self, lines: npt.NDArray[Any]) -> Scores:
        """Some lines, in this order."""
        return Scores(*(array[lines] for array in self.arrays()))


def join_scores(parts: Sequence[Scores]) -> Scores:
    """The lines of all parts, which have the same number of likeliest tokens."""
    if len(parts) == 1:
        return parts[0]
    return Scores(*(np.concatenate(a) for a in zip(*(p.arrays() for p in parts), strict=True)))


@dataclass(frozen=True, slots=True)
class DrawnScores:
    """Scores of drawn tokens: line i belongs to row lines[i] of the result. A row that drew
    several tokens has several lines, in order."""

    lines: Ints
    scores: Scores


@dataclass(frozen=True, slots=True)
class Candidates:
    """The likeliest tokens of searched rows, best first, of those that their masks allow.

    tokens, logprobs [lines, k] belong to the rows lines[i] of the result. The logprobs are those
    of the raw logits, the forbidden tokens included in their sum; -inf where no token is left.
    """

    lines: Ints
    tokens: Ints
    logprobs: Floats


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a plan produced, row by row in the order of `StepPlan.sampled_rows`:
    tokens [rows, K], the first counts[i] of a row real: fewer than K where the device stopped it,
    or guesses or trials were wrong. `logprobs` has a line per real token of the rows that asked, in
    a block for each number of likeliest tokens asked for. `scored[i]` belongs to prefill slice i,
    one line per target, and so does `hidden[i]`, [tokens, H] or [1, H]. `failed` are rows that
    could draw no further token, their logits not being finite; `errors` says of some what their
    processors did. `held` are rows whose next token is still to be drawn: processors work on
    logits of that number among the Handles. `passes`, of those with guesses, are where a row drew,
    `guessed` what it was fed there. `unencoded` says of items, by serial, why they could not be.
    """

    tokens: Ints
    counts: Ints
    logprobs: tuple[DrawnScores, ...] = ()
    scored: dict[int, Scores] = field(default_factory=dict)
    failed: tuple[int, ...] = ()
    errors: dict[int, str] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)
    candidates: Candidates | None = None
    hidden: dict[int, Floats] = field(default_factory=dict)
    passes: Ints = field(default_factory=no_ints)
    guessed: Ints = field(default_factory=no_ints)
    unencoded: dict[int, str] = field(default_factory=dict)
