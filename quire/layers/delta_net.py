"""Gated DeltaNet: a short convolution, the gated delta rule on a state, then a norm and a gate."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from quire.backends.generic import activated
from quire.backends.ops import DeltaRule, HeadShape
from quire.layers.attention import Pass
from quire.layers.linear import Linear
from quire.layers.norm import Norm


@dataclass(frozen=True, slots=True)
class DeltaNetParts:
    """`qkvz` makes q, k, v and the gate (z). `rates`, with a float32 weight, makes two numbers for
    each head: the rate and the decay before their activations."""

    qkvz: Linear
    rates: Linear
    norm: Norm
    out: Linear


class DeltaNet:
    """The part of a layer that stands where other layers have attention."""

    kind = None  # no attention is planned for this layer

    def __init__(self, shape: HeadShape, rule: DeltaRule, parts: DeltaNetParts) -> None:
        """`shape`: the heads of the layers with attention, whose blocks also hold the states."""
        self.shape, self.rule, self.parts = shape, rule, parts
        self.table = 0  # its block table, set by Decoder.use_groups

    @property
    def products(self) -> tuple[Linear, Linear]:
        return self.parts.qkvz, self.parts.out

    def __call__(self, x: Tensor, shared: Pass, keys: Tensor, values: Tensor) -> Tensor:
        parts, channels = self.parts, self.rule.plan.channels
        qkvz, rates = parts.qkvz(x), parts.rates(x.float())
        states = shared.states[self.table]
        read = states.take_up(self.rule, qkvz[:, :channels], rates, keys, values)
        normed = parts.norm(read.to(x.dtype)).flatten(1)
        gate = activated(qkvz[:, channels:].float(), "silu")
        return parts.out((normed * gate).to(x.dtype))
