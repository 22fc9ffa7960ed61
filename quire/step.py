"""The only words scheduler and executor exchange: a StepPlan goes down, a StepResult comes back.

Plain frozen data over numpy arrays that nobody writes after they are made. The executor runs
plans in the order it got them, so a block freed in plan i may be taken in plan i + 1.
Within one plan the order is: ends, starts, assigned blocks, copies, chosen tokens, then the
forward pass. In the pass every slice and decode row writes its KV before any of them reads, so a
slice may read blocks that an earlier slice of the same plan fills.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from quire.request import Ints

if TYPE_CHECKING:
    from quire.errors import QuireError
    from quire.sampling_params import SamplingParams

Floats = npt.NDArray[np.float32]


def no_ints() -> Ints:
    return np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class RowStart:
    """A sequence takes a row: everything about it that stays on the device.

    `noise_key` and `sample` key its random numbers, with the position of the token drawn.
    The device stops a row by itself (inside `repeat`) at one of `stop_ids`, once
    `min_tokens` outputs exist, and when `max_tokens` outputs exist. `processors` edit the
    row's logits before anything else does.
    """

    row: int
    params: SamplingParams
    noise_key: int
    sample: int
    prompt_ids: Ints
    output_ids: Ints
    stop_ids: tuple[int, ...]
    max_tokens: int
    processors: tuple[Callable[..., Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Targets:
    """Tokens to score: token_ids[i] as the one after the slice's token number offsets[i].

    Offsets rise, and one may come several times (the first tokens of several continuations).
    `num_top` of the likeliest tokens are wanted beside each, -1 for all. With `as_asked` the
    scores follow the engine's logprobs_mode; otherwise they are always log-probabilities.
    """

    offsets: Ints
    token_ids: Ints
    num_top: int = 0
    as_asked: bool = True

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Slice:
    """Tokens of one row to compute: positions start .. start + len(token_ids).

    `sample_into` names the rows that each draw a token from the logits of the last position:
    empty for a chunk that does not reach the end, several for the siblings of n > 1.
    `targets` are tokens whose logprobs are wanted.

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


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """Rows that feed their last token, which the device holds, at `positions`."""

    rows: Ints = field(default_factory=no_ints)
    positions: Ints = field(default_factory=no_ints)

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class Assigned:
    """Changes of the block table: entry `index` of `row` is now block `block`."""

    rows: Ints = field(default_factory=no_ints)
    indices: Ints = field(default_factory=no_ints)
    blocks: Ints = field(default_factory=no_ints)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Decode rows whose last token the host chose: row rows[i] feeds tokens[i], whatever the
    device drew for it."""

    rows: Ints = field(default_factory=no_ints)
    tokens: Ints = field(default_factory=no_ints)


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """Decode rows whose block tables all begin with `blocks`; these are read once for all."""

    blocks: Ints
    rows: Ints


def _filled() -> None:
    """For masks that were ready when they were made."""


@dataclass(frozen=True, slots=True)
class Masks:
    """Allowed tokens of some rows: bit t % 32 of bits[i, t // 32] allows token t for rows[i].

    The bits may still be being filled while the pass is computed: call `wait` before reading
    them. A row whose mask failed has all bits zero, and so draws nothing.
    """

    rows: Ints
    bits: npt.NDArray[np.uint32]
    wait: Callable[[], object] = _filled


class HeldLogits(Protocol):
    """The logits of a row, while the row's processors are at work on them."""

    def done(self) -> bool:
        """Whether the row can draw from them: a later plan may name it in `released`."""

    def wait(self, seconds: float) -> None:
        """Until these or others are done, at most so long."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The next forward pass, or `repeat` decode passes in a row, as data.

    Rows in `released` compute nothing: each draws a token from logits that an earlier plan made
    and that its processors are done with. For rows in `searched`, which are among those that
    draw, the `num_candidates` likeliest tokens come home: the host chooses.
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

    @property
    def num_tokens(self) -> int:
        return sum(len(s.token_ids) for s in self.prefill) + len(self.decode) * self.repeat

    def sampled_rows(self) -> Ints:
        """The rows a result has tokens for, in its order: slices, decode rows, released."""
        drawn = [row for s in self.prefill for row in s.sample_into]
        return np.concatenate([np.asarray(drawn, np.int32), self.decode.rows, self.released])


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position: of the token there, and of the likeliest ones."""

    token_id: int
    logprob: float
    rank: int  # 1 = the likeliest
    top_ids: Ints
    top_logprobs: Floats


@dataclass(frozen=True, slots=True)
class Scores:
    """What became of some targets, one line each: log-probability and rank of the token, and
    the likeliest tokens there [lines, k]. Arrays, because there may be thousands a step."""

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

    def entries(self) -> list[TokenLogprobs]:
        """Line by line, as objects."""
        plain = (array.tolist() for array in (self.token_ids, self.logprobs, self.ranks))
        lines = zip(*plain, self.top_ids, self.top_logprobs, strict=True)
        return [TokenLogprobs(*line) for line in lines]


def join_scores(parts: Sequence[Scores]) -> Scores:
    """The lines of all parts, which have the same number of likeliest tokens."""
    if len(parts) == 1:
        return parts[0]
    return Scores(*(np.concatenate(a) for a in zip(*(p.arrays() for p in parts), strict=True)))


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
    """What a plan produced, row by row in the order of `StepPlan.sampled_rows`.

    tokens [rows, K], of which the first counts[i] of a row are real: a row that the device
    stopped, or whose guesses were wrong, has fewer than K. `logprobs[i]` holds one entry per real
    token, for rows that asked. `scored[i]` belongs to prefill slice i, one line per target.
    `failed` names rows (by index into `tokens`) whose logits were not finite; their tokens mean
    nothing. `errors` tells of some of these why. `held` are rows that drew nothing yet: their
    processors are at work.
    """

    tokens: Ints
    counts: Ints
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    scored: dict[int, Scores] = field(default_factory=dict)
    failed: tuple[int, ...] = ()
    errors: dict[int, QuireError] = field(default_factory=dict)
    held: dict[int, HeldLogits] = field(default_factory=dict)
    candidates: Candidates | None = None
