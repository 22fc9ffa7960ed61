"""Attention of long slices by the library's dense products."""

from __future__ import annotations

import pytest
import torch

from quire.backends.ops import HeadShape
from quire.backends.triton.dense import DenseSizes, cut, rows_around, serves, stretches_of, worth_it
from quire.backends.triton.kernels import TritonKernels
from tests.backends.triton.checks import Place
from tests.backends.triton.dense_checks import (
    SMALL,
    check_against_our_kernel,
    check_dense,
    pass_of,
)
from tests.backends.triton.places import DEVICE, small_places

HALVES = [place for place in small_places() if "32" not in str(getattr(place, "id", ""))]


@pytest.mark.parametrize("place", HALVES)
@pytest.mark.parametrize("roomy", [True, False])
def test_long_slices_between_short_ones(place: Place, roomy: bool) -> None:
    """With pasts of every kind: none, whole units, in the middle of one; and decode rows."""
    shape = HeadShape(4, 2, 64, 16, place.dtype)
    slices = [(40, 0), (5, 30), (33, 16), (90, 53), (150, 7), (3, 0)]
    check_dense(place, shape, slices, SMALL, num_decoding=2, roomy=roomy)


@pytest.mark.parametrize("place", HALVES)
@pytest.mark.parametrize("slices", [[(64, 0)], [(64, 64)], [(70, 58), (32, 96)]])
def test_nothing_may_be_left_over(place: Place, slices: list[tuple[int, int]]) -> None:
    shape = HeadShape(2, 1, 64, 8, place.dtype)
    check_dense(place, shape, slices, SMALL)


@pytest.mark.parametrize("place", HALVES)
def test_a_past_in_fp8_is_widened(place: Place) -> None:
    shape = HeadShape(2, 2, 64, 16, place.dtype, fp8_kv=True)
    check_dense(place, shape, [(40, 0), (45, 53), (4, 9)], SMALL)


def test_short_slices_and_other_heads_stay_with_our_kernel() -> None:
    """Windows, softcaps, float32 and other widths."""
    half = torch.float16
    plain = HeadShape(2, 1, 64, 16, half)
    assert serves(plain, None, DEVICE)
    assert not serves(plain, 100, DEVICE)
    assert not serves(HeadShape(2, 1, 64, 16, half, softcap=30.0), None, DEVICE)
    assert not serves(HeadShape(2, 1, 64, 16, half, sinks=True), None, DEVICE)
    assert not serves(HeadShape(2, 1, 64, 16, torch.float32), None, DEVICE)
    assert not serves(HeadShape(2, 1, 96, 16, half), None, DEVICE)
    inputs, _, _ = pass_of(Place(DEVICE, half), plain, [(29, 0), (20, 90)])
    assert TritonKernels(plain, SMALL).plan_attention(inputs, None).dense is None


@pytest.mark.parametrize(
    ("start", "count"), [(0, 64), (2500, 5000), (1, 4096), (77, 40_000), (0, 16_352), (0, 3900)]
)
def test_pieces_cover_a_slice_but_for_a_short_end(start: int, count: int) -> None:
    sizes = DenseSizes()
    at = start
    for piece in cut(start, count, sizes):
        assert piece.begin % sizes.unit == 0 and piece.rows in sizes.lengths
        assert piece.begin <= piece.first == at and piece.end <= piece.begin + piece.rows
        assert piece.rows <= 1.1 * (piece.end - piece.begin)
        past = stretches_of(piece.begin, sizes)
        assert [first for first, _ in past] == [0, *(first + size for first, size in past)][:-1]
        assert sum(size for _, size in past) == piece.begin
        at = piece.end
    assert 0 <= start + count - at < sizes.lengths[-1]


def test_only_large_calls_are_worth_it() -> None:
    """A slice that would be computed by many small ones stays with our kernel."""
    sizes = DenseSizes()
    small, large = (HeadShape(n, 2, 128, 16, torch.bfloat16) for n in (16, 32))
    for start, count, by in ((0, 4096, large), (0, 8192, small), (15_360, 4096, small)):
        assert worth_it(cut(start, count, sizes), by, sizes)
    for start, count, by in ((0, 4096, small), (0, 3000, large), (7168, 4096, small)):
        assert not worth_it(cut(start, count, sizes), by, sizes)


def test_lines_around_a_tensor_are_read_where_there_is_room() -> None:
    whole = torch.arange(40.0).view(10, 2, 2)
    assert rows_around(whole[3:7], -1, 6).data_ptr() == whole[2].data_ptr()
    assert rows_around(whole[3:7], -1, 6).equal(whole[2:8])
    padded = rows_around(whole[3:7], -4, 16)
    assert padded[4:8].equal(whole[3:7]) and not padded[:4].any() and not padded[8:].any()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_long_slices_at_real_shapes(dtype: torch.dtype) -> None:
    place = Place(torch.device("cuda"), dtype)
    for heads, kv_heads, width in ((16, 8, 128), (32, 8, 128), (9, 3, 64)):
        shape = HeadShape(heads, kv_heads, width, 16, dtype)
        slices = [(9000, 2500), (300, 40), (2600, 0), (20_000, 13_500), (7, 0)]
        check_against_our_kernel(place, shape, slices)
    fp8 = HeadShape(16, 8, 128, 16, dtype, fp8_kv=True)
    check_against_our_kernel(place, fp8, [(9000, 2500), (300, 40)])
