"""Gated DeltaNet: a short convolution, the gated delta rule over a state, a gate."""

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
    """`qkvz` makes q, k, v and the gate, `rates` of float32 what becomes the rate and the decay of
    each head."""

    qkvz: Linear
    rates: Linear
    norm: Norm
    out: Linear


class DeltaNet:
    """One layer, in the place of attention."""

    kind = None  # nothing of attention is planned for it

    def __init__(self, shape: HeadShape, rule: DeltaRule, parts: DeltaNetParts) -> None:
        """`shape`: of the heads in the layers beside it, whose blocks its states lie in."""
        self.shape, self.rule, self.parts = shape, rule, parts
        self.group = 0  # see Decoder.use_groups

    @property
    def products(self) -> tuple[Linear, Linear]:
        return self.parts.qkvz, self.parts.out

    def __call__(self, x: Tensor, shared: Pass, keys: Tensor, values: Tensor) -> Tensor:
        parts, channels = self.parts, self.rule.plan.channels
        qkvz, rates = parts.qkvz(x), parts.rates(x.float())
        states = shared.states[self.group]
        read = states.take_up(self.rule, qkvz[:, :channels], rates, keys, values)
        normed = parts.norm(read.to(x.dtype)).flatten(1)
        gate = activated(qkvz[:, channels:].float(), "silu")
        return parts.out((normed * gate).to(x.dtype))
