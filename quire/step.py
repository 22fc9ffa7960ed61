"""The only words scheduler and executor exchange: a StepPlan goes down, a StepResult comes back.

Plain frozen data over numpy arrays that nobody writes after they are made. The executor runs
plans in the order it got them, so a block freed in plan i may be taken in plan i + 1.
Within one plan the order is: ends, starts, assigned blocks, copies, then the forward pass. In
the pass every slice and decode row writes its KV before any of them reads, so a slice may read
blocks that an earlier slice of the same plan fills.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from quire.request import Ints

if TYPE_CHECKING:
    from quire.sampling_params import SamplingParams

Floats = npt.NDArray[np.float32]


def no_ints() -> Ints:
    return np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class RowStart:
    """A sequence takes a row: everything about it that stays on the device.

    `noise_key` and `sample` key its random numbers, with the position of the token drawn.
    The device stops a row by itself (inside `repeat`) at one of `stop_ids`, once
    `min_tokens` outputs exist, and when `max_tokens` outputs exist.
    """

    row: int
    params: SamplingParams
    noise_key: int
    sample: int
    prompt_ids: Ints
    output_ids: Ints
    stop_ids: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Tokens of one row to compute: positions start .. start + len(token_ids).

    `sample_into` names the rows that each draw a token from the logits of the last position:
    empty for a chunk that does not reach the end, several for the siblings of n > 1.
    `targets`, where prompt logprobs are wanted, holds the token after each position
    (one fewer than token_ids when the prompt ends here).
    """

    row: int
    start: int
    token_ids: Ints
    sample_into: tuple[int, ...] = ()
    targets: Ints | None = None


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


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The next forward pass, or `repeat` decode passes in a row, as data."""

    starts: tuple[RowStart, ...] = ()
    ends: Ints = field(default_factory=no_ints)
    assigned: Assigned = field(default_factory=Assigned)
    copies: tuple[tuple[int, int], ...] = ()
    prefill: tuple[Slice, ...] = ()
    decode: DecodeRows = field(default_factory=DecodeRows)
    groups: tuple[PrefixGroup, ...] = ()
    masks: Masks | None = None
    repeat: int = 1

    @property
    def num_tokens(self) -> int:
        return sum(len(s.token_ids) for s in self.prefill) + len(self.decode) * self.repeat

    def sampled_rows(self) -> Ints:
        """The rows a result has tokens for, in its order: slices first, then decode rows."""
        drawn = [row for s in self.prefill for row in s.sample_into]
        return np.concatenate([np.asarray(drawn, np.int32), self.decode.rows])


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position: of the token there, and of the likeliest ones."""

    token_id: int
    logprob: float
    rank: int  # 1 = the likeliest
    top_ids: Ints
    top_logprobs: Floats


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a plan produced, row by row in the order of `StepPlan.sampled_rows`.

    tokens [rows, K], of which the first counts[i] of a row are real: a row that the device
    stopped has fewer than K. `logprobs[i]` holds one entry per real token, for rows that asked.
    `scored[i]` belongs to prefill slice i, one entry per target. `failed` names rows (by index
    into `tokens`) whose logits were not finite; their tokens mean nothing.
    """

    tokens: Ints
    counts: Ints
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    scored: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    failed: tuple[int, ...] = ()
