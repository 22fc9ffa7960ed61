"""RowColumns: the integers of rows between steps as a tensor, and the rule by which rows stop.

Torch ops that both executors use. The same rule as a kernel is in backends/triton/steps.py; the
host's, which also knows stop strings and grammars, is in scheduler/stopping.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.steps.row_schema import (
    EMPTIED,
    FAILED,
    LEFT_NONE,
    NOWHERE,
    NUM_CHANGING,
    NUM_COLUMNS,
    RESTS,
    Column,
)


class RowColumns:
    """ints [columns, num_rows] int64, numbered in row_schema.py. At first all rows are frozen."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self.ints = torch.zeros(NUM_COLUMNS, num_rows, dtype=torch.int64, device=device)
        self.rest_all()

    def rest_all(self) -> None:
        self.ints[Column.FROZEN] = 1
        self.ints[Column.STOP_IDS :] = NOWHERE

    def live(self, rows: Tensor) -> Tensor:
        """Which of these rows still draw tokens."""
        return self.ints[Column.FROZEN].index_select(0, rows) == 0

    def accept(self, rows: Tensor, tokens: Tensor, positions: Tensor, failed: Tensor) -> Tensor:
        """Each live row has drawn tokens[i] for positions[i]. Returns the token of each row,
        FAILED, LEFT_NONE, or RESTS for a row that drew nothing. `failed`: whether or why it failed.

        A row freezes at a stop id once it has min_tokens outputs, at max_tokens, and if logits
        failed.
        """
        ints = self.ints.index_select(1, rows)
        live = ints[Column.FROZEN] == 0
        written = ints[Column.NUM_OUTPUTS] + live
        stops = (ints[Column.STOP_IDS :] == tokens).any(0) & (written >= ints[Column.MIN_TOKENS])
        ends = stops | (written >= ints[Column.MAX_TOKENS]) | (failed != 0)
        changed = torch.stack(
            [
                torch.where(live, tokens, ints[Column.LAST_TOKEN]),
                torch.where(live, positions, ints[Column.POSITION]),
                written,
                ints[Column.FROZEN] | ends,
            ]
        )
        self.ints[:NUM_CHANGING].index_copy_(1, rows, changed)
        why_not = torch.where(failed == EMPTIED, LEFT_NONE, FAILED)
        return torch.where(live, torch.where(failed != 0, why_not, tokens), RESTS)
