"""The targets of a pass are gathered over its slices, and scored in bounded pieces."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from quire.executor.scoring import ScoredTargets, Scorer, num_lines_of, targets_of
from quire.step import Slice, Targets
from tests.executor.harness import ints

VOCAB, HIDDEN = 50, 8
HEAD = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(1))
STATES = torch.randn(40, HIDDEN, generator=torch.Generator().manual_seed(2))
STARTS = np.array([0, 10, 13, 33, 40], np.int64)


class Products:
    """Logits of some tokens, counting how they were asked for."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, hidden: Tensor, positions: Tensor) -> Tensor:
        self.sizes.append(len(positions))
        return hidden[positions] @ HEAD.T


def slices(num_top: int = 0) -> list[Slice]:
    def one(length: int, targets: Targets | None) -> Slice:
        return Slice(0, 0, np.zeros(length, np.int32), (), targets)

    return [
        one(10, Targets(ints(2, 3, 9, 9, 9), ints(4, 5, 6, 7, 8), num_top)),
        one(3, None),
        one(20, Targets(np.arange(20, dtype=np.int32), np.arange(20, dtype=np.int32), num_top)),
        one(7, Targets(ints(0), ints(49), num_top)),
    ]


def expected(one: Slice, start: int) -> tuple[list[float], list[int]]:
    assert one.targets is not None
    chances = (STATES @ HEAD.T).log_softmax(-1)
    logprobs, ranks = [], []
    pairs = zip(one.targets.offsets.tolist(), one.targets.token_ids.tolist(), strict=True)
    for offset, token in pairs:
        line = chances[start + offset]
        logprobs.append(float(line[token]))
        ranks.append(1 + int((line > line[token]).sum()))
    return logprobs, ranks


@pytest.mark.parametrize("lines", [1, 3, 7, 1000])
@pytest.mark.parametrize("num_top", [0, 4, -1])
def test_every_slice_gets_the_scores_of_its_own_targets(lines: int, num_top: int) -> None:
    products = Products()
    scorer = Scorer(products, num_lines=lines, as_logits=False)
    scored = scorer.score(slices(num_top), STARTS, STATES)
    assert sorted(scored) == [0, 2, 3]
    for i, scores in scored.items():
        one = slices(num_top)[i]
        logprobs, ranks = expected(one, int(STARTS[i]))
        assert one.targets is not None
        assert scores.token_ids.tolist() == one.targets.token_ids.tolist()
        assert scores.logprobs.tolist() == pytest.approx(logprobs, abs=1e-5)
        assert scores.ranks.tolist() == ranks
        assert scores.top_ids.shape == (len(ranks), VOCAB if num_top == -1 else num_top)
    assert max(products.sizes) <= lines


def test_a_pass_of_many_small_slices_makes_one_product() -> None:
    products = Products()
    many = [Slice(i, 0, ints(1, 2), (), Targets(ints(0, 1), ints(1, 2))) for i in range(20)]
    Scorer(products, num_lines=1000, as_logits=False).score(many, np.arange(0, 42, 2), STATES)
    assert products.sizes == [40]


def test_targets_of_one_position_share_its_logits() -> None:
    products = Products()
    one = Slice(0, 0, ints(1, 2, 3), (), Targets(ints(2, 2, 2, 2), ints(5, 6, 7, 8)))
    (scores,) = (
        Scorer(products, num_lines=1000, as_logits=False)
        .score([one], np.array([0, 3]), STATES)
        .values()
    )
    assert products.sizes == [1] and len(scores) == 4


def test_logits_where_the_engine_was_asked_for_them_and_log_probabilities_otherwise() -> None:
    scorer = Scorer(Products(), num_lines=1000, as_logits=True)
    asked = Slice(0, 0, ints(1), (), Targets(ints(0), ints(5)))
    always = Slice(1, 0, ints(1), (), Targets(ints(0), ints(5), as_asked=False))
    scored = scorer.score([asked, always], np.array([0, 1, 2]), STATES)
    assert float(scored[0].logprobs[0]) == pytest.approx(float((STATES @ HEAD.T)[0, 5]))
    assert float(scored[1].logprobs[0]) == pytest.approx(
        float((STATES @ HEAD.T).log_softmax(-1)[1, 5]), abs=1e-5
    )


def test_targets_are_kept_apart_by_what_they_want() -> None:
    mixed = [
        Slice(0, 0, ints(1), (), Targets(ints(0), ints(5), 2)),
        Slice(1, 0, ints(1), (), Targets(ints(0), ints(6), 0)),
        Slice(2, 0, ints(1), (), Targets(ints(0), ints(7), 2)),
    ]
    kinds = targets_of(mixed, np.arange(4))
    assert [(one.num_top, [i for i, _ in one.slices]) for one in kinds] == [(2, [0, 2]), (0, [1])]
    assert targets_of([Slice(0, 0, ints(1))], np.arange(2)) == []


@pytest.mark.parametrize(("lines", "num_top"), [(1, 0), (2, 3), (1000, -1)])
def test_named_tokens_are_scored_behind_the_likeliest(lines: int, num_top: int) -> None:
    named = np.array([[4, 49], [-1, 7], [0, -1]], np.int32)
    one = Slice(
        0, 0, ints(1, 2, 3), (), Targets(ints(0, 2, 2), ints(5, 6, 7), num_top, True, named)
    )
    plain = Slice(1, 0, ints(1), (), Targets(ints(0), ints(5), num_top))
    scorer = Scorer(Products(), num_lines=lines, as_logits=False)
    scored = scorer.score([one, plain], np.array([0, 3, 4]), STATES)
    chances = (STATES @ HEAD.T).log_softmax(-1)
    for line, at, ids in zip(scored[0].top_logprobs, (0, 2, 2), named.tolist(), strict=True):
        for value, token in zip(line[-2:].tolist(), ids, strict=True):
            assert token == -1 or value == pytest.approx(float(chances[at, token]), abs=1e-5)
    count = VOCAB if num_top == -1 else num_top
    assert scored[0].top_ids.shape == (3, count + 2) and scored[1].top_ids.shape == (1, count)


def test_targets_that_share_a_line_come_after_those_that_do_not() -> None:
    named = np.array([[1], [2], [3]])
    asked = ScoredTargets(np.array([3, 3, 4]), np.array([7, 8, 9]), named, ((0, 3),), 0, False)
    (piece,) = asked.pieces(100)
    assert piece.positions.tolist() == [3, 4] and piece.shared_lines.tolist() == [0]
    assert piece.tokens.tolist() == [7, 9, 8] and piece.places.tolist() == [0, 2, 1]
    assert piece.named.tolist() == [[1], [3], [2]]


def test_at_least_one_line_is_made_at_once() -> None:
    assert num_lines_of(28 << 20, 49152, torch.float32) == 149
    assert num_lines_of(1000, 10**6, torch.float32) == 1
