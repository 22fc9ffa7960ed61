"""Embedding: token ids to the first hidden state."""

from __future__ import annotations

from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from quire.backends.linear import WeightRows
from quire.backends.ops import Kernels, RowOp
from quire.layers.linear import Linear, Matrix, PlainRows


@runtime_checkable
class Rows(WeightRows, Protocol):
    """A weight whose rows can be read though it was packed."""

    def look_up(self, rows: Tensor, /) -> Tensor:
        """[T] -> [T, H]"""


class Embedding:
    """Rows of a table [V, H]."""

    def __init__(self, kernels: Kernels, table: Matrix | Rows) -> None:
        if not isinstance(table, Tensor | Rows):
            raise TypeError("the table of an embedding must have rows that can be read.")
        self.place: WeightRows
        self.look_up: RowOp
        if isinstance(table, Tensor):
            self.place, self.look_up = PlainRows(table), partial(kernels.embed, table=table)
        else:
            self.place, self.look_up = table, table.look_up

    def __call__(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """Token ids [T] at their positions [T] -> [T, H], memory of its own."""
        return self.look_up(token_ids)


class ScaledEmbedding(Embedding):
    """Rows times a number, which is rounded to their type first, as it was in training."""

    def __init__(self, kernels: Kernels, table: Matrix | Rows, scale: float) -> None:
        super().__init__(kernels, table)
        self.scale = scale

    def __call__(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        rows = super().__call__(token_ids, positions)
        return rows.mul_(float(torch.tensor(self.scale, dtype=rows.dtype)))


class PositionedEmbedding(Embedding):
    """Rows, each with the row of its position added from another table."""

    def __init__(
        self, kernels: Kernels, table: Matrix | Rows, positions: Tensor, offset: int
    ) -> None:
        super().__init__(kernels, table)
        self.positions, self.offset = positions, offset

    def __call__(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        rows = super().__call__(token_ids, positions)
        return rows.add_(self.positions.index_select(0, positions + self.offset))


def shared_table(table: Matrix, head: Linear) -> Matrix | Rows:
    """What serves a head and an embedding that are tied: the head's packed weight if its rows can
    be read, so that it is kept only once."""
    return head.multiply if isinstance(head.multiply, Rows) else table
