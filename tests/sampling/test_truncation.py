from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.backends.cpu.native import library as native
from quire.backends.cpu.native.noise import Border
from quire.sampling import scan, truncation
from quire.sampling.truncation import Limits, truncate
from tests.sampling.making import limits_of, make_params, plain_kept


def in_c(scores: torch.Tensor, top: torch.Tensor, limits: Limits) -> Border:
    if native.library() is None:
        pytest.skip(f"no native kernels here: {native.loaded().text}")
    return truncate(scores, top, limits)


def by_heads(scores: torch.Tensor, top: torch.Tensor, limits: Limits) -> Border:
    """As where C cannot search."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(truncation, "can_search", lambda scores: False)
        return truncate(scores, top, limits)


Way = Callable[[torch.Tensor, torch.Tensor, Limits], Border]
BOTH_WAYS = pytest.mark.parametrize("way", [in_c, by_heads])


def kept_tokens(way: Way, scores: torch.Tensor, **fields: Any) -> list[set[int]]:
    """What is kept, with the same limits on every line."""
    lines, vocab = scores.shape
    kept = way(scores, scores.amax(1), limits_of([make_params(**fields)] * lines, vocab))
    masked = kept.masked(scores)
    stays = masked > -math.inf
    assert torch.equal(masked[stays], scores[stays])
    return [set(line.nonzero()[:, 0].tolist()) for line in stays]


LIMITS = st.fixed_dictionaries(
    {
        "top_k": st.sampled_from([0, 0, 1, 2, 5, 40, 700]),
        # Not fractions of small counts: there plain sums and exact ones may disagree.
        "top_p": st.sampled_from([1.0, 1e-9, 0.1013, 0.4987, 0.9017, 0.9907, 0.999903]),
        "min_p": st.sampled_from([0.0, 0.0, 1e-5, 0.0501, 0.3, 1.0]),
    }
)


@BOTH_WAYS
@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    vocab=st.sampled_from([1, 3, 50, 900]),
    width=st.sampled_from([0.0, 1e-3, 1.0, 4.0, 30.0]),
    shift=st.sampled_from([0.0, 500.0]),
    banned=st.sampled_from([0.0, 0.9]),
    fields=LIMITS,
)
def test_the_kept_tokens_are_those_of_a_full_sort(
    way: Way,
    seed: int,
    vocab: int,
    width: float,
    shift: float,
    banned: float,
    fields: dict[str, Any],
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(4, vocab, generator=generator) * width + shift
    hidden = torch.rand(4, vocab, generator=generator) < banned
    hidden[:, vocab // 2] = False
    scores[hidden] = -math.inf
    params = make_params(**fields)
    expected = [plain_kept(line.tolist(), params) for line in scores]
    assert kept_tokens(way, scores, **fields) == expected


@BOTH_WAYS
def test_tokens_that_tie_with_the_kth_all_stay(way: Way) -> None:
    assert kept_tokens(way, torch.tensor([[1.0, 5.0, 4.0, 4.0, 4.0, 0.0]]), top_k=2) == [
        {1, 2, 3, 4}
    ]


@BOTH_WAYS
def test_top_p_breaks_ties_at_its_boundary_by_token_id(way: Way) -> None:
    level = torch.zeros(1, 5000)
    assert kept_tokens(way, level, top_p=0.5) == [set(range(2500))]
    # A whole number of equal tokens is where rounding would show first.
    for share in (0.1, 0.3, 0.7, 0.9):
        (kept,) = kept_tokens(way, level, top_p=share)
        assert kept == set(range(len(kept)))
        assert abs(len(kept) - share * 5000) <= 1


@BOTH_WAYS
def test_top_p_is_exact_on_a_nearly_uniform_distribution(way: Way) -> None:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(2, 30_000, generator=generator) * 1e-2
    for share in (0.25, 0.95):
        for line, kept in zip(scores, kept_tokens(way, scores, top_p=share), strict=True):
            chances = np.exp(line.double().numpy())
            order = np.argsort(-chances, kind="stable")
            running = np.cumsum(chances[order]) / chances.sum()
            needed = int(np.searchsorted(running, share)) + 1
            # float32 probabilities: a hundred-thousandth of the tokens may be off, the set not.
            assert abs(len(kept) - needed) <= 2
            assert kept == set(order[: len(kept)].tolist())


@BOTH_WAYS
def test_top_p_counts_the_mass_that_top_k_and_min_p_left(way: Way) -> None:
    chances = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    assert kept_tokens(way, chances, top_p=0.75) == [{0, 1, 2}]
    # Of the first two 0.4 / 0.7 is 0.57 and not yet enough; with 0.5 it is.
    assert kept_tokens(way, chances, top_p=0.75, top_k=2) == [{0, 1}]
    assert kept_tokens(way, chances, top_p=0.5, top_k=2) == [{0}]
    assert kept_tokens(way, chances, top_p=0.5, min_p=0.6) == [{0}]


@BOTH_WAYS
def test_a_mixed_call_treats_each_line_by_its_own_limits(way: Way) -> None:
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(5, 2000, generator=generator) * torch.tensor([[0.0], [1], [3], [9], [1]])
    all_params = [
        make_params(top_p=0.301),
        make_params(top_k=7),
        make_params(min_p=0.2),
        make_params(top_k=50, top_p=0.801, min_p=0.01),
        make_params(),
    ]
    masked = way(scores, scores.amax(1), limits_of(all_params, 2000)).masked(scores)
    for line, kept_scores, params in zip(scores, masked, all_params, strict=True):
        expected = plain_kept(line.tolist(), params)
        assert set(torch.isfinite(kept_scores).nonzero()[:, 0].tolist()) == expected
        assert all(kept_scores[token] == line[token] for token in expected)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Where the lines that were looked at were cut, each time."""
    seen: list[torch.Tensor] = []

    def counted(scores: torch.Tensor, bounds: torch.Tensor, lines: torch.Tensor) -> Any:
        seen.append(bounds)
        return scan.heads(scores, bounds, lines)

    monkeypatch.setattr(truncation, "heads", counted)
    return seen


