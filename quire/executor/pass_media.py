"""What a pass has of media: rows of encoders among its tokens, coordinates of its positions, and
sounds that its tokens hear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from quire.backends.two_way import TwoWaySpan
from quire.executor.coordinates import Deltas
from quire.executor.shelf import Shelf
from quire.layers.batch import Batch
from quire.layers.cross import Heard
from quire.layers.host_arrays import on_device
from quire.request import Ints
from quire.step import Slice, StepPlan, no_ints

_NONE = no_ints()


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
