"""Decode, shared prefixes and prefill over the paged cache."""

from __future__ import annotations

import pytest
import torch

from quire.backends.ops import HeadShape
from tests.backends.triton.checks import Place, check_decode, check_prefill
from tests.backends.triton.places import real_cases, small_places

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


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize("window", [None, 150])
# Tiles of many blocks, blocks of many tiles, and of a number that is no power of two.
@pytest.mark.parametrize("slots", [1, 256, 384])
def test_blocks_may_be_smaller_and_larger_than_tiles(
    place: Place, window: int | None, slots: int
) -> None:
    shape = HeadShape(2, 1, 16, slots, place.dtype)
    check_decode(place, shape, [300, 0, 256, 1], window=window)
    check_prefill(place, shape, [(30, 290), (5, 0)], window=window)
    shared = ((-(-256 // slots), (0, 1, 2)),)
    check_decode(place, shape, [400, 600, 457], window=window, shared=shared)


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize("window", [None, 20])
def test_sinks_take_their_share(place: Place, window: int | None) -> None:
    """Of rows in one part and in several, with shared prefixes, and of slices."""
    shape = HeadShape(4, 2, 24, 16, place.dtype, sinks=True)
    check_decode(place, shape, [37, 0, 1, 1300, 16], window=window)
    check_decode(place, shape, [60, 30, 65, 99, 0, 1], window=window, shared=NESTED)
    check_prefill(place, shape, [(50, 0), (1, 70), (33, 21)], window=window)


@pytest.mark.parametrize("place", small_places())
def test_a_kv_head_may_have_more_queries_than_a_tile(place: Place) -> None:
    shape = HeadShape(71, 1, 16, 16, place.dtype)
    check_decode(place, shape, [50, 40, 33], shared=((2, (0, 1, 2)),))
    check_prefill(place, shape, [(3, 20), (2, 0)])


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "heads"), real_cases())
def test_attention_at_real_shapes(dtype: torch.dtype, heads: tuple[int, int, int]) -> None:
    place, shape = Place(torch.device("cuda"), dtype), HeadShape(*heads, 16, dtype)
    lengths = [(i * 977) % 2500 for i in range(60)]
    check_decode(place, shape, lengths)
    check_decode(place, shape, lengths, window=300)
    check_decode(
        place,
        shape,
        [900 + i for i in range(80)],
        shared=((32, tuple(range(70))), (50, tuple(range(3, 30)))),
        queries=128 if shape.head_dim == 128 else 64,
    )
    check_prefill(place, shape, [(700, 0), (130, 900), (1, 33), (64, 64)], queries=128)
    check_prefill(place, shape, [(300, 0), (130, 900)], window=200)


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("lengths", [[5000, 0, 3, 129, 640, 641], [1], [0, 0], [300] * 70])
def test_items_cover_every_row_once(lengths: list[int], window: int | None) -> None:
    """In order, without gaps; a row without a context has one item without tokens."""
    from quire.backends.triton.decode import DecodeAttention, DecodeBuffers

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = HeadShape(4, 2, 16, 16, torch.float32)
    buffers = DecodeBuffers.make(shape, len(lengths), device)
    attention = DecodeAttention(shape, buffers, len(lengths), window=window)
    tables = torch.zeros(len(lengths), 400, dtype=torch.int32, device=device)
    attention.plan(torch.tensor(lengths, dtype=torch.int32, device=device), tables)
    items, spans = attention._items.tolist(), attention._spans.tolist()
    seen = 0
    for row, (first, count) in enumerate(spans):
        at = max(0, lengths[row] - window) if window else 0
        for owner, begin, end, table_row in items[first : first + count]:
            assert (owner, begin, table_row) == (row, at if lengths[row] else 0, row)
            assert begin < end or not lengths[row]
            at = end
        assert at == lengths[row]
        seen += count
    assert all(owner == -1 for owner, *_ in items[seen:])
