"""Sums of rows that do not depend on the other rows of a pass."""

from __future__ import annotations

import torch
from torch import Tensor


def in_halves(x: Tensor) -> Tensor:
    """The sums of rows [T, 1]. Halves are added until one number is left: a row gets the same bits
    in any batch, on any device."""
    while (width := x.shape[1]) > 1:
        half = width // 2
        rest = x[:, 2 * half :]
        x = torch.cat([x[:, :half] + x[:, half : 2 * half], rest], 1)
    return x


def mean_square(x: Tensor) -> Tensor:
    """Of the numbers of each row, in float32 [T, 1]."""
    return in_halves(x.float().square()) / x.shape[1]
