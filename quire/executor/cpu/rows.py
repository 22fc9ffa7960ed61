"""DeviceRows: what stays on the device for each row between steps.

The last token a row drew, its block table, how much it has written and when it must stop.
A freed row is poisoned: its table points nowhere (-1), so a stale use fails instead of reading
another's blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.executor.row_columns import RowColumns
from quire.request import Ints
from quire.step import Assigned, Chosen, RowStart
from quire.steps.row_schema import NOWHERE, Column, row_ints


class DeviceRows(RowColumns):
    """State of `num_rows` rows as tensors, one entry per row."""

    def __init__(self, num_rows: int, device: torch.device, num_groups: int = 1) -> None:
        """With a block table for each group of layers: tables [num_groups, num_rows, width]."""
        super().__init__(num_rows, device)
        self.device = device
        shape = (num_groups, num_rows, 16)
        self.tables = torch.full(shape, NOWHERE, dtype=torch.int32, device=device)

    @property
    def last_tokens(self) -> Tensor:
        return self.ints[Column.LAST_TOKEN]

    def start(self, start: RowStart) -> None:
        self.ints[:, start.row] = torch.tensor(row_ints(start))

    def end(self, rows: Ints) -> None:
        gone = self._put(rows)
        self.tables[:, gone] = NOWHERE
        self.ints[Column.LAST_TOKEN, gone] = NOWHERE
        self.ints[Column.FROZEN, gone] = 1

    def assign(self, assigned: Assigned) -> None:
        if not len(assigned.rows):
            return
        self.tables = _widened(self.tables, int(assigned.indices.max()) + 1)
        blocks = torch.from_numpy(assigned.blocks).to(self.device, torch.int32)
        at = self._put(assigned.rows), self._put(assigned.indices)
        self.tables[:, *at] = blocks.view(len(self.tables), -1)

    def choose(self, chosen: Chosen) -> None:
        """These rows go on from the tokens the host chose."""
        if len(chosen.rows):
            self.last_tokens[self._put(chosen.rows)] = self._put(chosen.tokens)

    def is_live(self, rows: Ints) -> Tensor:
        """Which of these rows still write."""
        return self.live(self._put(rows))

    def drew(self, rows: Ints, tokens: Tensor, failed: Tensor) -> None:
        """Each row drew a token; one that must stop, or whose logits failed, freezes."""
        at = self._put(rows)
        positions = self.ints[Column.POSITION].index_select(0, at) + 1
        self.accept(at, tokens.to(torch.int64), positions, failed)

    def _put(self, rows: Ints) -> Tensor:
        return torch.from_numpy(rows).to(self.device, torch.int64)


def _widened(table: Tensor, width: int) -> Tensor:
    """The table with at least `width` columns; twice as many as before when it must grow."""
    *lines, old = table.shape
    if width <= old:
        return table
    wider = table.new_full((*lines, max(width, 2 * old)), NOWHERE)
    wider[..., :old] = table
    return wider
