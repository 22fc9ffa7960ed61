"""HoldingSampler: a Sampler whose rows may have logits processors of their own.

A row with processors draws from the logits that they return. They begin in their lanes as soon as
the logits are there, and the other rows draw meanwhile. Then the rows draw whose processors are
done. The logits of other rows are *held*: such a row draws nothing in this step, but in a later one
that names it in the plan, from the held logits, without being computed again. It draws the same
token either way, because noise belongs to a position and not to a step.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.errors import QuireError
from quire.request import Ints
from quire.sampling.call_threads import Call, CallThreads
from quire.sampling.processors import RowProcessors, settle
from quire.sampling.rows import Flags
from quire.sampling.sampled import DrawLines, Sampled
from quire.sampling.sampler import Sampler
from quire.step import DrawnScores, Masks, RowStart
from quire.steps.handles import Handles

Longs = npt.NDArray[np.int64]

# How long ready rows wait for processors, as a share of the time the step took so far. Short beside
# rows without processors, whose time it is. Among rows with processors as long again, because a
# step with few rows takes nearly as long as one with many.
PATIENCE_BESIDE_OTHERS, PATIENCE_ALONE = 0.05, 1.0
MOST_PATIENCE = 0.1  # seconds
# The least wait for a row's first token, once per row. A thread must be woken up for it, and a row
# that misses the plan after its prompt would still be writing when the others are done.
FIRST_PATIENCE = 0.005
LOOKS_AGAIN = 0.001  # seconds, while waiting costs nothing


class Patience:
    """How long ready rows wait for processors in each draw of a step: a share of the time that the
    step took, and before that as long as waiting costs nothing."""

    def __init__(
        self,
        since: float,
        *,
        beside_others: bool,
        least: float = 0.0,
        is_free: Callable[[], bool] = lambda: False,
    ) -> None:
        """`since`: when the step began. `beside_others`: rows without processors wait, too."""
        self._since, self._least, self._is_free = since, least, is_free
        self._share = PATIENCE_BESIDE_OTHERS if beside_others else PATIENCE_ALONE
        self._until: float | None = None

    def begin(self) -> None:
        """Another draw begins. A row that tried ahead has several draws in a step, and each may
        wait as long: otherwise the earlier ones would leave no time for it."""
        self._until = None

    def left(self) -> float:
        """Seconds to wait now; 0 or less if the time is over."""
        now = time.perf_counter()
        if self._until is None:
            if self._is_free():
                return LOOKS_AGAIN
            seconds = max(self._share * (now - self._since), self._least)
            self._until = now + min(seconds, MOST_PATIENCE)
        return self._until - now


@dataclass(frozen=True, slots=True)
class _Held:
    """Logits that are with a row's processors: the token drawn from them will be at `position`.
    `raw` are the model's own logits, if the row's logprobs are taken from these."""

    raw: Tensor | None
    position: int


# (indices of rows that have logits, these logits [rows, vocabulary], {index: error of others}).
Processed = tuple[list[int], Tensor | None, Mapping[int, QuireError]]


class Holding(ABC):
    """Draws for all rows; for rows with processors when these are done, wherever they run."""

    def __init__(self, sampler: Sampler, *, max_rows: int, device: torch.device) -> None:
        self._sampler, self._device = sampler, device
        self._has: Flags = np.zeros(max_rows, np.bool_)
        self._held: dict[int, _Held] = {}

    @abstractmethod
    def _begin(self, logits: Tensor, lines: Longs, rows: Ints) -> None:
        """Start the processors of these rows, each on its own of these lines of logits."""

    @abstractmethod
    def _settle(self, made: Merged, lines: Longs, rows: Ints, masks: Masks | None) -> None:
        """Draw for the rows of these lines whose processors are done; the others are held."""

    @abstractmethod
    def _processed(self, rows: list[int]) -> Processed:
        """What the processors of these rows, which are done, returned."""

    def draw_by(self, kernels: DrawLines) -> None:
        self._sampler.draw_by(kernels)

    def start(self, start: RowStart) -> None:
        self.end(np.asarray([start.row], np.int32))
        self._sampler.start(start)
        self._has[start.row] = start.has_processors

    def end(self, rows: Ints) -> None:
        """The rows are free again; their held logits are dropped."""
        self._sampler.end(rows)
        for row in rows[self._has[rows]].tolist():
            self._held.pop(row, None)
        self._has[rows] = False

    def sample(
        self,
        logits: Tensor,
        rows: Ints,
        positions: Ints,
        masks: Masks | None,
        *,
        patience: Patience | None = None,
    ) -> Sampled:
        """The next token of rows[i] from logits[i]; rows that must wait are in `held`."""
        theirs = np.flatnonzero(self._has[rows])
        if not len(theirs):
            return self._sampler.sample(logits, rows, positions, masks)
        for line in theirs.tolist():
            row = int(rows[line])
            raw = logits[line].clone() if self._sampler.keeps_raw(row) else None
            self._held[row] = _Held(raw, int(positions[line]))
        self._begin(logits, theirs, rows[theirs])
        made = Merged.of(len(rows))
        others = np.flatnonzero(~self._has[rows])
        if len(others):
            at = torch.from_numpy(others).to(self._device)
            drawn = self._sampler.sample(logits[at], rows[others], positions[others], masks)
            made.add(others, drawn)
        self._settle(made, theirs, rows[theirs], masks)
        return made.sampled()

    def sample_held(self, rows: Ints, masks: Masks | None) -> Sampled:
        """The next token of each of these rows, from its held logits, whose processors are done."""
        made = Merged.of(len(rows))
        held = [self._held.pop(row) for row in rows.tolist()]
        at, logits, failed = self._processed(rows.tolist())
        for line, error in failed.items():
            made.fail(line, error)
        if logits is not None and at:
            lines, theirs = np.array(at), [held[line] for line in at]
            drawn = self._sampler.sample(
                logits,
                rows[lines],
                np.array([one.position for one in theirs], np.int32),
                masks,
                raw=raw_lines(logits, [one.raw for one in theirs]),
            )
            # Processed logits were checked: they are finite or -inf.
            made.add(lines, replace(drawn, left_none=drawn.failed))
            self._drew(rows[lines], drawn.tokens)
        return made.sampled()

    @abstractmethod
    def _drew(self, rows: Ints, tokens: Tensor) -> None:
        """Note the tokens that these rows drew from processed logits."""

    def position_held(self, row: int) -> int:
        """The position of the token that the row will draw from its held logits."""
        return self._held[row].position


class HoldingSampler(Holding):
    """A Holding whose processors run in this process. Rows that are ready wait for them by the
    given Patience, or else by the time since the last draw."""

    def __init__(
        self, sampler: Sampler, *, max_rows: int, device: torch.device, handles: Handles
    ) -> None:
        super().__init__(sampler, max_rows=max_rows, device=device)
        self._handles, self._lanes = handles, CallThreads()
        self._processors: dict[int, RowProcessors] = {}
        self._calls: dict[int, Call[Tensor]] = {}
        self._last_step = time.perf_counter()
        self._patience: Patience | None = None  # of the current draw

    def start(self, start: RowStart) -> None:
        super().start(start)
        if start.has_processors:
            processors = self._handles.request(start.request).processors
            self._processors[start.row] = RowProcessors(start, processors)

    def end(self, rows: Ints) -> None:
        for row in rows[self._has[rows]].tolist():
            del self._processors[row]
            if row in self._calls:
                self._calls.pop(row).cancel()
        super().end(rows)

    def sample(
        self,
        logits: Tensor,
        rows: Ints,
        positions: Ints,
        masks: Masks | None,
        *,
        patience: Patience | None = None,
    ) -> Sampled:
        self._patience = patience
        sampled = super().sample(logits, rows, positions, masks)
        self._last_step = time.perf_counter()
        return sampled

    def _begin(self, logits: Tensor, lines: Longs, rows: Ints) -> None:
        stream = torch.cuda.current_stream(logits.device) if logits.is_cuda else None
        for line, row in zip(lines.tolist(), rows.tolist(), strict=True):
            self._calls[row] = self._processors[row].begin(logits[line], self._lanes, stream)

    def _settle(self, made: Merged, lines: Longs, rows: Ints, masks: Masks | None) -> None:
        beside_others = len(lines) < len(made.tokens)
        patience = self._patience or Patience(self._last_step, beside_others=beside_others)
        patience.begin()
        calls = [self._calls[row] for row in rows.tolist()]
        while (seconds := patience.left()) > 0 and not all(call.done() for call in calls):
            self._lanes.wait(calls, seconds)
        done = np.array([call.done() for call in calls], np.bool_)
        if done.any():
            made.add(lines[done], self.sample_held(rows[done], masks))
        for i in np.flatnonzero(~done).tolist():
            made.held[int(lines[i])] = self._handles.hold(calls[i])

    def _processed(self, rows: list[int]) -> Processed:
        calls = [self._calls.pop(row) for row in rows]
        return settle([self._processors[row] for row in rows], calls)

    def _drew(self, rows: Ints, tokens: Tensor) -> None:
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            self._processors[row].append(token)


def raw_lines(processed: Tensor, raw: list[Tensor | None]) -> Tensor | None:
    """The model's own logits for lines that need them, the processed ones for others; or None."""
    if all(line is None for line in raw):
        return None
    return torch.stack([p if r is None else r for p, r in zip(processed, raw, strict=True)])


@dataclass(slots=True)
class Merged:
    """The results of several draws, merged line by line; tokens are on the host."""

    tokens: Tensor
    logprobs: list[DrawnScores] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    held: dict[int, int] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    left_none: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, num_lines: int) -> Merged:
        return cls(torch.zeros(num_lines, dtype=torch.int64))

    def add(self, lines: Longs, sampled: Sampled) -> None:
        self.tokens[torch.from_numpy(lines)] = sampled.tokens.cpu()
        theirs = lines.astype(np.int32)
        self.logprobs += [DrawnScores(theirs[b.lines], b.scores) for b in sampled.logprobs]
        self.failed += [int(lines[i]) for i in sampled.failed]
        self.left_none += [int(lines[i]) for i in sampled.left_none]
        self.errors.update({int(lines[i]): one for i, one in sampled.errors.items()})

    def fail(self, line: int, error: QuireError) -> None:
        self.failed.append(line)
        self.errors[line] = str(error)

    def sampled(self) -> Sampled:
        failed = tuple(sorted(self.failed))
        none = tuple(sorted(self.left_none))
        return Sampled(self.tokens, tuple(self.logprobs), failed, self.held, self.errors, none)
