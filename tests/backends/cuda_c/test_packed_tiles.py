"""Which tiles products with codes of 4 bits take; no GPU is needed."""

from __future__ import annotations

import random

import pytest

from quire.backends.cuda_c.packed import LINES, PackedKind, busy_cores, can_split, packed_tile

KIND = PackedKind(group=128, half=False, scales_half=True, second=1, zero=0)


def test_blocks_of_any_weight_fill_the_cores_and_have_enough_to_do() -> None:
    random.seed(0)
    for _ in range(300):
        shape = (random.randrange(1, 2000) * 8, random.randrange(1, 300) * 64)
        for rows in (1, 8, 9, 16, 17, 32, 33, 100):
            tile, splits = packed_tile(KIND, rows, shape)
            assert tile.lines % 64 == 0
            assert tile.rows >= min(rows, 64)
            assert tile.stages >= 2
            assert splits == 1 or can_split(shape, tile, splits)
            assert splits == 1 or tile.steps(shape) // splits >= 4


@pytest.mark.parametrize("rows", [1, 16, 32])
def test_a_gated_product_has_whole_pairs_of_lines(rows: int) -> None:
    for lines in (128, 4096, 28672):
        tile, _ = packed_tile(KIND, rows, (lines, 4096), "gated")
        assert tile.lines % LINES == 0


def test_clusters_that_leave_places_count_as_more_waves() -> None:
    """32 clusters of 8 blocks do not fit where a core has two; 64 do where it has four."""
    tile, splits = packed_tile(KIND, 16, (4096, 14336))
    assert (tile.lines, tile.blocks, splits) == (64, 4, 8)
    large, whole = packed_tile(KIND, 16, (28672, 4096))
    assert (large.blocks, whole) == (2, 1)
    assert can_split((4096, 14336), large, 4)
    assert not can_split((4096, 14336), large, 8)
    assert busy_cores((4096, 14336), large, 8) < 0.5 < busy_cores((4096, 14336), tile, splits)
