"""The layers of a decoder: two branches, the residual stream they add to, and norms around them.

Each takes what the norm before it made of the stream, adds to the stream in place, and returns
what the norm behind it makes of that, so that adding and norming stay one op.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from quire.layers.attention import Attention, Pass
from quire.layers.cross import CrossAttention
from quire.layers.delta_net import DeltaNet
from quire.layers.experts import Experts
from quire.layers.latent import LatentAttention
from quire.layers.mlp import GatedMLP, PlainMLP
from quire.layers.norm import Norm

Mixer = Attention | LatentAttention | DeltaNet
Mlp = GatedMLP | PlainMLP | Experts


@dataclass(frozen=True, slots=True)
class PlainLayer:
    """Branches with a norm before each."""

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
class HearingLayer:
    """The same with attention to a sound between the two."""

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
    """The same with something done to what a branch made before it is added: a norm behind the
    branch, a factor, or both."""

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
class ParallelLayer:
    """Branches side by side; without a norm of its own the feed-forward takes what attention
    takes."""

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
    """What is done to the result of a branch: a norm where there is one, then a factor."""

    norm: Norm | None
    scale: float

    def __call__(self, made: Tensor) -> Tensor:
        if self.norm is not None:
            made = self.norm(made)
        return made if self.scale == 1.0 else made.mul_(self.scale)


Layer = PlainLayer | HearingLayer | FinishingLayer | ParallelLayer
