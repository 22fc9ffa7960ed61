"""DeviceRows: what the device keeps for each row between steps.

That is the last token, the block table, how much the row has written, and when it must stop. The
table of a row that ended is filled with -1, so that wrong use fails and does not read other blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.executor.row_columns import RowColumns
from quire.layers.kv_groups import ONE_TABLE, BlockTables
from quire.request import Ints
from quire.step import Assigned, Chosen, RowStart
from quire.steps.row_schema import NOWHERE, Column, row_ints


class DeviceRows(RowColumns):
    """State of `num_rows` rows as tensors, one entry per row."""

    def __init__(self, num_rows: int, device: torch.device, seen: BlockTables = ONE_TABLE) -> None:
        """tables [tables, num_rows, width]; `seen`: what each of them is of."""
        super().__init__(num_rows, device)
        self.device, self.seen = device, seen
        shape = (len(seen), num_rows, 16)
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
        blocks = torch.from_numpy(self.seen.seen(assigned.blocks)).to(self.device, torch.int32)
        at = self._put(assigned.rows), self._put(assigned.indices)
        self.tables[:, *at] = blocks.view(len(self.tables), -1)

    def choose(self, chosen: Chosen) -> None:
        """Set the last tokens of rows for which the host has chosen one."""
        if len(chosen.rows):
            self.last_tokens[self._put(chosen.rows)] = self._put(chosen.tokens)

    def is_live(self, rows: Ints) -> Tensor:
        """Which of these rows still draw tokens."""
        return self.live(self._put(rows))

    def drew(self, rows: Ints, tokens: Tensor, failed: Tensor) -> None:
        """Each row has drawn a token. Rows that must stop or whose logits failed freeze."""
        at = self._put(rows)
        positions = self.ints[Column.POSITION].index_select(0, at) + 1
        self.accept(at, tokens.to(torch.int64), positions, failed)

    def _put(self, rows: Ints) -> Tensor:
        return torch.from_numpy(rows).to(self.device, torch.int64)


def _widened(table: Tensor, width: int) -> Tensor:
    """The table with at least `width` columns; it at least doubles when it grows."""
    *lines, old = table.shape
    if width <= old:
        return table
    wider = table.new_full((*lines, max(width, 2 * old)), NOWHERE)
    wider[..., :old] = table
    return wider
