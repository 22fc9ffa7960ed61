"""What a pass has of media: rows of encoders among its tokens, coordinates of its positions, and
sounds that its tokens hear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from quire.backends.two_way import TwoWaySpan
from quire.executor.shelf import Shelf
from quire.layers.batch import Batch
from quire.layers.cross import Heard
from quire.layers.host_arrays import on_device
from quire.request import Ints
from quire.step import RowStart, Slice, StepPlan, no_ints

Longs = npt.NDArray[np.int64]
_NONE = no_ints()


class Deltas:
    """What each row adds to its positions, where these have three coordinates: behind a prompt they
    are three equal ones, at the position and what its row adds."""

    def __init__(self, num_rows: int) -> None:
        self.of_rows = np.zeros(num_rows, np.int64)
        self._any = False  # row ever had one

    def start(self, starts: Sequence[RowStart]) -> None:
        for start in starts:
            self.of_rows[start.row] = start.delta
            self._any |= start.delta != 0

    def moves(self, one: Slice) -> bool:
        """Whether a slice has other coordinates than its positions."""
        return one.coordinates is not None or bool(self.of_rows[one.row])

    def coordinates(
        self, prefill: Sequence[Slice], rows: Ints, positions: Ints, num_tokens: int
    ) -> Longs | None:
        """[3, num_tokens] of these slices, then of decode rows at their positions, then zeros;
        None where they are the positions themselves."""
        if not self._any and all(one.coordinates is None for one in prefill):
            return None
        parts = [self._of(one) for one in prefill]
        decoded = np.tile(positions + self.of_rows[rows], (3, 1))
        made = np.concatenate([*parts, decoded], 1).astype(np.int64)
        return np.pad(made, ((0, 0), (0, num_tokens - made.shape[1])))

    def _of(self, one: Slice) -> npt.NDArray[Any]:
        if one.coordinates is not None:
            return one.coordinates
        at = np.arange(one.start, one.start + len(one.token_ids)) + self.of_rows[one.row]
        return np.tile(at, (3, 1))


class PassMedia:
    """For one runner: the shelf, and what its rows add to their positions."""

    def __init__(self, shelf: Shelf | None, num_rows: int) -> None:
        self.shelf, self.deltas = shelf or Shelf(None), Deltas(num_rows)
        self._heard = np.zeros(num_rows, np.int64)  # the serial of what each row hears; 0: nothing
        self._some_hear = False  # rows, so far

    def begin(self, plan: StepPlan) -> None:
        """Before a plan's passes are laid out."""
        self.deltas.start(plan.starts)
        for start in plan.starts:
            self._heard[start.row] = start.heard
            self._some_hear |= start.heard > 0
        if self.shelf.pages is not None:
            self.shelf.pages.assign(plan)

    def encode(self, plan: StepPlan) -> None:
        """Before its passes are computed."""
        self.shelf.change(plan)

    def encode_each(self, plan: StepPlan) -> dict[int, str]:
        """The same; says what could not be encoded, and why, and leaves it out of the passes."""
        return self.shelf.change_each(plan)

    def is_fixed(self, prefill: Sequence[Slice]) -> bool:
        """Whether a pass over these slices may be captured: all that they have of media is rows in
        place of embeddings."""
        apart = any(one.two_way is not None or self.deltas.moves(one) for one in prefill)
        if apart or self._some_hear:
            return False
        return not has_media(prefill) or self.shelf.is_flat

    def heard(self, prefill: Sequence[Slice], rows: Ints, query_starts: Tensor) -> Heard | None:
        """By the tokens of these slices and decode rows, where sounds do not lie in pages."""
        if not self._some_hear:
            return None
        serials = self._heard[[*(one.row for one in prefill), *rows.tolist()]]
        return self.shelf.heard(serials, query_starts)

    def joined(
        self, batch: Batch, prefill: Sequence[Slice], rows: Ints = _NONE, at: Ints = _NONE
    ) -> Batch:
        """The batch of these slices, and of decode rows at their positions, with what it has of
        media."""
        moved = self.deltas.coordinates(prefill, rows, at, len(batch.positions))
        if moved is not None:
            batch = replace(batch, coordinates=on_device(moved, batch.positions.device))
        if not has_media(prefill):
            return batch
        starts = np.cumsum([0, *(len(one.token_ids) for one in prefill)]).tolist()
        overlay, two_way = self.shelf.overlay(prefill, starts), _two_way(prefill, starts)
        return replace(batch, overlay=overlay, two_way=two_way)


def has_media(prefill: Sequence[Slice]) -> bool:
    return any(one.media for one in prefill)


def _two_way(prefill: Sequence[Slice], starts: Sequence[int]) -> tuple[TwoWaySpan, ...]:
    """Which tokens of a pass see each other; slice i begins with its token starts[i]."""
    spans = []
    for number, one in enumerate(prefill):
        for start, end in [] if one.two_way is None else one.two_way.tolist():
            first = max(start, one.start)
            at = starts[number] + first - one.start
            spans.append(TwoWaySpan(number, at, first, start, end))
    return tuple(spans)
