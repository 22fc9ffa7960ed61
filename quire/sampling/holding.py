"""HoldingSampler: a Sampler whose rows may have logits processors of their own.

A row with processors draws from what these return. They begin in their lanes as soon as the
logits are there, and the other rows draw meanwhile. Whoever is ready then draws with them; the
logits of a row that is not are *held*: it draws nothing in this step, and in a later one, named
by the plan, from the held logits, without being computed again. What it draws is the same
either way, because noise belongs to a position and not to a step.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

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

# How long rows that are ready wait for processors, as a share of the time the step took so far.
# Beside rows without processors little: it is their time. Among themselves as long again, since
# a step with few rows takes nearly as long as one with many.
PATIENCE_BESIDE_OTHERS, PATIENCE_ALONE = 0.05, 1.0
MOST_PATIENCE = 0.1  # seconds
# At least so many for a row's first token: a thread must be woken up, and a row that misses the
# plan behind its prompt is left with as many tokens when the others are done. Once in its life.
FIRST_PATIENCE = 0.005
LOOKS_AGAIN = 0.001  # seconds, while waiting costs nothing


class Patience:
    """How long rows that are ready wait for processors in each draw of a step: a share of what the
    step took, and all the time before that in which waiting is free."""

    def __init__(
        self,
        since: float,
        *,
        beside_others: bool,
        least: float = 0.0,
        is_free: Callable[[], bool] = lambda: False,
    ) -> None:
        """The step began then. `beside_others`: others wait for these rows."""
        self._since, self._least, self._is_free = since, least, is_free
        self._share = PATIENCE_BESIDE_OTHERS if beside_others else PATIENCE_ALONE
        self._until: float | None = None

    def begin(self) -> None:
        """Another draw. A row that tried ahead has many, of which each is worth as much: given up
        for the time that those before it took, it would be left behind by the others."""
        self._until = None

    def left(self) -> float:
        """Seconds to wait now; at most 0 if there are none left."""
        now = time.perf_counter()
        if self._until is None:
            if self._is_free():
                return LOOKS_AGAIN
            seconds = max(self._share * (now - self._since), self._least)
            self._until = now + min(seconds, MOST_PATIENCE)
        return self._until - now


@dataclass(frozen=True, slots=True)
class _Held:
    """Of logits that are with a row's processors: the token drawn from them stands at `position`,
    and where the row's logprobs are of logits as the model gave them, `raw` are those."""

    raw: Tensor | None
    position: int


# Which of some rows have logits, these, [of them, vocabulary], and why the others have none.
Processed = tuple[list[int], Tensor | None, Mapping[int, QuireError]]


class Holding(ABC):
    """Draws for all rows; those with processors when these are done, wherever they run."""

    def __init__(self, sampler: Sampler, *, max_rows: int, device: torch.device) -> None:
        self._sampler, self._device = sampler, device
        self._has: Flags = np.zeros(max_rows, np.bool_)
        self._held: dict[int, _Held] = {}

    @abstractmethod
    def _begin(self, logits: Tensor, lines: Longs, rows: Ints) -> None:
        """Start the processors of these rows, each on its own of these lines of logits."""

    @abstractmethod
    def _settle(self, made: Merged, lines: Longs, rows: Ints, masks: Masks | None) -> None:
        """The rows of these lines, whose processors began, draw if these are done, or are held."""

    @abstractmethod
    def _processed(self, rows: list[int]) -> Processed:
        """What the processors of these rows, which are done, made of their logits."""

    def draw_by(self, kernels: DrawLines) -> None:
        self._sampler.draw_by(kernels)

    def start(self, start: RowStart) -> None:
        self.end(np.asarray([start.row], np.int32))
        self._sampler.start(start)
        self._has[start.row] = start.has_processors

    def end(self, rows: Ints) -> None:
        """The rows are free again; what is held for them is of no more use."""
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
        """The next token of rows[i] from logits[i], or, in `held`, what it still waits for."""
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
        """The next token of each of these rows, from its held logits, which are processed."""
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
            made.add(lines, drawn)
            self._drew(rows[lines], drawn.tokens)
        return made.sampled()

    @abstractmethod
    def _drew(self, rows: Ints, tokens: Tensor) -> None:
        """These rows drew these tokens from processed logits."""

    def position_held(self, row: int) -> int:
        """Where the token will stand that the row draws from its held logits."""
        return self._held[row].position


class HoldingSampler(Holding):
    """With processors in this process: rows that are ready wait for them as long as there is
    patience; without, by the time since the last draw."""

    def __init__(
        self, sampler: Sampler, *, max_rows: int, device: torch.device, handles: Handles
    ) -> None:
        super().__init__(sampler, max_rows=max_rows, device=device)
        self._handles, self._lanes = handles, CallThreads()
        self._processors: dict[int, RowProcessors] = {}
        self._calls: dict[int, Call[Tensor]] = {}
        self._last_step = time.perf_counter()
        self._patience: Patience | None = None  # of the draw that is made

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
    """The logits of lines as the model gave them, as far as somebody wants these."""
    if all(line is None for line in raw):
        return None
    return torch.stack([p if r is None else r for p, r in zip(processed, raw, strict=True)])


@dataclass(slots=True)
class Merged:
    """The result of several draws, put together line by line; tokens at home."""

    tokens: Tensor
    logprobs: list[DrawnScores] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    held: dict[int, int] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, num_lines: int) -> Merged:
        return cls(torch.zeros(num_lines, dtype=torch.int64))

    def add(self, lines: Longs, sampled: Sampled) -> None:
        self.tokens[torch.from_numpy(lines)] = sampled.tokens.cpu()
        theirs = lines.astype(np.int32)
        self.logprobs += [DrawnScores(theirs[b.lines], b.scores) for b in sampled.logprobs]
        self.failed += [int(lines[i]) for i in sampled.failed]
        self.errors.update({int(lines[i]): one for i, one in sampled.errors.items()})

    def fail(self, line: int, error: QuireError) -> None:
        self.failed.append(line)
        self.errors[line] = str(error)

    def sampled(self) -> Sampled:
        failed = tuple(sorted(self.failed))
        return Sampled(self.tokens, tuple(self.logprobs), failed, self.held, self.errors)
