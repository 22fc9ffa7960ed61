"""What tests of products in CUDA C++ share."""

from __future__ import annotations

import torch
from torch import Tensor


def random(*size: int, spread: float = 1.0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return (torch.randn(*size, device="cuda") * spread).to(dtype)


def assert_near(found: Tensor, expected: Tensor, most: float = 4e-3) -> None:
    assert found.shape == expected.shape
    assert not found.isnan().any()
    apart = (found.double() - expected.double()).norm() / expected.double().norm()
    assert float(apart) < most
