"""Norms, gate and the packed qkv, in the interpreter and on a GPU."""

from __future__ import annotations

import pytest
import torch

from quire.backends.ops import HeadShape
from tests.backends.triton.checks import Place, check_activations, check_heads, check_norms
from tests.backends.triton.places import GPU_DTYPES, small_places


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize("width", [48, 64, 1030])
def test_norms_agree_with_their_reference(place: Place, width: int) -> None:
    check_norms(place, 5, width)


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize("width", [40, 1100])
def test_gates_and_activations_agree_with_their_reference(place: Place, width: int) -> None:
    check_activations(place, 3, width)


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(4, 2, 16), (3, 1, 80), (2, 2, 96)])
def test_heads_are_normed_turned_and_stored(
    place: Place, normed: bool, heads: int, kv_heads: int, width: int
) -> None:
    check_heads(place, HeadShape(heads, kv_heads, width, 8, place.dtype), 9, normed=normed)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_DTYPES)
def test_elementwise_at_real_shapes(dtype: torch.dtype) -> None:
    place = Place(torch.device("cuda"), dtype)
    check_norms(place, 700, 4096)
    check_activations(place, 700, 14336)
    check_heads(place, HeadShape(16, 8, 128, 16, dtype), 1000, normed=True)
    check_heads(place, HeadShape(32, 8, 64, 16, dtype), 1000, normed=False)
