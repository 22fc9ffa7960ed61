"""Drawing on the device gives the sampler's tokens."""

from __future__ import annotations

import pytest
import torch

from tests.backends.triton.checks import Place
from tests.backends.triton.places import GPU_DTYPES, small_places
from tests.backends.triton.sampling_checks import check_kept, check_noise, check_sampling
from tests.backends.triton.wishes import CUT, KEPT, PLAIN

# The interpreter is numpy, which speaks up where a device goes on with inf and NaN.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize("vocab", [300, 5000])
def test_whole_vocabulary(place: Place, vocab: int) -> None:
    check_sampling(place, PLAIN, vocab)


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize("vocab", [300, 5000])
def test_limits(place: Place, vocab: int) -> None:
    check_sampling(place, CUT, vocab)


@pytest.mark.parametrize("place", small_places())
def test_kept_sets(place: Place) -> None:
    check_kept(place, KEPT, 3000)


@pytest.mark.parametrize("place", small_places())
def test_noise_alone(place: Place) -> None:
    check_noise(place, 5000, 8)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_DTYPES)
def test_sampling_at_real_shapes(dtype: torch.dtype) -> None:
    place = Place(torch.device("cuda"), dtype)
    check_noise(place, 151_936, 256)
    check_sampling(place, PLAIN * 9, 151_936)
    check_sampling(place, CUT * 9, 128_256)
    check_kept(place, KEPT, 151_936)
    check_kept(place, KEPT, 151_936, spread=0.5)
