"""The media of a pass: encoder rows among its tokens, coordinates of its positions, and sounds that
its tokens attend to."""

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
    """The offset of each row's positions, for models whose positions have three coordinates: after
    the prompt all three are equal, the position plus the offset of the row."""

    def __init__(self, num_rows: int) -> None:
        self.of_rows = np.zeros(num_rows, np.int64)
        self._any = False  # a row has had an offset

    def start(self, starts: Sequence[RowStart]) -> None:
        for start in starts:
            self.of_rows[start.row] = start.delta
            self._any |= start.delta != 0

    def moves(self, one: Slice) -> bool:
        """Whether the coordinates of a slice differ from its positions."""
        return one.coordinates is not None or bool(self.of_rows[one.row])

    def coordinates(
        self, prefill: Sequence[Slice], rows: Ints, positions: Ints, num_tokens: int
    ) -> Longs | None:
        """[3, num_tokens]: of these slices, of decode rows at their positions, then zeros. None if
        all are equal to the positions."""
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
    """The media of one runner's passes: the shelf of encoded items, and offsets of positions."""

    def __init__(self, shelf: Shelf | None, num_rows: int) -> None:
        self.shelf, self.deltas = shelf or Shelf(None), Deltas(num_rows)
        self._heard = np.zeros(num_rows, np.int64)  # the serial of each row's sound; 0: none
        self._some_hear = False  # some row has had a sound

    def begin(self, plan: StepPlan) -> None:
        """Called before the plan's passes are prepared."""
        self.deltas.start(plan.starts)
        for start in plan.starts:
            self._heard[start.row] = start.heard
            self._some_hear |= start.heard > 0
        if self.shelf.pages is not None:
            self.shelf.pages.assign(plan)

    def encode(self, plan: StepPlan) -> None:
        """Called before the plan's passes are computed."""
        self.shelf.change(plan)

    def encode_each(self, plan: StepPlan) -> dict[int, str]:
        """As `encode`; returns what could not be encoded, and why. Passes leave it out."""
        return self.shelf.change_each(plan)

    def is_fixed(self, prefill: Sequence[Slice]) -> bool:
        """Whether a pass over these slices may be a CUDA graph: media only replace embeddings."""
        apart = any(one.two_way is not None or self.deltas.moves(one) for one in prefill)
        if apart or self._some_hear:
            return False
        return not has_media(prefill) or self.shelf.is_flat

    def heard(self, prefill: Sequence[Slice], rows: Ints, query_starts: Tensor) -> Heard | None:
        """The sounds of these slices and decode rows; None if there are none."""
        if not self._some_hear:
            return None
        serials = self._heard[[*(one.row for one in prefill), *rows.tolist()]]
        return self.shelf.heard(serials, query_starts)

    def joined(
        self, batch: Batch, prefill: Sequence[Slice], rows: Ints = _NONE, at: Ints = _NONE
    ) -> Batch:
        """The batch of these slices, and decode rows at their positions, with its media."""
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
    """The spans of a pass whose tokens see each other. Slice i begins at token starts[i]."""
    spans = []
    for number, one in enumerate(prefill):
        for start, end in [] if one.two_way is None else one.two_way.tolist():
            first = max(start, one.start)
            at = starts[number] + first - one.start
            spans.append(TwoWaySpan(number, at, first, start, end))
    return tuple(spans)
