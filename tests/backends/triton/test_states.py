"""States by the kernels of a GPU, against plain torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.backends.fp8 import FP8
from quire.backends.ops import AttentionInputs, HeadShape, StateHeads, StateRule
from quire.backends.states import state_pass
from quire.layer_parts.state import ConvolutionPlan, DeltaNetPlan, MambaPlan, StatePlan
from quire.layer_plan import NormPlan
from tests.backends.triton.checks import assert_close, generator
from tests.backends.triton.places import DEVICE

PLAN = DeltaNetPlan(4, 2, 6, 20, 4, NormPlan(1e-6))
PLANS = {
    "heads in a row": PLAN,
    "heads in turn": replace(PLAN, in_turn=True),
    "no reach": replace(PLAN, reach=1, num_key_heads=4, key_dim=16),
    "convolution": ConvolutionPlan(150, 3),
    "convolution with a bias": ConvolutionPlan(20, 5, bias=True),
    "mamba": MambaPlan(6, 2, 6, 20, 4, NormPlan(1e-6)),
    "mamba, wide keys, no bias, least steps": MambaPlan(
        *(2, 1, 160, 9, 3, NormPlan(1e-6)), convolution_bias=False, least_step=0.7
    ),
    "mamba, real size": MambaPlan(64, 1, 128, 64, 4, NormPlan(1e-6)),
    "real size": DeltaNetPlan(32, 16, 128, 128, 4, NormPlan(1e-6)),
}
NAMES = [pytest.param(name, marks=[pytest.mark.gpu] * ("real" in name)) for name in PLANS]
SIZE = 8
# (tokens of the pass, tokens before them): across blocks, from the first on, within one, and one
# token that ends a block, begins one, or stands in its middle; the last two rest.
SLICES = [(18, 0), (9, 6), (2, 7), (1, 15), (1, 8), (1, 3), (1, 0), (1, 0)]
RESTING = 2


def rule_of(plan: StatePlan, device: Any = "cpu") -> StateRule:
    made = generator(3)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made).to(device)

    taps = some(plan.channels, plan.reach)
    if isinstance(plan, ConvolutionPlan):
        return StateRule(plan, taps, some(plan.channels) if plan.bias else None)
    slopes, shifts, skips = (some(plan.num_heads) for _ in range(3))
    if isinstance(plan, MambaPlan):
        bias = some(plan.channels) if plan.convolution_bias else None
        return StateRule(plan, taps, bias, StateHeads(slopes, shifts, skips))
    return StateRule(plan, taps, heads=StateHeads(slopes, shifts))


def rates_of(plan: StatePlan, count: int) -> Tensor | None:
    if isinstance(plan, ConvolutionPlan):
        return None
    each = 1 if isinstance(plan, MambaPlan) else 2
    return torch.randn(count, each * plan.num_heads, generator=generator(5))


@pytest.mark.parametrize(
    ("single", "kept_as"), [(False, torch.float32), (True, torch.float32), (False, FP8)]
)
@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_taken_up_in_the_blocks_of_their_rows(
    name: str, single: bool, kept_as: torch.dtype
) -> None:
    """What tokens read, and every state that a later one may begin from; nothing else changes.
    `single`: one token each, under tables that are reached by way of rows. `kept_as`: what keys of
    other layers are in blocks; states are float32 in any case."""
    from quire.backends.triton.states import TritonStates

    plan, slices = PLANS[name], SLICES[3:] if single else SLICES[:4]
    lengths = torch.tensor([new + past for new, past in slices])
    width = -(-int(lengths.max()) // SIZE)
    order = torch.randperm(len(slices) * width + 2, generator=generator(1))
    tables = order[: len(slices) * width].view(-1, width)
    starts = torch.tensor([0, *(new for new, _ in slices)]).cumsum(0)
    count, room = int(starts[-1]), plan.state_numbers // 2 + 3
    given = torch.randn(2, len(order), 1, SIZE * -(-room // SIZE), generator=generator(2))
    qkv = torch.randn(count, plan.channels + 5, generator=generator(4))[:, :-5]
    rates = rates_of(plan, count)
    kept, cache = given.clone(), given.clone().to(DEVICE)
    active = lengths.clone()
    if single:
        active[-RESTING:] = 0
    inputs = AttentionInputs(starts, lengths, tables, starts, len(slices))
    live = int(starts[len(slices) - (RESTING if single else 0)])
    some = inputs if not single else _without_last(inputs, RESTING)
    wanted = state_pass(some, SIZE).take_up(
        *(rule_of(plan), qkv[:live], None if rates is None else rates[:live]), *kept.view(kept_as)
    )
    turned, rows = tables.flip(0).int().to(DEVICE), None
    if single:
        rows = torch.arange(len(slices) - 1, -1, -1, dtype=torch.int32, device=DEVICE)
    made = TritonStates(
        *(starts.to(DEVICE), active.to(DEVICE), turned if single else tables.int().to(DEVICE)),
        SIZE,
        rows,
        single,
    )
    there = None if rates is None else rates.to(DEVICE)
    read = made.take_up(rule_of(plan, DEVICE), qkv.to(DEVICE), there, *cache.view(kept_as))
    assert_close(read[:live], wanted.to(DEVICE), least=1e-4)
    assert not read[live:].any()
    assert_close(cache, kept.to(DEVICE), least=1e-4)
    assert not torch.equal(kept, given)


def _without_last(inputs: AttentionInputs, count: int) -> AttentionInputs:
    return replace(
        inputs,
        query_starts=inputs.query_starts[:-count],
        context_lens=inputs.context_lens[:-count],
        tables=inputs.tables[:-count],
        num_prefill=inputs.num_prefill - count,
    )


@pytest.mark.parametrize("name", NAMES)
def test_steady_kernels_give_the_same_bits_however_a_prompt_is_cut(name: str) -> None:
    """As one prompt, in chunks beside another one, and as decode rows behind its first chunk."""
    from quire.backends.triton.invariant import SteadyKernels

    plan, count, read = PLANS[name], 21, []
    rule, rates = rule_of(plan, DEVICE), rates_of(plan, count)
    x = torch.randn(count, plan.channels, generator=generator(4)).to(DEVICE)
    kernels = SteadyKernels(
        HeadShape(2, 1, -(-plan.state_numbers // (2 * SIZE)) + 1, SIZE, torch.float32)
    )
    for cuts in ([count], [5, 6, 14, count], [3, *range(4, count + 1)]):
        caches, at = torch.zeros(2, 9, 1, SIZE, kernels.shape.head_dim, device=DEVICE), 0
        parts = []
        for end in cuts:
            other = 2 * (len(cuts) == 4)  # tokens of another text, in front
            ends = [end] if not other else [other, end]
            starts = torch.tensor([0, other, other + end - at][-len(ends) - 1 :])
            tables = torch.tensor([[8, 7, 6], [4, 2, 5]])[-len(ends) :].int()
            first = len(ends) - (at > 0 and end == at + 1)
            inputs = AttentionInputs(starts, torch.tensor(ends), tables, starts, first)
            given = torch.cat([x[:other], x[at:end]])
            more = None if rates is None else torch.cat([rates[:other], rates[at:end]]).to(DEVICE)
            step = kernels.plan_states(_on_device(inputs))
            parts.append(step.take_up(rule, given, more, *caches)[other:])
            at = end
        read.append((torch.cat(parts), caches[:, 5].clone()))
    for made, state in read[1:]:
        assert torch.equal(made, read[0][0]) and torch.equal(state, read[0][1])


def _on_device(inputs: AttentionInputs) -> AttentionInputs:
    starts, lengths = inputs.query_starts.int().to(DEVICE), inputs.context_lens.int().to(DEVICE)
    return replace(
        inputs, query_starts=starts, context_lens=lengths, tables=inputs.tables.to(DEVICE)
    )


def test_a_state_that_finds_no_room_is_refused() -> None:
    from quire.backends.triton.states import TritonStates

    starts, tables = torch.tensor([0, 1], device=DEVICE), torch.zeros(1, 1, device=DEVICE).int()
    made = TritonStates(starts, starts[1:], tables, SIZE)
    keys, values = torch.zeros(2, 1, 1, SIZE, 8, device=DEVICE)
    qkv, rates = torch.zeros(1, PLAN.channels, device=DEVICE), torch.zeros(1, 8, device=DEVICE)
    with pytest.raises(RuntimeError, match="room for 128 numbers"):
        made.take_up(rule_of(PLAN, DEVICE), qkv, rates, keys, values)
