"""What tokens do to the matrices of a state after the convolution, and what they read, in plain
torch: one class for each kind of plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from quire.backends import decay_rule, delta_rule
from quire.backends.generic import sigmoid, softplus
from quire.backends.ops import StateRule
from quire.layer_parts.state import ConvolutionPlan, DeltaNetPlan, MambaPlan

LENGTH_EPS = 1e-6  # for dividing q and k by their lengths


class Recurrence(Protocol):
    """Of some tokens of a layer."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of what a token reads."""

    def of(self, tokens: slice) -> Recurrence:
        """Of a part of these tokens."""

    def read_all(self, mixed: Tensor, matrices: Tensor) -> Tensor:
        """What tokens of one sequence read, each after it has changed the matrices
        [matrix_numbers], which are changed in place: mixed [T, channels] -> [T, value_width]"""

    def read_each(self, mixed: Tensor, matrices: Tensor) -> Tensor:
        """As read_all for one token of each of R sequences: matrices [R, matrix_numbers]."""


def recurrence_of(rule: StateRule, rates: Tensor | None) -> Recurrence:
    """`rates` as for StateStep.take_up."""
    plan, heads = rule.plan, rule.heads
    if isinstance(plan, ConvolutionPlan):
        return ConvolutionAlone(plan.channels)
    if heads is None or rates is None:
        raise TypeError(f"a {type(plan).__name__} without rates or decays")
    if isinstance(plan, MambaPlan):
        if heads.skips is None:
            raise TypeError("a MambaPlan without skips")
        steps = softplus(rates + heads.shifts).clamp_min_(plan.least_step)
        return Mamba(plan, -heads.log_slopes.exp() * steps, steps, heads.skips)
    rate, decay = rates.chunk(2, dim=-1)
    log_decay = -heads.log_slopes.exp() * softplus(decay + heads.shifts)
    return DeltaNet(plan, log_decay, sigmoid(rate) * plan.most_rate)


@dataclass(frozen=True, slots=True)
class ConvolutionAlone:
    """There are no matrices; what was convolved is what tokens read."""

    channels: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.channels,)

    def of(self, tokens: slice) -> ConvolutionAlone:
        return self

    def read_all(self, mixed: Tensor, matrices: Tensor) -> Tensor:
        return mixed

    read_each = read_all


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """The gated delta rule (delta_rule.py)."""

    plan: DeltaNetPlan
    log_decay: Tensor
    rate: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.plan.num_heads, self.plan.value_dim

    def of(self, tokens: slice) -> DeltaNet:
        return replace(self, log_decay=self.log_decay[tokens], rate=self.rate[tokens])

    def read_all(self, mixed: Tensor, matrices: Tensor) -> Tensor:
        states = matrices.view(self.plan.num_heads, self.plan.key_dim, self.plan.value_dim)
        return delta_rule.take_up_all(
            *self._heads(mixed), self.log_decay, self.rate, states
        ).flatten(1)

    def read_each(self, mixed: Tensor, matrices: Tensor) -> Tensor:
        states = matrices.view(-1, self.plan.num_heads, self.plan.key_dim, self.plan.value_dim)
        return delta_rule.take_up_each(
            *self._heads(mixed), self.log_decay, self.rate, states
        ).flatten(1)

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v [T, heads, D]; q and k have length 1, and q is scaled."""
        plan, keys = self.plan, self.plan.key_width
        q, k, v = mixed[:, :keys], mixed[:, keys : 2 * keys], mixed[:, 2 * keys :]
        heads = []
        for one in (q, k):
            wide = one.reshape(len(mixed), plan.num_key_heads, plan.key_dim)
            length = wide.square().sum(-1, keepdim=True).add_(LENGTH_EPS).rsqrt_()
            heads.append(self._shared(wide * length))
        heads[0] *= plan.key_dim**-0.5
        return heads[0], heads[1], v.reshape(len(mixed), plan.num_heads, plan.value_dim)

    def _shared(self, heads: Tensor) -> Tensor:
        """The head of q or k for each head of v."""
        times = self.plan.num_heads // self.plan.num_key_heads
        return heads.repeat(1, times, 1) if self.plan.in_turn else heads.repeat_interleave(times, 1)


@dataclass(frozen=True, slots=True)
class Mamba:
    """The recurrence of Mamba-2 (decay_rule.py)."""

    plan: MambaPlan
    log_decay: Tensor
    steps: Tensor
    skips: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.plan.num_heads, self.plan.value_dim

    def of(self, tokens: slice) -> Mamba:
        return replace(self, log_decay=self.log_decay[tokens], steps=self.steps[tokens])

    def read_all(self, mixed: Tensor, matrices: Tensor) -> Tensor:
        q, k, v = self._heads(mixed)
        states = matrices.view(self.plan.num_heads, self.plan.key_dim, self.plan.value_dim)
        given = (q, k, v * self.steps[..., None], self.log_decay)
        return self._skipped(decay_rule.take_up_all(*given, states), v)

    def read_each(self, mixed: Tensor, matrices: Tensor) -> Tensor:
        q, k, v = self._heads(mixed)
        states = matrices.view(-1, self.plan.num_heads, self.plan.key_dim, self.plan.value_dim)
        given = (q, k, v * self.steps[..., None], self.log_decay)
        return self._skipped(decay_rule.take_up_each(*given, states), v)

    def _skipped(self, read: Tensor, v: Tensor) -> Tensor:
        return torch.addcmul(read, v, self.skips[:, None]).flatten(1)

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys [T, groups, Dk], values [T, heads, Dv]."""
        plan, keys = self.plan, self.plan.key_width
        q, k = (
            one.reshape(len(mixed), -1, plan.key_dim) for one in mixed[:, : 2 * keys].chunk(2, 1)
        )
        return q, k, mixed[:, 2 * keys :].reshape(len(mixed), plan.num_heads, plan.value_dim)
