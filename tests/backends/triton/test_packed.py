"""Attention from the packed projection: what norm_rope_store and attend make of it in two steps."""

from __future__ import annotations

import pytest
import torch

from quire.backends.ops import HeadShape
from quire.backends.triton.decode import DecodeAttention, DecodeBuffers
from tests.backends.triton.checks import Place
from tests.backends.triton.places import GPU_DTYPES, small_places
from tests.backends.triton.thin_checks import check_packed


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("window", [None, 20])
def test_rows_of_any_length(place: Place, normed: bool, window: int | None) -> None:
    """One of many pieces, one whose new token begins a block, one of that token alone, nobody."""
    shape = HeadShape(4, 2, 32, 16, place.dtype)
    check_packed(place, shape, [530, 33, 1, 0, 32], window=window, normed=normed)


@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(3, 3, 16), (6, 2, 24), (8, 1, 64)])
def test_heads_of_any_number_and_width(heads: int, kv_heads: int, width: int) -> None:
    place = Place(torch.device("cuda" if torch.cuda.is_available() else "cpu"), torch.float32)
    shape = HeadShape(heads, kv_heads, width, 16, place.dtype)
    check_packed(place, shape, [40, 7], window=None, normed=True)


def test_rows_that_share_prefixes_are_not_taken() -> None:
    shape = HeadShape(2, 1, 16, 16, torch.float32)
    attention = DecodeAttention(shape, DecodeBuffers.make(shape, 1, torch.device("cpu")), 1)
    assert attention.takes_packed
    fp8 = HeadShape(2, 1, 32, 16, torch.bfloat16, fp8_kv=True)
    attention = DecodeAttention(fp8, DecodeBuffers.make(fp8, 1, torch.device("cpu")), 1)
    assert not attention.takes_packed


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_DTYPES)
@pytest.mark.parametrize(("heads", "normed"), [(32, False), (16, True)])
def test_real_heads(dtype: torch.dtype, heads: int, normed: bool) -> None:
    place = Place(torch.device("cuda"), dtype)
    shape = HeadShape(heads, 8, 128, 16, dtype)
    check_packed(place, shape, [1024, 5000, 17, 1, 0, 128], window=None, normed=normed)
    check_packed(place, shape, [1024, 5000, 17, 1, 0, 128], window=300, normed=normed)
