"""Cross-attention: every token of a text attends to all rows that an encoder made of a sound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from quire.backends.ops import AttentionStep, HeadShape
from quire.layers.linear import Linear
from quire.layers.tp import TensorParallel


class Heard(Protocol):
    """The encoded sounds of a pass."""

    def attend(self, q: Tensor, layer: int, scale: float) -> Tensor:
        """[T, heads, D] -> [T, heads * D]. `layer` counts the layers with cross-attention. Padding
        tokens have no sound; their results are not used."""


@dataclass(frozen=True, slots=True)
class HeardPart:
    """The tokens of a pass (their indices) that attend to one sound, whose keys and values are
    `keys_values` [layers, 2, heads, rows, D]."""

    tokens: Tensor
    keys_values: Tensor


@dataclass(frozen=True, slots=True)
class HeardParts:
    """Computes one sound after the other, each for all of its tokens at once."""

    parts: Sequence[HeardPart]

    def attend(self, q: Tensor, layer: int, scale: float) -> Tensor:
        made = q.new_zeros(q.shape)
        for part in self.parts:
            keys, values = part.keys_values[layer]
            theirs = q.index_select(0, part.tokens).transpose(0, 1)
            seen = F.scaled_dot_product_attention(
                theirs[None], keys[None], values[None], scale=scale
            )
            made.index_copy_(0, part.tokens, seen[0].transpose(0, 1))
        return made.flatten(1)


@dataclass(frozen=True, slots=True)
class HeardPages:
    """Computes all sounds at once. Their keys and values are in blocks, as KV is: `pages` [layers,
    2, blocks, heads, S, D]. In the planned `step` each token is a row of its own."""

    step: AttentionStep
    pages: Tensor

    def attend(self, q: Tensor, layer: int, scale: float) -> Tensor:
        keys, values = self.pages[layer]
        return self.step.attend(q, keys, values)


class CrossAttention:
    """One layer's cross-attention: project, attend to the sounds, project back."""

    def __init__(
        self, shape: HeadShape, index: int, query: Linear, out: Linear, tp: TensorParallel
    ) -> None:
        """`index` counts the layers with cross-attention."""
        self.shape, self.index, self.query, self.out, self.tp = shape, index, query, out, tp

    def __call__(self, x: Tensor, heard: Heard | None) -> Tensor:
        """[T, H] -> [T, H]"""
        if heard is None:
            raise RuntimeError("a pass without sounds, of a model whose layers attend to them")
        q = self.query(x).view(len(x), -1, self.shape.head_dim)
        return self.tp.all_reduce(self.out(heard.attend(q, self.index, self.shape.scale)))
