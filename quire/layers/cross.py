"""Cross-attention: tokens attend to what an encoder made of a sound, whole and from every place."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from quire.backends.ops import HeadShape
from quire.layers.linear import Linear


@dataclass(frozen=True, slots=True)
class HeardPart:
    """Tokens of a pass that hear one sound: `keys_values` [layers, 2, heads, rows, D]."""

    tokens: Tensor
    keys_values: Tensor


Heard = tuple[HeardPart, ...]


class CrossAttention:
    """One layer's: project, attend to each sound, project back."""

    def __init__(self, shape: HeadShape, index: int, query: Linear, out: Linear) -> None:
        """`index` of the layer, among those that hear."""
        self.shape, self.index, self.query, self.out = shape, index, query, out

    def __call__(self, x: Tensor, heard: Heard) -> Tensor:
        """[T, H] -> [T, H]; a token that hears nothing adds what the last product makes of zeros,
        which is read by nobody: padding alone is so."""
        q = self.query(x).view(len(x), -1, self.shape.head_dim)
        made = q.new_zeros(q.shape)
        for part in heard:
            keys, values = part.keys_values[self.index]
            theirs = q.index_select(0, part.tokens).transpose(0, 1)
            seen = F.scaled_dot_product_attention(
                theirs[None], keys[None], values[None], scale=self.shape.scale
            )
            made.index_copy_(0, part.tokens, seen[0].transpose(0, 1))
        return self.out(made.view(len(x), -1))
