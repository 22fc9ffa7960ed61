"""Rows that the sampler draws for, beside those that the device draws for by itself.

Such a row goes through the same passes as all others, and the device draws a token for it that
means nothing. Its logits are kept, and the sampler draws from them: when the plan's result is
asked for, while the device computes the next plan, so that a row with a logits processor costs the
others nothing. The token it drew is then put in the place of the other one; the scheduler plans
nothing for the row before it has seen that (`RowStart.paced`).

A row that is not paced (its edits found no room on the device) cannot wait: the sampler draws
for it between the device's draw and its judgement, and everybody waits for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from quire.executor.cuda.device_rows import DeviceColumns
from quire.executor.cuda.upload import Upload
from quire.executor.samplers import LateSamples
from quire.request import Ints
from quire.sampling.sampler import Sampled
from quire.step import Masks, StepPlan, no_ints
from quire.steps.row_schema import FAILED, RESTS


@dataclass(frozen=True, slots=True)
class SomeLines:
    """Lines of a block of logits, under this name in an upload: `lines` are their numbers in the
    result, and the token that rows[i] draws will stand at positions[i]."""

    name: str
    lines: Ints
    rows: Ints
    positions: Ints

    def __bool__(self) -> bool:
        return len(self.lines) > 0


@dataclass(slots=True, eq=False)
class LateDraws:
    """What the sampler still has to draw for one plan, from logits as they were then."""

    masks: Masks | None
    beside_others: bool  # rows that the device draws for are in the plan
    released: Ints
    first_released: int  # their first line in the result
    blocks: list[tuple[SomeLines, Tensor]] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)  # rows that have ended since
    ready: torch.cuda.Event | None = None

    def __bool__(self) -> bool:
        return bool(self.blocks) or len(self.released) > 0


@dataclass(frozen=True, slots=True)
class LateTokens:
    """What came of it: of line lines[i] of the result the token, or FAILED, or RESTS for a row
    whose logits are with its processors. The result has `num_lines`, those released included."""

    num_lines: int
    lines: Ints
    tokens: Ints
    drawn: list[tuple[Sampled, Ints]]  # with the number that each of its lines has in the result


class SamplerDraws:
    """Draws with the sampler for rows of plans that the device runs."""

    def __init__(self, columns: DeviceColumns, sampler: LateSamples) -> None:
        self._columns, self._sampler = columns, sampler
        self._pending: list[LateDraws] = []
        self._stream: torch.cuda.Stream | None = None
        if columns.device.type == "cuda":
            # With work of its own, so that it waits for no later plan.
            self._stream = torch.cuda.Stream(columns.device)  # type: ignore[no-untyped-call]

    def begin(self, plan: StepPlan) -> LateDraws:
        rows = plan.sampled_rows()
        first_released = len(rows) - len(plan.released)
        others = bool((~self._columns.special[rows[:first_released]]).any())
        return LateDraws(plan.masks, others, plan.released, first_released)

    def pack(
        self, upload: Upload, name: str, rows: Ints, positions: Ints, first: int, *, late: bool
    ) -> SomeLines:
        """Which lines of a block, that draw for `rows` and begin with line `first` of the result,
        the sampler draws for, late or at once; before the upload is sent."""
        columns = self._columns
        mine = np.flatnonzero(columns.special[rows] & (columns.paced[rows] == late))
        upload.add(name, mine)
        lines = mine.astype(np.int32) + np.int32(first)
        return SomeLines(name, lines, rows[mine], positions[mine])

    def keep(self, late: LateDraws, some: SomeLines, upload: Upload, logits: Tensor) -> None:
        """Some lines of these logits, for later."""
        if some:
            late.blocks.append((some, logits.index_select(0, upload.take(some.name))))

    def send(self, late: LateDraws) -> LateDraws | None:
        """All of the plan is launched: from here on it may be drawn; None if there is nothing."""
        if not late:
            return None
        if self._stream is not None:
            late.ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            late.ready.record()
        self._pending.append(late)
        return late

    def forget(self, plan: StepPlan) -> None:
        """What was to be drawn for rows that end with this plan, or begin again, is of no use."""
        for late in self._pending:
            late.gone.update(plan.ends.tolist(), (start.row for start in plan.starts))

    def clear(self) -> None:
        self._pending.clear()

    def now(
        self, some: SomeLines, upload: Upload, logits: Tensor, step: int, masks: Masks | None
    ) -> tuple[Tensor, Sampled]:
        """What some lines of a block drew, and which of its lines they are."""
        at = upload.take(some.name)
        positions = some.positions + np.int32(step)
        return at, self._sampler.sample(logits.index_select(0, at), some.rows, positions, masks)

    @torch.inference_mode()
    def draw(self, late: LateDraws) -> LateTokens:
        """What was left for later. Waits for the logits."""
        if late in self._pending:
            self._pending.remove(late)
        else:  # every row ended meanwhile
            late.gone.update(late.released.tolist(), *(b.rows.tolist() for b, _ in late.blocks))
        with self._beside(late):
            drawn = [one for block in late.blocks for one in self._draw_block(late, *block)]
            drawn += self._draw_released(late)
            found = [(sampled, some, self._tokens(sampled)) for sampled, some in drawn]
        num_lines = late.first_released + len(late.released)
        if not found:
            return LateTokens(num_lines, no_ints(), no_ints(), [])
        lines, rows, positions, tokens = (
            np.concatenate(parts)
            for parts in zip(
                *((some.lines, some.rows, some.positions, made) for _, some, made in found),
                strict=True,
            )
        )
        self._put(rows[tokens >= 0], tokens[tokens >= 0], positions[tokens >= 0])
        drawn_lines = [(sampled, some.lines) for sampled, some, _ in found]
        return LateTokens(num_lines, lines, tokens, drawn_lines)

    @contextmanager
    def _beside(self, late: LateDraws) -> Iterator[None]:
        """On a stream of our own, after the pass that made the logits."""
        if self._stream is None or late.ready is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(late.ready)
            yield

    def _draw_block(
        self, late: LateDraws, some: SomeLines, logits: Tensor
    ) -> list[tuple[Sampled, SomeLines]]:
        left = [i for i, row in enumerate(some.rows.tolist()) if row not in late.gone]
        if not left:
            return []
        if len(left) < len(some.rows):
            logits = logits[left]
            parts = (some.lines[left], some.rows[left], some.positions[left])
            some = SomeLines(some.name, *parts)
        sampled = self._sampler.sample(
            logits, some.rows, some.positions, late.masks, beside_others=late.beside_others
        )
        return [(sampled, some)]

    def _draw_released(self, late: LateDraws) -> list[tuple[Sampled, SomeLines]]:
        """From logits that an earlier plan held, and that processors are done with."""
        left = [i for i, row in enumerate(late.released.tolist()) if row not in late.gone]
        if not left:
            return []
        rows = late.released[left]
        lines = (np.array(left) + late.first_released).astype(np.int32)
        held = [self._sampler.position_held(row) for row in rows.tolist()]
        some = SomeLines("released", lines, rows, np.array(held, np.int32))
        return [(self._sampler.sample_held(rows, late.masks), some)]

    @staticmethod
    def _tokens(sampled: Sampled) -> Ints:
        """The tokens, waiting for them; or why a line has none."""
        tokens = sampled.tokens.cpu().numpy().astype(np.int32)
        tokens[list(sampled.failed)] = FAILED
        tokens[list(sampled.held)] = RESTS
        return tokens

    def _put(self, rows: Ints, tokens: Ints, positions: Ints) -> None:
        """These rows go on from these tokens, whatever the device drew for them."""
        if not len(rows):
            return
        upload = Upload(self._columns.device)
        upload.add("rows", rows)
        upload.add("drawn", np.stack([tokens, positions]))
        upload.send()
        self._columns.go_on_from(upload.take("rows"), upload.take("drawn").view(2, -1))
