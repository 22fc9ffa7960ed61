"""Logprobs of drawn tokens on the device are the sampler's."""

from __future__ import annotations

import pytest
import torch

from tests.backends.triton.checks import Place
from tests.backends.triton.places import GPU_DTYPES, small_places
from tests.backends.triton.score_checks import check_scores

# The interpreter is numpy, which speaks up where a device goes on with inf and NaN.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize("vocab", [7, 300, 20_000])
def test_the_scores_are_the_samplers(place: Place, vocab: int) -> None:
    logits = place.random(8, vocab, seed=vocab) * 4
    logits[5, 2:] = -torch.inf  # fewer tokens than are wanted
    check_scores(place, logits, seed=vocab)


@pytest.mark.parametrize("place", small_places())
def test_ties_stand_in_the_order_of_their_ids(place: Place) -> None:
    logits = (place.random(7, 5000, seed=3) * 2).round()
    logits[5] = 0.0  # more ties than are put aside, and the likeliest behind them
    logits[5, 4900] = 1.0
    logits[4] = -torch.inf
    logits[4, 4000:] = 1.0
    check_scores(place, logits, seed=1)


def test_logits_may_stand_in_for_logprobs() -> None:
    place: Place = small_places()[0].values[0]  # type: ignore[attr-defined]
    check_scores(place, place.random(6, 500, seed=2) * 3, seed=2, as_logits=True)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_DTYPES)
def test_scores_at_real_shapes(dtype: torch.dtype) -> None:
    place = Place(torch.device("cuda"), dtype)
    for vocab in (49_152, 151_936):
        check_scores(place, place.random(200, vocab, seed=1) * 5, seed=vocab)
