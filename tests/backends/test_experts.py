"""Experts over the tokens that chose them: every way of computing them gives the same."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends import generic
from quire.backends.experts import EveryExpert, GroupedExperts, LoopedExperts

HIDDEN, INNER, COUNT, PER_TOKEN = 32, 24, 6, 3
GATE = generic.gate("silu")


def weights(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    ups = torch.randn(COUNT, 2 * INNER, HIDDEN) / 6
    return ups.to(dtype), (torch.randn(COUNT, HIDDEN, INNER) / 5).to(dtype)


def routed(num_tokens: int) -> tuple[Tensor, Tensor]:
    """Experts of each token, none twice; the last expert is taken by nobody."""
    torch.manual_seed(num_tokens)
    chances = torch.rand(num_tokens, COUNT)
    chances[:, -1] = -1
    scores, chosen = chances.topk(PER_TOKEN, -1)
    return chosen, scores


def expected(x: Tensor, chosen: Tensor, scores: Tensor, ups: Tensor, downs: Tensor) -> Tensor:
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token, (experts, by) in enumerate(zip(chosen.tolist(), scores.tolist(), strict=True)):
        for expert, score in zip(experts, by, strict=True):
            gate, up = (ups[expert].double() @ x[token].double()).chunk(2)
            out[token] += score * (downs[expert].double() @ (F.silu(gate) * up))
    return out


def linears(stack: Tensor) -> list[partial[Tensor]]:
    return [partial(F.linear, weight=one) for one in stack]


@pytest.mark.parametrize("num_tokens", [1, 2, 37])
@pytest.mark.parametrize("kind", ["looped", "grouped", "every"])
def test_each_way_gives_the_sum_of_the_chosen(kind: str, num_tokens: int) -> None:
    ups, downs = weights(torch.float32)
    x = torch.randn(num_tokens, HIDDEN)
    chosen, scores = routed(num_tokens)
    if kind == "grouped":
        made = GroupedExperts(GATE, ups, downs)(x, chosen, scores)
    else:
        products = linears(ups), linears(downs)
        looped = LoopedExperts(GATE, *products, lambda count: -(-count // 8) * 8)
        made = (looped if kind == "looped" else EveryExpert(GATE, *products))(x, chosen, scores)
    wanted = expected(x, chosen, scores, ups, downs)
    assert float((made - wanted).abs().max()) < 1e-5


def test_a_token_gets_the_same_whoever_is_beside_it() -> None:
    """Sums go by expert, not by how scores happen to be sorted."""
    ups, downs = weights(torch.bfloat16)
    x = torch.randn(20, HIDDEN).bfloat16()
    chosen, scores = routed(20)
    grouped = GroupedExperts(GATE, ups, downs)
    together = grouped(x, chosen, scores)
    turned = grouped(x, chosen.flip(1), scores.flip(1))
    assert torch.equal(together, turned)
