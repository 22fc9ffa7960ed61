"""Rows for which the sampler draws, beside those for which the device draws by itself.

Such a row goes through the same passes as all others, and the device draws for it as well, without
what only the sampler has. Its logits are kept. When the plan's result is read, the sampler draws
from them, while the device computes later steps, so a row with a logits processor does not slow
others down. In a plan of several steps the row goes on with the device's tokens (`StepPlan.tried`),
and the sampler draws from the logits of one step after the other, as long as it draws the same
tokens. At the first other token, that takes the place of the device's; the scheduler plans nothing
more for the row before it has seen this (`RowStart.waits_for_host`).

A row without that (no span was free for its edits) cannot wait: the sampler draws for it
between the device's draw and accept, and all rows wait for that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from quire.executor.cuda.device_rows import DeviceColumns
from quire.executor.cuda.upload import Upload
from quire.request import Ints
from quire.sampling.holding import FIRST_PATIENCE, Holding, Patience
from quire.sampling.sampled import Sampled
from quire.step import Masks, StepPlan
from quire.steps.row_schema import FAILED, RESTS


@dataclass(frozen=True, slots=True)
class SomeLines:
    """Lines of a block of logits, in an upload under this name. `lines` are their lines in the
    result; the token of rows[i] will have position positions[i]."""

    name: str
    lines: Ints
    rows: Ints
    positions: Ints

    def __bool__(self) -> bool:
        return len(self.lines) > 0


@dataclass(frozen=True, slots=True)
class KeptStep:
    """The logits of the same lines in one step, and the device's tokens for them (or FAILED,
    RESTS). `ready`: the event after both."""

    logits: Tensor
    made: Tensor
    ready: torch.cuda.Event | None


@dataclass(slots=True, eq=False)
class LateDraws:
    """What the sampler still has to draw for one plan, from kept logits."""

    masks: Masks | None
    beside_others: bool  # the plan has rows for which the device draws
    num_begun: int  # the first lines of the result, of rows after their prompts
    released: Ints
    first_released: int  # the line of the first in the result
    blocks: dict[str, tuple[SomeLines, list[KeptStep]]] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)  # rows that ended meanwhile
    launched: torch.cuda.Event | None = None  # the event after the whole plan
    sent: float = 0.0  # time of the launch

    def is_computed(self) -> bool:
        return self.launched is None or bool(self.launched.query())  # type: ignore[no-untyped-call]

    def __bool__(self) -> bool:
        return bool(self.blocks) or len(self.released) > 0


@dataclass(frozen=True, slots=True)
class LateTokens:
    """The sampler's draws: for line lines[i] of the result tokens [lines, steps], then RESTS, or
    FAILED. The result has `num_lines`, with those of released rows."""

    num_lines: int
    lines: Ints
    tokens: Ints
    drawn: list[tuple[Sampled, Ints]]  # each with its lines in the result


class SamplerDraws:
    """Draws with the sampler for rows of plans that the device runs."""

    def __init__(self, columns: DeviceColumns, sampler: Holding) -> None:
        self._columns, self._sampler = columns, sampler
        self._pending: list[LateDraws] = []
        self._stream: torch.cuda.Stream | None = None
        if columns.device.type == "cuda":
            # A stream of its own, so that it does not wait for later plans; with priority, as its
            # work is short and the host waits for it.
            self._stream = torch.cuda.Stream(columns.device, priority=-1)  # type: ignore[no-untyped-call]

    def begin(self, plan: StepPlan) -> LateDraws:
        rows = plan.sampled_rows()
        first_released = len(rows) - len(plan.released)
        others = bool((~self._columns.special[rows[:first_released]]).any())
        num_begun = first_released - len(plan.decode)
        return LateDraws(plan.masks, others, num_begun, plan.released, first_released)

    def pack(
        self, upload: Upload, name: str, rows: Ints, positions: Ints, first: int, *, late: bool
    ) -> SomeLines:
        """The lines of a block (it draws for `rows`, and begins with line `first` of the result)
        for which the sampler draws, late or at once. Called before the upload is sent."""
        columns = self._columns
        mine = np.flatnonzero(columns.special[rows] & (columns.waits_for_host[rows] == late))
        upload.add(name, mine)
        lines = mine.astype(np.int32) + np.int32(first)
        return SomeLines(name, lines, rows[mine], positions[mine])

    def keep(
        self, late: LateDraws, some: SomeLines, upload: Upload, logits: Tensor, made: Tensor
    ) -> None:
        """Keep some lines of logits, and the device's tokens for them. Called step by step."""
        if not some:
            return
        at = upload.take(some.name)
        kept = KeptStep(logits.index_select(0, at), made.index_select(0, at), self._event())
        late.blocks.setdefault(some.name, (some, []))[1].append(kept)

    def _event(self) -> torch.cuda.Event | None:
        """An event after all work that is launched so far."""
        if self._stream is None:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event

    def send(self, late: LateDraws) -> LateDraws | None:
        """Called when the whole plan is launched. None if there is nothing to draw."""
        if not late:
            return None
        late.launched, late.sent = self._event(), time.perf_counter()
        self._pending.append(late)
        return late

    def forget(self, plan: StepPlan) -> None:
        """Drop draws for rows that this plan ends or begins again."""
        for late in self._pending:
            late.gone.update(plan.ends.tolist(), (start.row for start in plan.starts))

    def clear(self) -> None:
        self._pending.clear()

    def now(
        self, some: SomeLines, upload: Upload, logits: Tensor, step: int, masks: Masks | None
    ) -> tuple[Tensor, Sampled]:
        """Draw for some lines of a block now. Returns their lines in the block, and the draws."""
        at = upload.take(some.name)
        positions = some.positions + np.int32(step)
        return at, self._sampler.sample(logits.index_select(0, at), some.rows, positions, masks)

    @torch.inference_mode()
    def draw(self, late: LateDraws) -> LateTokens:
        """Draw what was left for later. Waits for the logits."""
        if late in self._pending:
            self._pending.remove(late)
        else:  # cleared: all rows ended meanwhile
            blocks = late.blocks.values()
            late.gone.update(late.released.tolist(), *(some.rows.tolist() for some, _ in blocks))
        drawn = [self._draw_block(late, *block) for block in late.blocks.values()]
        drawn.append(self._draw_released(late))
        width = max(one.tokens.shape[1] for one in drawn)
        tokens = np.concatenate([one.padded(width) for one in drawn])
        some = [one.some for one in drawn]
        lines, rows, positions = (
            np.concatenate(parts)
            for parts in zip(*((s.lines, s.rows, s.positions) for s in some), strict=True)
        )
        self._put(rows, positions, tokens)
        num_lines = late.first_released + len(late.released)
        return LateTokens(num_lines, lines, tokens, [pair for one in drawn for pair in one.sampled])

    @contextmanager
    def _after(self, ready: torch.cuda.Event | None) -> Iterator[None]:
        """On the sampler's stream, after the work that made the logits."""
        if self._stream is None or ready is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            yield

    def _draw_block(self, late: LateDraws, some: SomeLines, steps: list[KeptStep]) -> _Drawn:
        """Draw a token for each line. A line that went on with the device's tokens draws in the
        next step as well, as long as it draws the same."""
        patience = Patience(
            late.sent,
            beside_others=late.beside_others,
            least=FIRST_PATIENCE if some.lines[0] < late.num_begun else 0.0,
            is_free=lambda: not late.is_computed(),
        )
        drawn = _Drawn(some, np.full((len(some.rows), len(steps)), RESTS, np.int32))
        left = np.array([i for i, r in enumerate(some.rows.tolist()) if r not in late.gone], int)
        for number, step in enumerate(steps):
            with self._after(step.ready):
                made = step.made.cpu().numpy()
                if number > 0:  # in the first step no row is frozen
                    left = left[made[left] != RESTS]
                if not len(left):
                    break
                whole = len(left) == len(some.rows)
                sampled = self._sampler.sample(
                    step.logits if whole else step.logits[left],
                    some.rows[left],
                    some.positions[left] + np.int32(number),
                    late.masks,
                    patience=patience,
                )
                tokens = self._tokens(sampled)
            drawn.tokens[left, number] = tokens
            drawn.sampled.append((sampled, some.lines[left]))
            left = left[tokens == made[left]]
        return drawn

    def _draw_released(self, late: LateDraws) -> _Drawn:
        """Draw from logits that an earlier plan held, now that processors have run."""
        left = [i for i, row in enumerate(late.released.tolist()) if row not in late.gone]
        rows, lines = late.released[left], np.array(left, np.int32) + np.int32(late.first_released)
        held = [self._sampler.position_held(row) for row in rows.tolist()]
        some = SomeLines("released", lines, rows, np.array(held, np.int32))
        if not left:
            return _Drawn(some, np.empty((0, 1), np.int32))
        with self._after(late.launched):
            sampled = self._sampler.sample_held(rows, late.masks)
            return _Drawn(some, self._tokens(sampled)[:, None], [(sampled, lines)])

    @staticmethod
    def _tokens(sampled: Sampled) -> Ints:
        """The tokens, FAILED or RESTS; waits for them."""
        tokens = sampled.tokens.cpu().numpy().astype(np.int32)
        tokens[list(sampled.failed)] = FAILED
        tokens[list(sampled.held)] = RESTS
        return tokens

    def _put(self, rows: Ints, positions: Ints, tokens: Ints) -> None:
        """Set each row's last token and position to those of the sampler's last draw."""
        counts = (tokens >= 0).sum(axis=1)
        some = np.flatnonzero(counts)
        if not len(some):
            return
        last = counts[some] - 1
        upload = Upload(self._columns.device)
        upload.add("rows", rows[some])
        upload.add("drawn", np.stack([tokens[some, last], positions[some] + last]))
        upload.send()
        self._columns.go_on_from(upload.take("rows"), upload.take("drawn").view(2, -1))


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The draws of one block: tokens [lines, steps], and the sampler's results."""

    some: SomeLines
    tokens: Ints
    sampled: list[tuple[Sampled, Ints]] = field(default_factory=list)

    def padded(self, num_steps: int) -> Ints:
        more = num_steps - self.tokens.shape[1]
        return np.pad(self.tokens, ((0, 0), (0, more)), constant_values=RESTS)
