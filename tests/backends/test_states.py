"""Which blocks a pass reads states from and writes them to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from quire.backends.ops import AttentionInputs, StateStep
from quire.backends.states import Span, StateBlocks, state_pass
from quire.layer_parts.state import ConvolutionPlan, DeltaNetPlan, MambaPlan, StatePlan
from quire.layer_plan import NormPlan
from tests.backends.triton.test_states import rates_of, rule_of


def test_a_pass_goes_from_block_to_block() -> None:
    """Six tokens from position 2 on, three from the first on, and a row that begins its third
    block of 4."""
    inputs = AttentionInputs(
        query_starts=torch.tensor([0, 6, 9, 10]),
        context_lens=torch.tensor([8, 3, 9]),
        tables=torch.tensor([[7, 5, -1], [4, -1, -1], [0, 2, 6]]),
        slots=torch.empty(0),
        num_prefill=2,
    )
    made = state_pass(inputs, 4)
    assert made.spans == (Span(0, 2, 7, 7), Span(2, 6, 7, 5), Span(6, 9, None, 4))
    assert (made.before.tolist(), made.into.tolist(), made.first_decode) == ([2], [6], 9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_comes_back_as_it_was(dtype: torch.dtype) -> None:
    """Float32 whatever keys and values are, across the two halves of a block."""
    keys, values = torch.zeros(2, 5, 2, 4, 8, dtype=dtype)
    numbers = 51 if dtype == torch.bfloat16 else 101
    blocks, at = StateBlocks(keys, values, numbers), torch.tensor([3, 1])
    given = torch.randn(2, numbers)
    blocks.store(at, 0, given[:, :20])
    blocks.store(at, 20, given[:, 20:])
    assert torch.equal(blocks.load(at, 0, numbers), given)
    assert torch.equal(blocks.load(at.flip(0), 15, 40), given.flip(0)[:, 15:40])
    assert not keys[[0, 2, 4]].any() and not values[[0, 2, 4]].any()
    with pytest.raises(RuntimeError, match="room for"):
        StateBlocks(keys, values, 2 * 64 + 1)


REAL: dict[str, StatePlan] = {
    "qwen3.5": DeltaNetPlan(16, 16, 128, 128, 4, NormPlan(1e-6)),
    "granite": MambaPlan(48, 1, 128, 64, 4, NormPlan(1e-6)),
    "odd": DeltaNetPlan(3, 3, 20, 37, 4, NormPlan(1e-6)),
    "lfm2": ConvolutionPlan(1024, 3),
}
TEXT, SIZE = 40, 16


PlanPass = Callable[[AttentionInputs], StateStep]


def read_in(
    plan: StatePlan, cuts: list[int], others: int, plan_pass: PlanPass
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the tokens of a text read, in passes that end at `cuts` beside so many tokens of others,
    and its last state."""
    rule = rule_of(plan)
    x, rates = torch.randn(TEXT, plan.channels), rates_of(plan, TEXT)
    room = -(-plan.state_numbers // (2 * SIZE)) + 1
    keys, values = torch.zeros(2, 4 + others, 1, SIZE, room)
    read, at = [], 0
    for end in cuts:
        lengths = [1] * others  # the first tokens of other texts, in front and behind
        starts = torch.tensor([0, *lengths, end - at]).cumsum(0)
        context = torch.tensor([*lengths, end])
        tables = torch.tensor([[4 + i, -1, -1] for i in range(others)] + [[2, 0, 3]])
        first = others if at and end == at + 1 else others + 1  # num_prefill
        inputs = AttentionInputs(starts, context, tables, torch.empty(0), first)
        made = plan_pass(inputs)
        given = torch.cat([torch.randn(others, plan.channels), x[at:end]])
        more = None if rates is None else torch.cat([rates[:others], rates[at:end]])
        read.append(made.take_up(rule, given, more, keys, values)[others:])
        at = end
    state = StateBlocks(keys, values, plan.state_numbers)
    return torch.cat(read), state.load(torch.tensor([3]), 0, plan.state_numbers)


def at_once(inputs: AttentionInputs) -> StateStep:
    return state_pass(inputs, SIZE)


def check_bits(plan: StatePlan, plan_pass: PlanPass) -> None:
    """The same as one prompt, in chunks, and one token a pass, beside others or alone; and near
    what many tokens at once make."""
    ways = [([TEXT], 0), ([7, 20, 21, TEXT], 3), (list(range(1, TEXT + 1)), 1), ([TEXT], 5)]
    found = []
    for cuts, others in ways:
        torch.manual_seed(0)
        found.append(read_in(plan, cuts, others, plan_pass))
    for read, state in found[1:]:
        assert torch.equal(read, found[0][0]) and torch.equal(state, found[0][1])
    torch.manual_seed(0)
    read, state = read_in(plan, [TEXT], 0, at_once)
    torch.testing.assert_close(read, found[0][0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(state, found[0][1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", REAL)
def test_tokens_that_are_taken_up_one_by_one_have_the_same_bits_in_any_pass(name: str) -> None:
    check_bits(REAL[name], lambda inputs: state_pass(inputs, SIZE, one_by_one=True))


def test_many_tokens_at_once_do_not_promise_that() -> None:
    """Were this to fail, taking them up one by one would have lost its purpose."""
    found = []
    for cuts in ([TEXT], [7, 20, 21, TEXT]):
        torch.manual_seed(0)
        found.append(read_in(REAL["qwen3.5"], cuts, 0, at_once)[0])
    assert not torch.equal(*found)
