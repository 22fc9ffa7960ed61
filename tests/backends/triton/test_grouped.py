"""Products with weights in codes of 4 and 8 bits: one kernel for all of their kinds."""

from __future__ import annotations

import pytest
import torch

from quire.backends.triton.grouped import GroupedTile
from tests.backends.triton.grouped_checks import check_plain, check_product, matrices
from tests.backends.triton.places import DEVICE, GPU_DTYPES

KINDS = tuple(matrices(1, 64, 64, torch.float32, torch.device("cpu")))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_a_product_is_that_of_the_plain_weight(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for lines, columns, group, rows in ((24, 128, 32, 3), (80, 128, 64, 17)):
        matrix = matrices(lines, columns, group, torch.float16, DEVICE)[kind]
        check_product(matrix, rows, dtype)
        check_plain(matrix, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_products_at_real_shapes(kind: str, dtype: torch.dtype) -> None:
    scales = torch.bfloat16 if dtype == torch.bfloat16 else torch.float16
    for lines, columns, group, rows in ((1000, 1024, 128, 16), (320, 512, 32, 40)):
        matrix = matrices(lines, columns, group, scales, DEVICE)[kind]
        check_product(matrix, rows, dtype)
        check_plain(matrix, dtype)


@pytest.mark.parametrize("splits", [1, 3])
def test_parts_of_a_sum_come_together(splits: int) -> None:
    torch.manual_seed(0)
    for kind in ("4 bits, zeros", "8 bits"):
        matrix = matrices(40, 256, 64, torch.float16, DEVICE)[kind]
        tile = GroupedTile(16, 16, 64, splits, 4, 2)
        # Twice, because the first leaves the counters as it found them.
        check_product(
            matrix, 20, torch.float16, tile, run=lambda linear, x: linear(x) * 0 + linear(x)
        )
