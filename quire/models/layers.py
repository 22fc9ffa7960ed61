"""The layers of a decoder: branches that add to the residual stream, and the norms around them.

A layer takes the stream and its norm. It adds to the stream in place and returns the norm that the
next layer takes, so that the last addition and that norm stay one op.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from quire.layers.attention import Attention, Pass
from quire.layers.cross import CrossAttention
from quire.layers.experts import Experts
from quire.layers.latent import LatentAttention
from quire.layers.layer_embeddings import EmbeddingBranch
from quire.layers.mlp import GatedMLP, PlainMLP
from quire.layers.norm import Norm
from quire.layers.reading import ReadingAttention
from quire.layers.state_layer import StateLayer

Mixer = Attention | ReadingAttention | LatentAttention | StateLayer
Mlp = GatedMLP | PlainMLP | Experts


@dataclass(frozen=True, slots=True)
class PlainLayer:
    """Attention and feed-forward, with a norm before each."""

    attention: Mixer
    mlp_norm: Norm
    mlp: Mlp
    next_norm: Norm

    def __call__(
        self, normed: Tensor, residual: Tensor, shared: Pass, keys: Tensor, values: Tensor
    ) -> Tensor:
        attended = self.attention(normed, shared, keys, values)
        made = self.mlp(self.mlp_norm.after_adding(attended, residual))
        return self.next_norm.after_adding(made, residual)


@dataclass(frozen=True, slots=True)
class MixingLayer:
    """A FinishingLayer without a feed-forward."""

    attention: Mixer
    finish: Callable[[Tensor], Tensor]
    next_norm: Norm
    mlp: None = None

    def __call__(
        self, normed: Tensor, residual: Tensor, shared: Pass, keys: Tensor, values: Tensor
    ) -> Tensor:
        made = self.finish(self.attention(normed, shared, keys, values))
        return self.next_norm.after_adding(made, residual)


@dataclass(frozen=True, slots=True)
class JoiningLayer:
    """One branch, beside which the next layer's first branch reads the same norm of the stream."""

    attention: Mixer
    finish: Callable[[Tensor], Tensor]
    next_norm: Norm
    mlp: None = None

    def __call__(
        self, normed: Tensor, residual: Tensor, shared: Pass, keys: Tensor, values: Tensor
    ) -> Tensor:
        residual += self.finish(self.attention(normed, shared, keys, values))
        return normed


@dataclass(frozen=True, slots=True)
class HearingLayer:
    """A PlainLayer with attention to a sound between attention and feed-forward."""

    attention: Mixer
    cross_norm: Norm
    cross: CrossAttention
    mlp_norm: Norm
    mlp: Mlp
    next_norm: Norm

    def __call__(
        self, normed: Tensor, residual: Tensor, shared: Pass, keys: Tensor, values: Tensor
    ) -> Tensor:
        attended = self.attention(normed, shared, keys, values)
        heard = self.cross(self.cross_norm.after_adding(attended, residual), shared.heard)
        made = self.mlp(self.mlp_norm.after_adding(heard, residual))
        return self.next_norm.after_adding(made, residual)


@dataclass(frozen=True, slots=True)
class FinishingLayer:
    """A PlainLayer that applies a norm, a factor or both to a branch's result before adding it."""

    attention: Mixer
    finish_attention: Callable[[Tensor], Tensor]
    mlp_norm: Norm
    mlp: Mlp
    finish_mlp: Callable[[Tensor], Tensor]
    next_norm: Norm

    def __call__(
        self, normed: Tensor, residual: Tensor, shared: Pass, keys: Tensor, values: Tensor
    ) -> Tensor:
        attended = self.finish_attention(self.attention(normed, shared, keys, values))
        made = self.finish_mlp(self.mlp(self.mlp_norm.after_adding(attended, residual)))
        return self.next_norm.after_adding(made, residual)


@dataclass(frozen=True, slots=True)
class Beside:
    """Experts beside a feed-forward: both results are normed and added up."""

    mlp_norm: Norm
    before: Norm
    experts: Experts
    after: Norm

    def __call__(self, made: Tensor, residual: Tensor) -> Tensor:
        """`made`: the result of the feed-forward; `residual`: the stream that it has read."""
        mixed = self.experts(self.before(residual), routed_by=residual)
        return self.mlp_norm(made).add_(self.after(mixed))


@dataclass(frozen=True, slots=True)
class LongLayer:
    """A FinishingLayer with more behind its feed-forward: experts beside it, a branch that reads
    embeddings for this layer, and a factor [1] of the stream."""

    attention: Mixer
    finish_attention: Callable[[Tensor], Tensor]
    mlp_norm: Norm
    mlp: Mlp
    beside: Beside | None
    finish_mlp: Callable[[Tensor], Tensor]
    embedding: EmbeddingBranch | None
    scale: Tensor | None
    next_norm: Norm

    def __call__(
        self, normed: Tensor, residual: Tensor, shared: Pass, keys: Tensor, values: Tensor
    ) -> Tensor:
        attended = self.finish_attention(self.attention(normed, shared, keys, values))
        made = self.mlp(self.mlp_norm.after_adding(attended, residual))
        if self.beside is not None:
            made = self.beside(made, residual)
        made = self.finish_mlp(made)
        if self.embedding is None and self.scale is None:
            return self.next_norm.after_adding(made, residual)
        residual += made
        if self.embedding is not None:
            residual += self.embedding(residual, shared.layer_embeddings)
        if self.scale is not None:
            residual *= self.scale
        return self.next_norm(residual)


@dataclass(frozen=True, slots=True)
class ParallelLayer:
    """Branches side by side: both read the stream as it was before the layer. Without a norm of its
    own the feed-forward uses attention's."""

    attention: Mixer
    mlp_norm: Norm | None
    mlp: Mlp
    scale: float
    next_norm: Norm

    def __call__(
        self, normed: Tensor, residual: Tensor, shared: Pass, keys: Tensor, values: Tensor
    ) -> Tensor:
        made = self.mlp(normed if self.mlp_norm is None else self.mlp_norm(residual))
        made += self.attention(normed, shared, keys, values)
        return self.next_norm.after_adding(made.mul_(self.scale), residual)


@dataclass(frozen=True, slots=True)
class Finish:
    """Applied to the result of a branch before it is added: a norm if there is one, then a
    factor."""

    norm: Norm | None
    scale: float

    def __call__(self, made: Tensor) -> Tensor:
        if self.norm is not None:
            made = self.norm(made)
        return made if self.scale == 1.0 else made.mul_(self.scale)


Layer = (
    PlainLayer
    | MixingLayer
    | JoiningLayer
    | HearingLayer
    | FinishingLayer
    | LongLayer
    | ParallelLayer
)
