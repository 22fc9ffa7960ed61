"""The part of a layer that stands where other layers have attention, and keeps a state: products
around what StateStep.take_up computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from quire.backends.generic import activated
from quire.backends.ops import HeadShape, RowNorm, StateRule
from quire.layer_parts.state import MambaPlan, SharedPart
from quire.layers.attention import Pass
from quire.layers.linear import Linear
from quire.layers.norm import weighted
from quire.layers.sums import in_halves
from quire.layers.tp import TensorParallel


class Around(Protocol):
    """The products of a layer that keeps a state."""

    @property
    def products(self) -> tuple[Linear, Linear]:
        """The first and the last."""

    def __call__(self, x: Tensor, take_up: TakeUp) -> Tensor:
        """The layer's result [T, H], with what tokens read from its states."""


class TakeUp(Protocol):
    def __call__(self, x: Tensor, rates: Tensor | None) -> Tensor:
        """StateStep.take_up on the states of this layer."""


class GateRead(Protocol):
    """Kernels.gate_read with its ReadGate."""

    def __call__(self, read: Tensor, gate: Tensor) -> Tensor: ...


class StateLayer:
    kind = None  # no attention is planned for this layer

    def __init__(
        self, shape: HeadShape, rule: StateRule, around: Around, tp: TensorParallel
    ) -> None:
        """`shape`: the heads of the layers with attention, whose blocks also hold the states."""
        self.shape, self.rule, self.around, self.tp = shape, rule, around, tp
        self.table = 0  # its block table, set by Decoder.use_groups

    @property
    def products(self) -> tuple[Linear, Linear]:
        return self.around.products

    def __call__(self, x: Tensor, shared: Pass, keys: Tensor, values: Tensor) -> Tensor:
        states = shared.states[self.table]
        made = self.around(
            x, lambda taken, rates: states.take_up(self.rule, taken, rates, keys, values)
        )
        return self.tp.all_reduce(made)


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Gated DeltaNet. `qkvz` makes q, k, v and the gate (z). `rates`, with a float32 weight, makes
    two numbers for each head: the rate and the decay before their activations."""

    channels: int
    qkvz: Linear
    rates: Linear
    gate: GateRead
    out: Linear

    @property
    def products(self) -> tuple[Linear, Linear]:
        return self.qkvz, self.out

    def __call__(self, x: Tensor, take_up: TakeUp) -> Tensor:
        qkvz, rates = self.qkvz(x), self.rates(x.float())
        read = take_up(qkvz[:, : self.channels], rates)
        return self.out(self.gate(read.flatten(1), qkvz[:, self.channels :]))


@dataclass(frozen=True, slots=True)
class SharedGate:
    """A GateRead with a norm of rows that have some numbers of a part, of which other ranks have
    the others: squares are summed over ranks."""

    norm: RowNorm
    norm_first: bool
    shared: SharedPart
    tp: TensorParallel

    def __call__(self, read: Tensor, gate: Tensor) -> Tensor:
        opened, dtype = activated(gate.float(), "silu"), gate.dtype
        wide = read if self.norm_first else read * opened
        scaled = wide * self._mean_square(wide).add_(self.norm.eps).rsqrt_()
        if self.norm_first:
            return (weighted(scaled, self.norm.weight, torch.float32) * opened).to(dtype)
        return weighted(scaled, self.norm.weight, dtype)

    def _mean_square(self, wide: Tensor) -> Tensor:
        """Of the whole part [T, 1]. Ranks add up a column for each part."""
        shared, place = self.shared, slice(self.shared.index, self.shared.index + 1)
        every = wide.new_zeros(len(wide), shared.count)
        every[:, place] = in_halves(wide.square())
        return self.tp.all_reduce(every)[:, place] / shared.width


@dataclass(frozen=True, slots=True)
class Mamba:
    """Mamba-2. `qkvz` makes queries, keys, values and the gate (z). `rates`, with a float32 weight,
    makes a step for each head before its softplus. `factors`: of the numbers of `qkvz`, and of
    steps."""

    plan: MambaPlan
    qkvz: Linear
    rates: Linear
    gate: GateRead
    out: Linear
    factors: tuple[Tensor, float] | None

    @property
    def products(self) -> tuple[Linear, Linear]:
        return self.qkvz, self.out

    def __call__(self, x: Tensor, take_up: TakeUp) -> Tensor:
        qkvz, rates, plan = self.qkvz(x), self.rates(x.float()), self.plan
        if self.factors is not None:
            qkvz, rates = (qkvz * self.factors[0]).to(x.dtype), rates * self.factors[1]
        read = take_up(qkvz[:, : plan.channels], rates).flatten(1)
        return self.out(self.gate(read, qkvz[:, plan.channels :]))


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """A convolution by itself: out(b * convolved(a * x)), where `gated` makes a, b and x."""

    gated: Linear
    out: Linear

    @property
    def products(self) -> tuple[Linear, Linear]:
        return self.gated, self.out

    def __call__(self, x: Tensor, take_up: TakeUp) -> Tensor:
        before, behind, inner = self.gated(x).chunk(3, dim=-1)
        return self.out(behind * take_up(before * inner, None).to(x.dtype))
