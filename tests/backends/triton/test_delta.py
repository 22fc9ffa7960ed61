"""States of Gated DeltaNet by the kernels of a GPU, against plain torch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from quire.backends.ops import AttentionInputs, DeltaRule
from quire.backends.states import state_pass
from quire.layer_plan import DeltaNetPlan, NormPlan
from tests.backends.triton.checks import assert_close, generator
from tests.backends.triton.places import DEVICE

PLAN = DeltaNetPlan(4, 2, 6, 20, 4, NormPlan(1e-6))
PLANS = {
    "heads in a row": PLAN,
    "heads in turn": replace(PLAN, in_turn=True),
    "no reach": replace(PLAN, reach=1, num_key_heads=4, key_dim=16),
    "real size": DeltaNetPlan(32, 16, 128, 128, 4, NormPlan(1e-6)),
}
NAMES = [pytest.param(name, marks=[pytest.mark.gpu] * name.startswith("real")) for name in PLANS]
SIZE = 8
# (tokens of the pass, tokens before them): across blocks, from the first on, within one, and one
# token that ends a block, begins one, or stands in its middle; the last two rest.
SLICES = [(18, 0), (9, 6), (2, 7), (1, 15), (1, 8), (1, 3), (1, 0), (1, 0)]
RESTING = 2


def rule_of(plan: DeltaNetPlan) -> DeltaRule:
    made = generator(3)
    taps = torch.randn(plan.channels, plan.reach, generator=made)
    slopes, shifts = torch.randn(2, plan.num_heads, generator=made)
    return DeltaRule(plan, taps, slopes, shifts)


def on_device(rule: DeltaRule) -> DeltaRule:
    moved = (one.to(DEVICE) for one in (rule.convolution, rule.log_slopes, rule.shifts))
    return DeltaRule(rule.plan, *moved)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_taken_up_in_the_blocks_of_their_rows(name: str, single: bool) -> None:
    """What tokens read, and every state that a later one may begin from; nothing else changes.
    `single`: one token each, under tables that are reached by way of rows."""
    from quire.backends.triton.delta import TritonStates

    plan, slices = PLANS[name], SLICES[3:] if single else SLICES[:4]
    lengths = torch.tensor([new + past for new, past in slices])
    width = -(-int(lengths.max()) // SIZE)
    order = torch.randperm(len(slices) * width + 2, generator=generator(1))
    tables = order[: len(slices) * width].view(-1, width)
    starts = torch.tensor([0, *(new for new, _ in slices)]).cumsum(0)
    count, room = int(starts[-1]), plan.state_numbers // 2 + 3
    given = torch.randn(2, len(order), 1, SIZE, -(-room // SIZE), generator=generator(2))
    qkv = torch.randn(count, plan.channels + 5, generator=generator(4))[:, :-5]
    rates = torch.randn(count, 2 * plan.num_heads, generator=generator(5))
    kept, cache = given.clone(), given.clone().to(DEVICE)
    active = lengths.clone()
    if single:
        active[-RESTING:] = 0
    inputs = AttentionInputs(starts, lengths, tables, starts, len(slices))
    live = int(starts[len(slices) - (RESTING if single else 0)])
    some = inputs if not single else _without_last(inputs, RESTING)
    wanted = state_pass(some, SIZE).take_up(rule_of(plan), qkv[:live], rates[:live], *kept)
    turned, rows = tables.flip(0).int().to(DEVICE), None
    if single:
        rows = torch.arange(len(slices) - 1, -1, -1, dtype=torch.int32, device=DEVICE)
    made = TritonStates(
        *(starts.to(DEVICE), active.to(DEVICE), turned if single else tables.int().to(DEVICE)),
        SIZE,
        rows,
        single,
    )
    read = made.take_up(on_device(rule_of(plan)), qkv.to(DEVICE), rates.to(DEVICE), *cache)
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


def test_a_state_that_finds_no_room_is_refused() -> None:
    from quire.backends.triton.delta import TritonStates

    starts, tables = torch.tensor([0, 1], device=DEVICE), torch.zeros(1, 1, device=DEVICE).int()
    made = TritonStates(starts, starts[1:], tables, SIZE)
    keys, values = torch.zeros(2, 1, 1, SIZE, 8, device=DEVICE)
    qkv, rates = torch.zeros(1, PLAN.channels, device=DEVICE), torch.zeros(1, 8, device=DEVICE)
    with pytest.raises(RuntimeError, match="room for 128 numbers"):
        made.take_up(on_device(rule_of(PLAN)), qkv, rates, keys, values)