@pytest.mark.parametrize("share", [0.9, 0.95])
def test_a_shallow_head_is_enough_for_a_peaked_distribution(
    share: float, looks: list[torch.Tensor]
) -> None:
    scores = torch.arange(50_000, dtype=torch.float32).neg().mul(0.1)[None, :]
    (kept,) = kept_tokens(by_heads, scores, top_p=share)
    assert kept == set(range(math.ceil(-math.log(1 - share) / 0.1)))
    assert len(looks) == 1


@pytest.mark.parametrize("fields", [{"top_k": 40}, {"top_k": 1500, "top_p": 0.9}, {"min_p": 1e-5}])
@pytest.mark.parametrize("width", [0.5, 4.0, 30.0])
def test_top_k_and_min_p_say_how_deep_to_look(
    width: float, fields: dict[str, Any], looks: list[torch.Tensor]
) -> None:
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(3, 20_011, generator=generator) * width
    params = make_params(**fields)
    assert kept_tokens(by_heads, scores, **fields) == [
        plain_kept(line.tolist(), params) for line in scores
    ]
    assert len(looks) == 1


def test_lines_that_all_need_a_second_look_keep_their_own_tokens() -> None:
    """Their first heads differ in length, so they come back from it in another order."""
    torch.manual_seed(3)
    spread = torch.tensor([1.5, 3.0, 2.0, 2.5])[:, None]
    scores = torch.randn(4, 20_000) * spread
    top = scores.amax(1)
    wide = limits_of([make_params(top_p=0.995)] * 4, 20_000)
    together = by_heads(scores, top, wide).masked(scores)
    for line in range(4):
        one = torch.tensor([line])
        alone = by_heads(scores[one], top[one], wide.take(one)).masked(scores[one])
        assert torch.equal(together[one], alone)
