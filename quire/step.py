"""All that scheduler and executor exchange: a StepPlan goes down, a StepResult comes back.

Plain frozen data, numbers and numpy arrays that are not written after they are made, so that both
can go to another process or into a file (steps/codec.py). Things that cannot are named by a number
and found in the executor's Handles. Plans run in their order: a block freed in plan i may be taken
in plan i + 1.

Within one plan the order is: ends, starts, assigned blocks, copies, chosen tokens, encoded media
(those `forgotten` first), then the forward pass. In the pass every slice and decode row writes its
KV before any of them reads, so a slice may read blocks that an earlier slice of the plan fills.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from quire.params.row_sampling import RowSampling
from quire.request import HiddenKind, Ints

Floats = npt.NDArray[np.float32]

MOST_TRIED = 512  # lines of logits of a plan that wait for the host: 160 MB of a large vocabulary


def no_ints() -> Ints:
    return np.empty(0, np.int32)


class RowStart(msgspec.Struct, frozen=True, gc=False):
    """A sequence takes a row: everything about it that stays on the device.

    `noise_key` and `sample` key its random numbers, with the position of the token drawn.
    The device stops a row by itself (inside `repeat`) at one of `freezing_ids`, once
    `sampling.min_tokens` outputs exist, and when `max_tokens` outputs exist. `request` is its
    number in the executor's Handles; with `has_processors` the functions found there edit the
    row's logits before anything else does. `waits_for_host`: each of its tokens has reached the
    host before a plan asks for the next; while it decodes it is in `StepPlan.single` or `tried`.
    `adapter` is the number in Handles of the LoRA adapter that the row is computed with, 0: none.
    `automaton` is the number there of the grammar that the device follows by itself, 0 where it is
    given masks or has no grammar, and `state` the state the row is in; see steps/automata.py.
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
    waits_for_host: bool = False
    delta: int = 0  # added to its rotary positions, once its prompt is computed
    adapter: int = 0
    heard: int = 0  # the serial of the item that its tokens attend to; 0: none
    automaton: int = 0
    state: int = 0

    @property
    def freezing_ids(self) -> Ints:
        """The stop ids that the device judges by itself. In a row with a grammar the host judges
        all, because an id in the middle of its text ends nothing; there the device stops the row
        where the text of the grammar ends."""
        return self.stop_ids[:0] if self.sampling.guided else self.stop_ids


@dataclass(frozen=True, slots=True)
class Targets:
    """Tokens to score: token_ids[i] as the one after the slice's token number offsets[i].

    Offsets rise, and one may come several times (the first tokens of several continuations).
    Beside each are wanted `num_top` of the likeliest tokens (-1: all), and after them the tokens
    named[i]; the score of a -1 there means nothing. With `as_asked` the scores follow the
    engine's logprobs_mode; otherwise they are always log-probabilities.
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
    """An item of media to encode before the pass; its encoded rows are kept by its serial."""

    serial: int
    kind: str
    count: int
    arrays: dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class MediaPart:
    """Tokens of a slice whose embeddings are rows of an item: the token at offsets[i] takes row
    first + i."""

    serial: int
    first: int
    offsets: Ints


class Slice(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one row to compute: positions start .. start + len(token_ids).

    `sample_into` names the rows that each draw a token from the logits of the last position: empty
    for a chunk that ends before, several for siblings of n > 1. `targets` are tokens to score,
    `hidden` says which hidden states are wanted, of tokens from `hidden_from` on (0: all).

    The last `num_guessed` tokens are guesses at what the row, the only one in `sample_into`, will
    draw. It draws at each of these positions and at the one before them. It keeps its draws as far
    as the guesses were right, and one more: with guesses [8 9 5] after [7] and draws [8 9 4 1] it
    keeps [8 9 4]. KV of wrong guesses is written over when the row goes on.
    """

    row: int
    start: int
    token_ids: Ints
    sample_into: tuple[int, ...] = ()
    targets: Targets | None = None
    num_guessed: int = 0
    hidden: HiddenKind | None = None
    hidden_from: int = 0
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
    """Changes of the block tables, n entries: in the table of layer group g, entry indices[i] of
    row rows[i] is now block blocks[g * n + i]. -1: an entry that will not be read."""

    rows: Ints = field(default_factory=no_ints)
    indices: Ints = field(default_factory=no_ints)
    blocks: Ints = field(default_factory=no_ints)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Decode rows whose last token the host chose: row rows[i] feeds tokens[i], at its position in
    the plan. What the device drew for the row, and how far it went from there, does not count."""

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

    With a ticket, threads may still be writing the bits while the pass is computed:
    `Handles.wait_for` returns when they can be read. A row whose mask failed has only zeros.
    """

    rows: Ints
    bits: npt.NDArray[np.uint32]
    ticket: int = 0


