"""Embedding: token ids to the first hidden state."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from quire.backends.ops import Kernels
from quire.layers.linear import Linear, Matrix


@runtime_checkable
class Rows(Protocol):
    """A weight whose rows can be read though it was packed."""

    def look_up(self, rows: Tensor, /) -> Tensor:
        """[T] -> [T, H]"""


class Embedding:
    """Rows of a table [V, H]."""

    def __init__(self, kernels: Kernels, table: Matrix | Rows) -> None:
        if not isinstance(table, Tensor | Rows):
            raise TypeError("the table of an embedding must have rows that can be read.")
        self.kernels = kernels
        self.table: Tensor | Rows = table

    def __call__(self, token_ids: Tensor) -> Tensor:
        if isinstance(self.table, Tensor):
            return self.kernels.embed(token_ids, self.table)
        return self.table.look_up(token_ids)


def shared_table(table: Matrix, head: Linear) -> Matrix | Rows:
    """What serves a head and an embedding that are tied: the head's packed weight if its rows can
    be read, so that it is kept only once."""
    return head.multiply if isinstance(head.multiply, Rows) else table
