"""Rotates the heads of a pass and writes its keys and values to the paged cache, in torch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.backends.generic import normed_heads, rotate
from quire.backends.ops import HeadNorms, HeadShape

Longs = npt.NDArray[np.int64]


class KvStore:
    """Stores the keys and values of one pass."""

    def __init__(self, shape: HeadShape, slots: Longs) -> None:
        size, heads = shape.block_size, np.arange(shape.num_kv_heads)
        places = (slots // size)[:, None] * shape.num_kv_heads + heads
        self.shape, self.num_tokens = shape, len(slots)
        self.store_index = torch.from_numpy((places * size + (slots % size)[:, None]).reshape(-1))

    def rope_and_store(
        self,
        qk: Tensor,
        v: Tensor,
        cos: Tensor,
        sin: Tensor,
        keys: Tensor,
        values: Tensor,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        turned = rotate(normed_heads(qk, norms, self.shape.num_heads), cos, sin)
        n, width = self.num_tokens, self.shape.head_dim
        k = turned[:n, self.shape.num_heads :]
        keys.view(-1, width).index_copy_(0, self.store_index, k.reshape(-1, width))
        values.view(-1, width).index_copy_(0, self.store_index, v[:n].reshape(-1, width))
        return turned[:, : self.shape.num_heads]

    def plain(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return keys, values
