"""Weights that stay quantised: their parts are stacked where one product can compute them."""

from __future__ import annotations

import pytest
import torch

from quire.backends.quantised.grouped import GroupedMatrix
from quire.weights.quantised.kept import stack
from tests.backends.triton import conftest  # noqa: F401 - before kernels: they are interpreted
from tests.backends.triton.grouped_checks import matrices

KINDS = matrices(32, 256, 32, torch.float16, torch.device("cpu"))


@pytest.mark.parametrize("kind", KINDS)
def test_alike_parts_stay_quantised(kind: str) -> None:
    made = stack([KINDS[kind]] * 2, torch.float32)
    assert isinstance(made, GroupedMatrix)
    assert torch.equal(made.dequantised(), torch.cat([KINDS[kind].dequantised()] * 2))


@pytest.mark.parametrize("other", ["4 bits, minima", "8 bits, minima", "4 bits, order"])
def test_parts_that_no_product_computes_together_become_plain(other: str) -> None:
    """Zeros beside minima, and columns in another order."""
    parts = [KINDS["4 bits, zeros"], KINDS[other]]
    made = stack(parts, torch.float32)
    assert isinstance(made, torch.Tensor)
    assert torch.equal(made, torch.cat([part.dequantised() for part in parts]))
