"""Gated DeltaNet: a short convolution, the gated delta rule over a state, a gate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.delta_rule import take_up_all, take_up_each
from quire.backends.generic import activated
from quire.backends.ops import HeadShape
from quire.layer_plan import DeltaNetPlan
from quire.layers.attention import Pass
from quire.layers.linear import Linear
from quire.layers.norm import Norm
from quire.layers.states import StateBlocks

# Bytes of states that decode rows work on at once.
STATE_BYTES = 1 << 25
_LENGTH_EPS = 1e-6  # of q and k, which are divided by their lengths


@dataclass(frozen=True, slots=True)
class DeltaNetWeights:
    """`qkvz` makes q, k, v and the gate, `rates` of float32 what becomes the rate and the decay of
    each head; convolution float32 [channels, reach], log_slopes and shifts float32 [heads]."""

    qkvz: Linear
    rates: Linear
    convolution: Tensor
    log_slopes: Tensor
    shifts: Tensor
    norm: Norm
    out: Linear


@dataclass(frozen=True, slots=True)
class _Tokens:
    """What the rule takes of some tokens."""

    qkv: Tensor
    log_decay: Tensor
    rate: Tensor

    def part(self, first: int, last: int) -> _Tokens:
        return _Tokens(*(one[first:last] for one in (self.qkv, self.log_decay, self.rate)))


class DeltaNet:
    """One layer, in the place of attention."""

    kind = None  # nothing of attention is planned for it

    def __init__(self, shape: HeadShape, plan: DeltaNetPlan, weights: DeltaNetWeights) -> None:
        """`shape`: of the heads in the layers beside it, whose blocks its states lie in."""
        self.shape, self.plan, self.weights = shape, plan, weights
        self.group = 0  # see Decoder.use_groups

    @property
    def products(self) -> tuple[Linear, Linear]:
        return self.weights.qkvz, self.weights.out

    def __call__(self, x: Tensor, shared: Pass, keys: Tensor, values: Tensor) -> Tensor:
        plan, weights, states = self.plan, self.weights, shared.states[self.group]
        blocks = StateBlocks(keys, values, plan.state_numbers)
        qkvz = weights.qkvz(x)
        tokens = self._tokens(x, qkvz[:, : plan.channels])
        read = x.new_zeros(len(x), plan.num_heads, plan.value_dim, dtype=torch.float32)
        for span in states.spans:
            of_span = tokens.part(span.first, span.last)
            read[span.first : span.last] = self._read_span(of_span, span.before, span.into, blocks)
        most = max(1, STATE_BYTES // (4 * plan.state_numbers))
        for first in range(0, len(states.into), most):
            rows = slice(first, first + most)
            before, into = states.before[rows], states.into[rows]
            at = states.first_decode + first
            read[at : at + len(into)] = self._read_rows(
                tokens.part(at, at + len(into)), before, into, blocks
            )
        gate = qkvz[:, plan.channels :].float()
        normed = weights.norm(read.to(x.dtype)).flatten(1)
        return weights.out((normed * activated(gate, "silu")).to(x.dtype))

    def _tokens(self, x: Tensor, qkv: Tensor) -> _Tokens:
        rate, decay = self.weights.rates(x.float()).chunk(2, dim=-1)
        slopes = self.weights.log_slopes.exp()
        return _Tokens(
            qkv.float(), -slopes * F.softplus(decay + self.weights.shifts), rate.sigmoid()
        )

    def _read_span(
        self, tokens: _Tokens, before: int | None, into: int, blocks: StateBlocks
    ) -> Tensor:
        plan, count, target = self.plan, len(tokens.qkv), torch.tensor([into])
        if before is None:
            window = tokens.qkv.new_zeros(plan.reach - 1, plan.channels)
            matrix = tokens.qkv.new_zeros(1, plan.matrix_numbers)
        else:
            window, matrix = self._load(torch.tensor([before]), blocks)
            window = window[0]
        seen = torch.cat([window, tokens.qkv])
        mixed = seen.new_zeros(count, plan.channels)
        for i, tap in enumerate(self.weights.convolution.unbind(1)):
            mixed.addcmul_(seen[i : i + count], tap)
        q, k, v = self._heads(activated(mixed, "silu"))
        state = matrix.view(plan.num_heads, plan.key_dim, plan.value_dim)
        read = take_up_all(q, k, v, tokens.log_decay, tokens.rate, state)
        self._store(target, matrix, seen[count:], blocks)
        return read

    def _read_rows(
        self, tokens: _Tokens, before: Tensor, into: Tensor, blocks: StateBlocks
    ) -> Tensor:
        plan = self.plan
        window, matrix = self._load(before, blocks)
        seen = torch.cat([window, tokens.qkv[:, None]], dim=1)
        mixed = (seen * self.weights.convolution.t()).sum(1)
        q, k, v = self._heads(activated(mixed, "silu"))
        states = matrix.view(-1, plan.num_heads, plan.key_dim, plan.value_dim)
        read = take_up_each(q, k, v, tokens.log_decay, tokens.rate, states)
        self._store(into, matrix, seen[:, 1:], blocks)
        return read

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v [T, heads, D], q and k of length 1 and q scaled."""
        plan = self.plan
        keys = plan.num_key_heads * plan.key_dim
        q, k, v = mixed[:, :keys], mixed[:, keys : 2 * keys], mixed[:, 2 * keys :]
        heads = []
        for one in (q, k):
            wide = one.reshape(len(mixed), plan.num_key_heads, plan.key_dim)
            length = wide.square().sum(-1, keepdim=True).add_(_LENGTH_EPS).rsqrt_()
            heads.append(self._shared(wide * length))
        heads[0] *= plan.key_dim**-0.5
        return heads[0], heads[1], v.reshape(len(mixed), plan.num_heads, plan.value_dim)

    def _shared(self, heads: Tensor) -> Tensor:
        """For each head of v its head of q or k."""
        times = self.plan.num_heads // self.plan.num_key_heads
        return heads.repeat(1, times, 1) if self.plan.in_turn else heads.repeat_interleave(times, 1)

    def _load(self, at: Tensor, blocks: StateBlocks) -> tuple[Tensor, Tensor]:
        """What the convolution still sees [R, reach - 1, channels], and the matrices as rows."""
        plan = self.plan
        matrix = blocks.load(at, 0, plan.matrix_numbers)
        window = blocks.load(at, plan.matrix_numbers, plan.state_numbers)
        return window.view(len(at), plan.reach - 1, plan.channels), matrix

    def _store(self, at: Tensor, matrix: Tensor, window: Tensor, blocks: StateBlocks) -> None:
        blocks.store(at, 0, matrix)
        blocks.store(at, self.plan.matrix_numbers, window.reshape(len(at), -1))
