"""Embedding: token ids to the first hidden state."""

from __future__ import annotations

from torch import Tensor

from quire.kernels.ops import Kernels


class Embedding:
    """Rows of a table [V, H]."""

    def __init__(self, kernels: Kernels, table: Tensor) -> None:
        self.kernels, self.table = kernels, table

    def __call__(self, token_ids: Tensor) -> Tensor:
        return self.kernels.embed(token_ids, self.table)
