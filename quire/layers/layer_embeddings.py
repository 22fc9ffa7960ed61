"""Embeddings of tokens for single layers: made at the beginning of a pass, read by a branch of each
layer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.backends.ops import RowOp
from quire.layers.embedding import Embedding
from quire.layers.linear import Linear
from quire.layers.norm import Norm

_HALF = 2**-0.5


class LayerEmbeddings:
    """Token ids and their embeddings -> one more embedding of each token for each layer."""

    def __init__(
        self,
        table: Embedding,
        product: Linear,
        norm: Norm,
        *,
        width: int,
        of_media: int,
        count: int | None,
    ) -> None:
        """`table` and `product` make those of all layers, one behind the other; `norm` is for one
        of them, which has `width` numbers. `of_media`: as in spec.LayerEmbeddingsPlan. `count`: of
        the table's rows, None if every token has one."""
        self._table, self._product, self._norm, self._width = table, product, norm, width
        self.of_media, self._count = of_media, count

    def __call__(self, token_ids: Tensor, positions: Tensor, embedded: Tensor) -> Tensor:
        """[T], [T] and [T, H] -> [T, layers, width]"""
        count, hidden = embedded.shape
        made = self._product(embedded).mul_(1 / math.sqrt(hidden))
        normed = self._norm(made.view(count, -1, self._width))
        known = torch.where(token_ids < self._count, token_ids, 0) if self._count else token_ids
        own = self._table(known, positions).view(normed.shape)
        return normed.add_(own).mul_(_HALF)


@dataclass(frozen=True, slots=True)
class EmbeddingBranch:
    """out(activation(gate(stream)) * embedding), normed. `layer`: whose embeddings are read."""

    layer: int
    gate: Linear
    activate: RowOp
    out: Linear
    norm: Norm

    def __call__(self, stream: Tensor, embeddings: Tensor | None) -> Tensor:
        """[T, H] -> [T, H]. `embeddings` [T, layers, width]: those of the pass."""
        if embeddings is None:
            raise TypeError("this pass has no embeddings for its layers. This is a bug.")
        opened = self.activate(self.gate(stream)).mul_(embeddings[:, self.layer])
        return self.norm(self.out(opened))
