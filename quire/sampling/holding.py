"""HoldingSampler: a Sampler whose rows may have logits processors of their own.

A row with processors draws from what these return. They begin in their lanes as soon as the
logits are there, and the other rows draw meanwhile. Whoever is ready then draws with them; the
logits of a row that is not are *held*: it draws nothing in this step, and in a later one, named
by the plan, from the held logits, without being computed again. What it draws is the same
either way, because noise belongs to a position and not to a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from quire.errors import QuireError
from quire.request import Ints
from quire.sampling.call_threads import Call, CallThreads
from quire.sampling.processors import RowProcessors
from quire.sampling.rows import Flags
from quire.sampling.sampled import DrawLines, Sampled
from quire.sampling.sampler import Sampler
from quire.step import DrawnScores, Masks, RowStart
from quire.steps.handles import Handles

# How long rows that are ready wait for processors, as a share of the time the step took so far.
# Beside rows without processors little: it is their time. Among themselves as long again, since
# a step with few rows takes nearly as long as one with many.
PATIENCE_BESIDE_OTHERS, PATIENCE_ALONE = 0.05, 1.0
MOST_PATIENCE = 0.1  # seconds
LOOKS_AGAIN = 0.001  # seconds, while waiting costs nothing


class Patience:
    """How long rows that are ready wait for processors in each draw of a step: a share of what the
    step took, and all the time before that in which waiting is free."""

    def __init__(
        self, since: float, *, beside_others: bool, is_free: Callable[[], bool] = lambda: False
    ) -> None:
        """The step began then. `beside_others`: others wait for these rows."""
        self._since, self._is_free = since, is_free
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
            self._until = now + min(self._share * (now - self._since), MOST_PATIENCE)
        return self._until - now


@dataclass(frozen=True, slots=True)
class _Held:
    """Logits that are with a row's processors; the token drawn from them stands at `position`."""

    call: Call[Tensor]
    raw: Tensor | None  # as the model gave them, where the row's logprobs are of those
    position: int


class HoldingSampler:
    """Draws for all rows; those with processors when these are done."""

    def __init__(
        self, sampler: Sampler, *, max_rows: int, device: torch.device, handles: Handles
    ) -> None:
        self._sampler, self._device, self._handles = sampler, device, handles
        self._lanes = CallThreads()
        self._has: Flags = np.zeros(max_rows, np.bool_)
        self._processors: dict[int, RowProcessors] = {}
        self._held: dict[int, _Held] = {}
        self._last_step = time.perf_counter()

    def draw_by(self, kernels: DrawLines) -> None:
        self._sampler.draw_by(kernels)

    def start(self, start: RowStart) -> None:
        self.end(np.asarray([start.row], np.int32))
        self._sampler.start(start)
        if start.has_processors:
            processors = self._handles.request(start.request).processors
            self._has[start.row] = True
            self._processors[start.row] = RowProcessors(start, processors)

    def end(self, rows: Ints) -> None:
        """The rows are free again; what is held for them is of no more use."""
        self._sampler.end(rows)
        for row in rows[self._has[rows]].tolist():
            del self._processors[row]
            if row in self._held:
                self._held.pop(row).call.cancel()
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
        """The next token of rows[i] from logits[i], or, in `held`, what it still waits for, if
        that takes longer than there is patience: without, by the time since the last draw."""
        theirs = np.flatnonzero(self._has[rows])
        if not len(theirs):
            sampled = self._sampler.sample(logits, rows, positions, masks)
            self._last_step = time.perf_counter()
            return sampled
        for line in theirs.tolist():
            self._begin(int(rows[line]), logits[line], int(positions[line]))
        made = Merged.of(len(rows))
        others = np.flatnonzero(~self._has[rows])
        if len(others):
            at = torch.from_numpy(others).to(self._device)
            made.add(
                others, self._sampler.sample(logits[at], rows[others], positions[others], masks)
            )
        patience = patience or Patience(self._last_step, beside_others=len(others) > 0)
        patience.begin()
        calls = [self._held[row].call for row in rows[theirs].tolist()]
        while (seconds := patience.left()) > 0 and not all(call.done() for call in calls):
            self._lanes.wait(calls, seconds)
        done = np.array([self._held[int(row)].call.done() for row in rows[theirs]], np.bool_)
        if done.any():
            made.add(theirs[done], self.sample_held(rows[theirs[done]], masks))
        for line in theirs[~done].tolist():
            made.held[line] = self._handles.hold(self._held[int(rows[line])].call)
        self._last_step = time.perf_counter()
        return made.sampled()

    def sample_held(self, rows: Ints, masks: Masks | None) -> Sampled:
        """The next token of each of these rows, from its held logits, which are processed."""
        made = Merged.of(len(rows))
        held = [self._held.pop(row) for row in rows.tolist()]
        outcomes = [one.call.outcome() for one in held]
        for line, (row, outcome) in enumerate(zip(rows.tolist(), outcomes, strict=True)):
            if outcome.error is not None:
                made.fail(line, self._processors[row].failure(outcome.error))
        processed = [outcome.made for outcome in outcomes if outcome.made is not None]
        if not processed:
            return made.sampled()
        lines = np.array([i for i, outcome in enumerate(outcomes) if outcome.made is not None])
        raw = [held[i].raw for i in lines]
        sampled = self._sampler.sample(
            torch.stack(processed),
            rows[lines],
            np.array([held[i].position for i in lines], np.int32),
            masks,
            raw=raw_lines(processed, raw),
        )
        made.add(lines, sampled)
        for row, token in zip(rows[lines].tolist(), sampled.tokens.tolist(), strict=True):
            self._processors[row].append(token)
        return made.sampled()

    def position_held(self, row: int) -> int:
        """Where the token will stand that the row draws from its held logits."""
        return self._held[row].position

    def _begin(self, row: int, logits: Tensor, position: int) -> None:
        call = self._processors[row].begin(logits, self._lanes)
        raw = logits.clone() if self._sampler.keeps_raw(row) else None
        self._held[row] = _Held(call, raw, position)


def raw_lines(processed: list[Tensor], raw: list[Tensor | None]) -> Tensor | None:
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

    def add(self, lines: np.ndarray[tuple[int], np.dtype[np.int64]], sampled: Sampled) -> None:
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