MOST_GUESSES, MOST_HISTORY = 15, 32_768  # per row and pass; tokens in which guesses are looked up


@dataclass(frozen=True, slots=True)
class Guessing:
    """The decode rows of a plan may guess. In each pass a row feeds its last token and up to
    `count` more: those that followed where its last tokens occurred before (at least `shortest` of
    them agree, at most `longest` are compared). It draws at each, and keeps tokens as for a Slice
    with guesses. Decode row i looks in the first lengths[i] of tokens[i], its last tokens so far,
    and in what it writes from here on; with length 0 it does not guess."""

    count: int
    shortest: int
    longest: int
    tokens: Ints  # [rows, longest of them]
    lengths: Ints


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The next forward pass, or `repeat` decode passes in a row, as data.

    Rows in `released` compute nothing: each draws from logits that an earlier plan made and its
    processors have finished with. For rows in `searched`, which are among those that
    draw, the `num_candidates` likeliest tokens are returned, and the host chooses. Decode rows in
    `single` draw one token, in the first pass, and rest in the others: the host must see it before
    they can go on. A row that was in `single` once stays in it for as long as it decodes.

    Rows in `tried` are like those, but tried[i] may go on for num_tried[i] passes by what the
    device draws without the edits of its logits. Each of these passes counts while the row draws
    the same with the edits; the first pass where it does not counts, too, with the token drawn with
    edits. KV after it is written over when the row goes on. All together try at most MOST_TRIED
    passes, or one each. Such a plan has no `guessing` and no slices. A row with a mask uses it in
    the first pass only; the host judges how many of the others count, and says with `chosen` where
    the row goes on.
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
        """The most tokens that a decode row may get from this plan."""
        return self.repeat * (1 + self.guessing.count if self.guessing else 1)

    def sampled_rows(self) -> Ints:
        """The rows a result has tokens for, in its order: slices, decode rows, released."""
        drawn = [row for s in self.prefill for row in s.sample_into]
        return np.concatenate([np.asarray(drawn, np.int32), self.decode.rows, self.released])


@dataclass(frozen=True, slots=True)
class Scores:
    """Tokens and how likely they were, one line each: log-probability and rank (1 = the
    likeliest) of the token; and ids and log-probabilities [lines, k] of the k likeliest tokens
    there, or of k tokens that were asked for. Arrays, because a step may have thousands."""

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
    """The lines of all parts, which must have the same number of likeliest tokens."""
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
    of the raw logits, with the forbidden tokens in their sum; -inf where no token is left.
    """

    lines: Ints
    tokens: Ints
    logprobs: Floats


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a plan produced, row by row in the order of `StepPlan.sampled_rows`. tokens [rows, K]:
    the first counts[i] of line i are real; fewer than K where the device stopped it, or guesses or
    trials were wrong. `logprobs` has a line per real token of the rows that asked, in a block for
    each number of likeliest tokens. `scored[i]` belongs to prefill slice i, one line per target,
    and so does `hidden[i]`, [tokens, H] or [1, H]. `failed` are lines that could draw no further
    token (logits not finite; in `left_none`: no token allowed); `errors` says of some how their
    processors failed. `held` are lines whose processors still work: {line: number in Handles}. With
    guesses, `passes` counts the passes in which each row drew, `guessed` its guesses. `unencoded`
    says why items of media, by serial, could not be encoded.
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
    left_none: tuple[int, ...] = ()
