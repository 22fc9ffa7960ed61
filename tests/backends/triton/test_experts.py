"""Experts on the device: what the chosen ones make of tokens, whatever the routing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quire.backends import generic
from quire.backends.experts import Choice, LoopedExperts
from quire.backends.triton import experts
from quire.backends.triton.choice import choice_by
from quire.backends.triton.experts import ExpertWeights, FusedExperts, Tile, tile_for
from quire.layer_plan import ExpertsPlan, MlpPlan
from tests.backends.triton.checks import Place, assert_close
from tests.backends.triton.places import DEVICE, small_places

SMALL = Tile(rows=16, columns=32, depth=16, warps=1, stages=1)


def looped(ups: ExpertWeights, downs: ExpertWeights) -> LoopedExperts:
    """One expert after the other, by plain products."""

    def linears(of: ExpertWeights) -> list[torch.nn.Linear]:
        made = []
        for number, weight in enumerate(of.weights):
            linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=of.biases is not None)
            linear.weight = torch.nn.Parameter(weight, requires_grad=False)
            if of.biases is not None:
                linear.bias = torch.nn.Parameter(of.biases[number], requires_grad=False)
            made.append(linear)
        return made

    return LoopedExperts(generic.gate("silu"), linears(ups), linears(downs), lambda count: count)


def drawn(
    place: Place, experts: int, hidden: int, inner: int, *, biased: bool
) -> tuple[ExpertWeights, ExpertWeights]:
    def some(*size: int) -> Tensor:
        return (torch.randn(*size) / 5).to(place.device, place.dtype)

    ups, downs = some(experts, 2 * inner, hidden), some(experts, hidden, inner)
    if not biased:
        return ExpertWeights(ups), ExpertWeights(downs)
    return ExpertWeights(ups, some(experts, 2 * inner)), ExpertWeights(downs, some(experts, hidden))


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize(
    ("tokens", "experts", "per_token", "hidden", "inner"),
    [(1, 5, 2, 32, 16), (7, 6, 3, 48, 24), (40, 3, 2, 32, 40)],
)
@torch.inference_mode()
def test_tokens_get_the_sum_of_their_experts(
    place: Place, tokens: int, experts: int, per_token: int, hidden: int, inner: int
) -> None:
    """Sizes that no tile divides, an expert that no token took, several tiles of one expert."""
    torch.manual_seed(tokens)
    ups, downs = drawn(place, experts, hidden, inner, biased=tokens == 7)
    x = torch.randn(tokens, hidden).to(place.device, place.dtype)
    chances = torch.rand(tokens, experts)
    chances[:, 1] = -1
    scores, chosen = (one.to(place.device) for one in chances.topk(per_token, -1))
    fused = FusedExperts(generic.gate("silu"), ups, downs, tile=SMALL)
    made = fused(x, chosen, scores)
    wanted = looped(ups, downs)(x, chosen, scores)
    assert_close(made, wanted)


@pytest.mark.parametrize("place", small_places())
@torch.inference_mode()
def test_one_expert_may_have_every_token(place: Place) -> None:
    torch.manual_seed(3)
    ups, downs = drawn(place, 4, 32, 16, biased=False)
    x = torch.randn(50, 32).to(place.device, place.dtype)
    chosen = torch.full((50, 1), 3, device=place.device)
    scores = torch.rand(50, 1, device=place.device)
    made = FusedExperts(generic.gate("silu"), ups, downs, tile=SMALL)(x, chosen, scores)
    wanted = looped(ups, downs)(x, chosen, scores)
    assert_close(made, wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("num_pairs", [1, 8, 512, 2_048, 8_192, 131_072])
def test_tiles_fit_into_the_memory_a_program_may_have(num_pairs: int, dtype: torch.dtype) -> None:
    tile = tile_for(num_pairs, 128, dtype)
    assert (tile.rows + tile.columns) * tile.depth * dtype.itemsize * tile.stages <= 227 << 10


@pytest.mark.parametrize("place", small_places())
@torch.inference_mode()
def test_many_pairs_are_put_in_order_by_many_programs(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(4)
    ups, downs = drawn(place, 5, 32, 16, biased=False)
    x = torch.randn(90, 32).to(place.device, place.dtype)
    scores, chosen = (one.to(place.device) for one in torch.rand(90, 5).topk(2, -1))
    fused = FusedExperts(generic.gate("silu"), ups, downs, tile=SMALL)
    by_one = fused(x, chosen, scores)
    monkeypatch.setattr(experts, "FEW_PAIRS", 0)
    assert torch.equal(fused(x, chosen, scores), by_one)
    assert_close(by_one, looped(ups, downs)(x, chosen, scores))


PLAIN = ExpertsPlan(count=11, per_token=3, expert=MlpPlan(8))
PLANS = {
    "plain": PLAIN,
    "made to add up to 1": replace(PLAIN, renormalise=True, factor=2.5),
    "sigmoid and bias": replace(PLAIN, score="sigmoid", choice_bias=True, renormalise=True),
    "all of them": ExpertsPlan(count=4, per_token=4, expert=MlpPlan(8)),
}


@pytest.mark.parametrize("name", PLANS)
def test_tokens_choose_as_torch_has_them_choose(name: str) -> None:
    torch.manual_seed(5)
    plan = PLANS[name]
    products = torch.randn(9, plan.count, device=DEVICE) * 2
    bias = torch.randn(plan.count, device=DEVICE) if plan.choice_bias else None
    chosen, scores = choice_by(plan, bias)(products)
    wanted, wanted_scores = Choice(plan, bias)(products)
    assert torch.equal(chosen, wanted)
    torch.testing.assert_close(scores, wanted_scores)


def test_the_first_of_equal_experts_is_taken_and_no_other_number() -> None:
    plan = PLANS["made to add up to 1"]
    products = torch.zeros(2, plan.count, device=DEVICE)
    if DEVICE.type == "cuda":  # the interpreter refuses
        products[1] = torch.nan
    chosen, scores = choice_by(plan, None)(products)
    assert chosen[0].tolist() == [0, 1, 2] and 0 <= int(chosen.min()) <= int(chosen.max()) < 11
    torch.testing.assert_close(scores[0], torch.full((3,), 2.5 / 3, device=DEVICE))


def test_groups_of_experts_and_those_chosen_one_by_one_are_left_to_torch() -> None:
    for other in ({"count": 12, "groups": 4, "groups_taken": 2}, {"apart": 0.02}):
        assert isinstance(choice_by(replace(PLAIN, **other), None), Choice)
