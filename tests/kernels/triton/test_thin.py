"""The products of steps with few rows: what norm, product, gate and sum are one by one."""

from __future__ import annotations

import pytest

from tests.kernels.triton.checks import Place
from tests.kernels.triton.places import GPU_DTYPES, small_places
from tests.kernels.triton.thin_checks import check_thin


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize(("rows", "depth"), [(3, 32), (16, 64)])
def test_a_layer_of_few_rows(place: Place, rows: int, depth: int) -> None:
    """Sizes that no tile divides, with and without a bias."""
    check_thin(place, rows, hidden=96, inner=80, depth=depth, has_bias=rows == 3)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_DTYPES)
@pytest.mark.parametrize("rows", [1, 8, 16])
def test_a_layer_of_real_size(dtype: object, rows: int) -> None:
    import torch

    check_thin(Place(torch.device("cuda"), dtype), rows, hidden=4096, inner=14336)  # type: ignore[arg-type]
