"""Embedding: token ids to the first hidden state."""

from __future__ import annotations

import math
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from quire.backends.linear import WeightRows
from quire.backends.ops import Kernels, RowOp
from quire.layers.linear import Linear, Matrix, PlainRows


@runtime_checkable
class Rows(WeightRows, Protocol):
    """A packed weight whose rows can still be read."""

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
        """Token ids [T] and their positions [T] -> [T, H], in new memory."""
        return self.look_up(token_ids)


class ScaledEmbedding(Embedding):
    """Rows times a number, which is rounded to the rows' dtype first, as it was in training."""

    def __init__(self, kernels: Kernels, table: Matrix | Rows, scale: float) -> None:
        super().__init__(kernels, table)
        self.scale = scale

    def __call__(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        rows = super().__call__(token_ids, positions)
        return rows.mul_(float(torch.tensor(self.scale, dtype=rows.dtype)))


class NormedEmbedding(Embedding):
    """Rows, normed."""

    def __init__(self, kernels: Kernels, table: Matrix | Rows, norm: RowOp) -> None:
        super().__init__(kernels, table)
        self.norm = norm

    def __call__(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        return self.norm(super().__call__(token_ids, positions))


def waves(count: int, width: int, offset: int) -> Tensor:
    """The table of Waves (layer_parts/embeddings.py) for so many positions. [count, width]"""
    half = width // 2
    rates = torch.exp(torch.arange(half) * -(math.log(10_000) / max(half - 1, 1)))
    angles = torch.arange(offset, offset + count).float()[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class PositionedEmbedding(Embedding):
    """Rows times a number, plus the row of each token's position from a second table."""

    def __init__(
        self,
        kernels: Kernels,
        table: Matrix | Rows,
        positions: Tensor,
        offset: int,
        scale: float = 1.0,
    ) -> None:
        super().__init__(kernels, table)
        self.positions, self.offset, self.scale = positions, offset, scale

    def __call__(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        rows = super().__call__(token_ids, positions)
        if self.scale != 1.0:
            rows = rows.mul_(self.scale)
        return rows.add_(self.positions.index_select(0, positions + self.offset))


def shared_table(table: Matrix, head: Linear) -> Matrix | Rows:
    """The table for an embedding that is tied to the head: the head's packed weight if its rows can
    be read, so that the weight is kept once; else `table`."""
    return head.multiply if isinstance(head.multiply, Rows) else table
