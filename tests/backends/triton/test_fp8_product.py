"""Products with weights that are kept in fp8, beside the same numbers in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.fp8 import FP8
from quire.backends.quantised.fp8_matrix import Fp8Matrix
from quire.backends.triton.fp8_product import Fp8Linear
from quire.backends.triton.grouped import Scratch
from tests.backends.triton.places import DEVICE

ON_GPU = DEVICE.type == "cuda"


def matrix(lines: int, columns: int, tall: int, wide: int) -> Fp8Matrix:
    """Scales of `tall` lines and `wide` columns; 0: all of them."""
    tall, wide = tall or lines, wide or columns
    codes = torch.randn(lines, columns, device=DEVICE).mul_(100).clamp_(-448, 448).to(FP8)
    scales = torch.rand(-(-lines // tall), -(-columns // wide), device=DEVICE) + 0.5
    return Fp8Matrix(codes, scales, tall, wide)


def rounded(x: Tensor, group: int) -> Tensor:
    """What is left of x: every run of so many columns by its largest number, as float64."""
    runs = F.pad(x.float(), (0, -x.shape[1] % group)).view(len(x), -1, group)
    scale = (runs.abs().amax(-1, keepdim=True) / 448).clamp_min(1e-12)
    codes = (runs * (1 / scale)).clamp(-448, 448).to(FP8)
    return (codes.double() * scale.double()).view(len(x), -1)[:, : x.shape[1]]


@pytest.mark.parametrize("columns", [1536, 1600] if ON_GPU else [128, 160])
@pytest.mark.parametrize(("tall", "wide"), [(0, 0), (1, 0), (128, 128), (64, 64)])
def test_rows_are_rounded_and_multiplied(tall: int, wide: int, columns: int) -> None:
    """Also with a last block of fewer columns; on a GPU by the library from 65 rows on, where it
    can, of rows that are no multiple of 4, too."""
    torch.manual_seed(columns)
    weight = matrix(640 if ON_GPU else 136, columns, tall, wide)
    plain, dtype = weight.dequantised().double(), torch.bfloat16 if ON_GPU else torch.float32
    bias = torch.randn(len(plain), device=DEVICE).to(dtype)
    linear = Fp8Linear(weight, bias, Scratch(DEVICE, dtype))
    for rows in (1, 64, 65, 301) if ON_GPU else (3,):
        x = torch.randn(rows, columns, device=DEVICE).to(dtype)
        x[0] *= 1000
        expected = (rounded(x, weight.wide) @ plain.t() + bias.double()).to(dtype).double()
        apart = (linear(x).double() - expected).norm(dim=1) / expected.norm(dim=1)
        assert apart.max() < 3e-3, (rows, apart)
