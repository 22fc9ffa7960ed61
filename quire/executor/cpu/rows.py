"""DeviceRows: what stays on the device for each row between steps.

The last token a row drew, its block table, how much it has written and when it must stop.
A freed row is poisoned: its table points nowhere (-1), so a stale use fails instead of reading
somebody else's blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.request import Ints
from quire.step import Assigned, Chosen, RowStart

NOWHERE = -1


class DeviceRows:
    """State of `num_rows` rows as tensors, one entry per row."""

    def __init__(self, num_rows: int, device: torch.device, num_groups: int = 1) -> None:
        """With a block table for each group of layers: tables [num_groups, num_rows, width]."""
        self.device = device
        self.last_tokens = torch.zeros(num_rows, dtype=torch.int64, device=device)
        shape = (num_groups, num_rows, 16)
        self.tables = torch.full(shape, NOWHERE, dtype=torch.int32, device=device)
        self.num_outputs = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.min_tokens = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.max_tokens = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.stop_ids = torch.full((num_rows, 4), NOWHERE, dtype=torch.int64, device=device)
        self.frozen = torch.ones(num_rows, dtype=torch.bool, device=device)

    def start(self, start: RowStart) -> None:
        row, stops = start.row, len(start.freezing_ids)
        self.stop_ids = _widened(self.stop_ids, stops)
        last = start.output_ids if len(start.output_ids) else start.prompt_ids
        self.last_tokens[row] = int(last[-1])
        self.num_outputs[row] = len(start.output_ids)
        self.min_tokens[row] = start.sampling.min_tokens
        self.max_tokens[row] = start.max_tokens
        self.stop_ids[row] = NOWHERE
        self.stop_ids[row, :stops] = torch.tensor(start.freezing_ids, dtype=torch.int64)
        self.frozen[row] = False

    def end(self, rows: Ints) -> None:
        gone = self._put(rows)
        self.tables[:, gone] = NOWHERE
        self.last_tokens[gone] = NOWHERE
        self.frozen[gone] = True

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
        return ~self.frozen[self._put(rows)]

    def accept(self, rows: Ints, tokens: Tensor, failed: Tensor) -> None:
        """Each row drew a token; one that must stop, or whose logits failed, freezes."""
        at = self._put(rows)
        tokens = tokens.to(torch.int64)
        written = self.num_outputs[at] + 1
        stops = (self.stop_ids[at] == tokens[:, None]).any(-1) & (written >= self.min_tokens[at])
        self.last_tokens[at] = tokens
        self.num_outputs[at] = written
        self.frozen[at] = stops | (written >= self.max_tokens[at]) | failed

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
