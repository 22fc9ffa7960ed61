"""Decode, shared prefixes and prefill over the paged cache."""

from __future__ import annotations

import pytest
import torch

from quire.kernels.ops import HeadShape
from tests.kernels.triton.checks import Place, check_decode, check_prefill
from tests.kernels.triton.places import GPU_DTYPES, small_places

SHAPES = [(4, 2, 16, 8), (3, 1, 80, 16), (2, 2, 32, 16)]
# rows 0 2 3 4 begin with two blocks, and 2 3 of them with two more
NESTED = ((2, (0, 2, 3, 4)), (4, (2, 3)))


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize(("heads", "kv_heads", "width", "slots"), SHAPES)
def test_decode(
    place: Place, window: int | None, heads: int, kv_heads: int, width: int, slots: int
) -> None:
    shape = HeadShape(heads, kv_heads, width, slots, place.dtype)
    check_decode(place, shape, [37, 0, 1, 300, 16, 0, 129], window=window)


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize(("heads", "kv_heads", "width", "slots"), SHAPES)
def test_shared_prefixes_of_two_levels(
    place: Place, window: int | None, heads: int, kv_heads: int, width: int, slots: int
) -> None:
    shape = HeadShape(heads, kv_heads, width, slots, place.dtype)
    lengths = [60, 30, 65, 99, 0, 1]
    check_decode(place, shape, lengths, window=window, shared=NESTED)


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize(("heads", "kv_heads", "width", "slots"), SHAPES)
def test_prefill_with_and_without_a_past(
    place: Place, window: int | None, heads: int, kv_heads: int, width: int, slots: int
) -> None:
    shape = HeadShape(heads, kv_heads, width, slots, place.dtype)
    check_prefill(place, shape, [(50, 0), (1, 70), (33, 21), (4, 0)], window=window)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_DTYPES)
def test_attention_at_real_shapes(dtype: torch.dtype) -> None:
    place = Place(torch.device("cuda"), dtype)
    lengths = [(i * 977) % 2500 for i in range(60)]
    for heads, kv_heads, width in ((16, 8, 128), (32, 8, 64), (8, 8, 96), (16, 1, 256)):
        shape = HeadShape(heads, kv_heads, width, 16, dtype)
        check_decode(place, shape, lengths)
        check_decode(place, shape, lengths, window=300)
        check_decode(
            place,
            shape,
            [900 + i for i in range(80)],
            shared=((32, tuple(range(70))), (50, tuple(range(3, 30)))),
            queries=128 if width == 128 else 64,
        )
        check_prefill(place, shape, [(700, 0), (130, 900), (1, 33), (64, 64)], queries=128)
        check_prefill(place, shape, [(300, 0), (130, 900)], window=200)
