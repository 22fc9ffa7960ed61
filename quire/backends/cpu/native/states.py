"""States on a CPU, in C: tokens are taken up one after the other, whichever pass they are in, so
that a row gets the same bits in any batch, chunk or cache.

Only ops that give a number the same bits at any place of a tensor are used around that: torch's
own sigmoid and softplus round differently in the last few numbers, which do not fill a vector.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.backends.cpu.native.header import struct
from quire.backends.generic import activated
from quire.backends.ops import StateRule
from quire.backends.recurrences import LENGTH_EPS
from quire.backends.states import StateBlocks, StatePass, block_numbers, half_of
from quire.layer_parts.state import ConvolutionPlan, DeltaNetPlan, MambaPlan


@dataclass(frozen=True, slots=True)
class NativeStates:
    """The states of one pass."""

    library: ctypes.CDLL
    given: StatePass

    def take_up(
        self, rule: StateRule, x: Tensor, rates: Tensor | None, keys: Tensor, values: Tensor
    ) -> Tensor:
        plan, heads = rule.plan, rule.heads
        mixed = self._convolved(rule, x.float(), StateBlocks(keys, values, plan.state_numbers))
        if isinstance(plan, ConvolutionPlan):
            return mixed
        if heads is None or rates is None:
            raise TypeError(f"a {type(plan).__name__} without rates or decays")
        mixed, slopes = activated(mixed, "silu"), heads.log_slopes.exp()
        v = mixed[:, 2 * plan.key_width :].reshape(len(x), plan.num_heads, plan.value_dim)
        if isinstance(plan, MambaPlan):
            steps = _softplus(rates + heads.shifts).clamp_min_(plan.least_step)
            made = self._read(
                plan, mixed, v * steps[..., None], slopes * steps, steps, keys, values
            )
            return made if heads.skips is None else made.add_(v * heads.skips[:, None])
        rate, decay = rates.chunk(2, dim=-1)
        rate = rate.neg().exp_().add_(1).reciprocal_().mul_(plan.most_rate)
        faded = slopes * _softplus(decay + heads.shifts)
        return self._read(plan, mixed, v.contiguous(), faded, rate, keys, values)

    def _convolved(self, rule: StateRule, x: Tensor, blocks: StateBlocks) -> Tensor:
        """The sums of the convolution [T, channels]; what it keeps goes into the blocks."""
        plan, given = rule.plan, self.given
        first, last = plan.matrix_numbers, plan.state_numbers
        made, back = x.new_zeros(len(x), plan.channels), plan.reach - 1

        def kept(at: Tensor) -> Tensor:
            return blocks.load(at, first, last).view(len(at), back, plan.channels)

        for span in given.spans:
            window = x.new_zeros(back, plan.channels)
            if span.before is not None:
                window = kept(torch.tensor([span.before]))[0]
            seen, count = torch.cat([window, x[span.first : span.last]]), span.last - span.first
            taken = [seen[i : i + count] for i in range(plan.reach)]
            made[span.first : span.last] = _sums(rule, taken)
            blocks.store(torch.tensor([span.into]), first, seen[count:].reshape(1, -1))
        if count := len(given.into):
            rows = slice(given.first_decode, given.first_decode + count)
            many = torch.cat([kept(given.before), x[rows, None]], 1)
            made[rows] = _sums(rule, many.unbind(1))
            blocks.store(given.into, first, many[:, 1:].reshape(count, -1))
        return made

    def _read(
        self,
        plan: DeltaNetPlan | MambaPlan,
        mixed: Tensor,
        v: Tensor,
        faded: Tensor,
        rate: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        """What tokens read [T, heads, Dv]; `faded`: minus the logs of their decays."""
        (q, k), spans, library = _keys(plan, mixed), self._spans(), self.library
        read, decay, rate = torch.zeros_like(v), faded.neg_().exp_(), rate.contiguous()
        room = library.quire_states_room(plan.key_dim, plan.value_dim)
        scratch = torch.empty(library.quire_num_threads() * room)
        made = struct("quire_states")(
            num_spans=len(spans),
            num_tokens=int((spans[:, 1] - spans[:, 0]).sum()),
            num_heads=plan.num_heads,
            num_key_heads=plan.num_key_heads,
            key_dim=plan.key_dim,
            value_dim=plan.value_dim,
            in_turn=isinstance(plan, DeltaNetPlan) and plan.in_turn,
            corrects=isinstance(plan, DeltaNetPlan),
            half=half_of(plan.state_numbers),
            block=block_numbers(keys, plan),
            spans=spans.data_ptr(),
            q=q.data_ptr(),
            k=k.data_ptr(),
            v=v.data_ptr(),
            decay=decay.data_ptr(),
            rate=rate.data_ptr(),
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            scratch=scratch.data_ptr(),
            read=read.data_ptr(),
        )
        library.quire_take_up(ctypes.byref(made))
        return read

    def _spans(self) -> Tensor:
        """All spans and rows [n, 4], in the order in which they are computed."""
        given, none = self.given, -1
        spans = [
            (one.first, one.last, none if one.before is None else one.before, one.into)
            for one in given.spans
        ]
        first = given.first_decode + torch.arange(len(given.into))
        rows = torch.stack([first, first + 1, given.before, given.into], 1)
        return torch.cat([torch.tensor(spans, dtype=torch.int64).view(-1, 4), rows])


def _sums(rule: StateRule, taken: Sequence[Tensor]) -> Tensor:
    """Products with the taps and sums are separate ops: fused ones round differently in a vector's
    tail."""
    made = taken[0] * rule.convolution[:, 0]
    for i, one in enumerate(taken[1:], 1):
        made += one * rule.convolution[:, i]
    return made if rule.bias is None else made.add_(rule.bias)


def _keys(plan: DeltaNetPlan | MambaPlan, mixed: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys [T, key heads, Dk]."""
    both = mixed[:, : 2 * plan.key_width].reshape(len(mixed), 2, plan.num_key_heads, plan.key_dim)
    if isinstance(plan, DeltaNetPlan):
        both = both * both.square().sum(-1, keepdim=True).add_(LENGTH_EPS).rsqrt_()
        both[:, 0] *= plan.key_dim**-0.5
    return both[:, 0].contiguous(), both[:, 1].contiguous()


def _softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x))"""
    return x.abs().neg_().exp_().log1p_().add_(x.clamp_min(0))
