"""The products of steps with few rows: what norm, product, gate and sum are one by one."""

from __future__ import annotations

import pytest
import torch

from quire.backends.triton.jit import waiting
from quire.backends.triton.small_batch import (
    LEAST_COLUMNS,
    ROWS,
    Product,
    ThinTile,
    spread_out,
    thin_tile,
)
from tests.backends.triton.checks import Place
from tests.backends.triton.places import DEVICE, GPU_DTYPES, small_places
from tests.backends.triton.thin_checks import check_thin


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize(("rows", "columns"), [(3, 16), (20, 32)])
def test_a_layer_of_few_rows(place: Place, rows: int, columns: int) -> None:
    """Sizes that no tile divides, with and without a bias, and sums in pieces or whole."""
    tile = ThinTile(columns, 64, 4, 2)
    check_thin(place, rows, hidden=96, inner=80, tile=tile, has_bias=rows == 3)


@pytest.mark.parametrize("lines", [40, 2_048, 4_096, 14_336, 28_672, 150_000])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", ROWS)
def test_tiles_fit_into_the_memory_a_program_may_have(
    lines: int, gated: bool, dtype: torch.dtype, rows: int
) -> None:
    """From 99 KiB, a consumer GPU, to 227 KiB; and there are no more programs for it."""
    product = Product(rows, lines, 14_336, dtype, normed=True, gated=gated, has_bias=False)
    small, large = (thin_tile(product, room << 10) for room in (99, 227))
    assert product.num_bytes(small) <= 99 << 10
    assert product.num_bytes(large) <= 227 << 10
    assert small.columns == large.columns
    assert small.depth >= 16 * product.num_pieces(small)
    assert small.columns >= LEAST_COLUMNS


@pytest.mark.parametrize("lines", [1_024, 4_096, 6_144, 28_672, 150_000])
@pytest.mark.parametrize("gated", [False, True])
def test_a_core_has_no_room_for_programs_that_others_should_have(lines: int, gated: bool) -> None:
    """Where kernels overlap, and there are no more programs than cores."""
    product = Product(16, lines, 4_096, torch.bfloat16, normed=True, gated=gated, has_bias=False)
    room = 227 << 10
    plain = thin_tile(product, room)
    tile = spread_out(product, plain, room)
    if product.num_tiles(tile) > 132 or tile.columns == LEAST_COLUMNS:
        assert tile == plain
    else:
        assert 2 * product.least_bytes(tile) > room
    assert product.num_bytes(tile) <= room
    assert (tile.columns, tile.depth, tile.warps) == (plain.columns, plain.depth, plain.warps)


def test_kernels_overlap_only_where_the_gpu_can() -> None:
    """No launch option is passed where it is not known: older GPUs, the interpreter."""
    able = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
    expected = {"OVERLAPS": True, "launch_pdl": True} if able else {"OVERLAPS": False}
    assert waiting() == expected


def test_a_layer_whose_products_have_different_tiles() -> None:
    """The stream's squares are written in tiles of 16 and read by a product with tiles of 64."""
    check_thin(Place(DEVICE, torch.float32), 3, hidden=48, inner=2_200)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_DTYPES)
@pytest.mark.parametrize("rows", [1, 16, 17, 32])
def test_a_layer_of_real_size(dtype: object, rows: int) -> None:
    check_thin(Place(torch.device("cuda"), dtype), rows, hidden=4096, inner=14336)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outer", "inner", "dtype", "capability", "expected"),
    [
        (4096, 4096, torch.bfloat16, (9, 0), True),
        (4096, 4096, torch.bfloat16, (8, 0), False),
        (4096, 4096, torch.float32, (9, 0), False),
        (32003, 4096, torch.bfloat16, (9, 0), False),
        (4096, 4100, torch.bfloat16, (9, 0), False),
        (96, 48, torch.bfloat16, (9, 0), False),
    ],
)
def test_products_are_left_to_the_kernels_for_hopper_that_have_their_sizes(
    outer: int, inner: int, dtype: torch.dtype, capability: tuple[int, int], expected: bool
) -> None:
    product = Product(16, outer, inner, dtype, normed=True, gated=False, has_bias=False)
    assert product.is_tiled(capability) == expected
