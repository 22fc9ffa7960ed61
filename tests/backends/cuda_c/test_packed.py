"""Products with codes of 4 bits in CUDA C++, beside the plain weight in float32; on a GPU."""

from __future__ import annotations

import pytest
import torch

from quire.backends.cuda_c.linear import PackedLinear, is_packed
from quire.backends.cuda_c.packed import (
    MOST_ROWS,
    kind_of,
    multiply_packed,
    with_stages,
)
from quire.backends.quantised.fragments import fragments
from quire.backends.triton.grouped import Scratch
from tests.backends.triton.grouped_checks import matrices

pytestmark = pytest.mark.gpu
KINDS = ("4 bits", "4 bits, zeros", "4 bits, minima")
# Lines that fill no block, that fill one, many; columns of part of a stage, and of many.
SHAPES = ((8, 64), (1000, 1024), (264, 14336))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [32, 64, 128, 0])
def test_product_is_that_of_the_plain_weight(kind: str, group: int) -> None:
    torch.manual_seed(0)
    for lines, columns in SHAPES:
        size = group or columns
        if columns % size:
            continue
        for dtype in (torch.bfloat16, torch.float16)[: 2 if group == 128 else 1]:
            matrix = matrices(lines, columns, size, dtype, torch.device("cuda"))[kind]
            packed, plain = fragments(matrix, dtype), matrix.dequantised()
            for rows in (1, 3, 16, 17, 33, 64, 100):
                x = torch.randn(rows, columns, device="cuda").to(dtype)
                bias = torch.randn(lines, device="cuda").to(dtype) if rows % 2 else None
                expected = x.double() @ plain.double().t()
                expected = expected if bias is None else expected + bias.double()
                found = multiply_packed(packed, x, bias)
                apart = (found.double() - expected.to(dtype).double()).norm() / expected.norm()
                assert apart < 1e-3, (lines, columns, dtype, rows, float(apart))
                assert torch.equal(found, multiply_packed(packed, x, bias)), "not the same bits"


@pytest.mark.parametrize("size", [(1, 8, 4, 2), (2, 8, 4, 1), (4, 2, 4, 2), (8, 1, 2, 1)])
def test_any_tile_and_any_split_give_the_same(size: tuple[int, int, int, int]) -> None:
    torch.manual_seed(0)
    matrix = matrices(520, 4160, 32, torch.bfloat16, torch.device("cuda"))["4 bits, zeros"]
    packed, plain = fragments(matrix, torch.bfloat16), matrix.dequantised()
    x = torch.randn(16, 4160, device="cuda").to(torch.bfloat16)
    expected = x.double() @ plain.double().t()
    tile = with_stages(kind_of(packed, torch.bfloat16), 16, size)
    for splits in (1, 2, 8):
        found = multiply_packed(packed, x, None, tile=tile, splits=splits)
        rounded = expected.to(torch.bfloat16).double()
        assert (found.double() - rounded).norm() / expected.norm() < 1e-3


def test_a_row_of_nan_stays_alone() -> None:
    matrix = matrices(128, 256, 128, torch.bfloat16, torch.device("cuda"))["4 bits, zeros"]
    x = torch.randn(5, 256, device="cuda").to(torch.bfloat16)
    packed = fragments(matrix, torch.bfloat16)
    alone = multiply_packed(packed, x, None)
    x[2] = float("nan")
    found = multiply_packed(packed, x, None)
    assert found[2].isnan().all()
    kept = [0, 1, 3, 4]
    assert torch.equal(found[kept], alone[kept])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [*KINDS, "4 bits, order"])
def test_many_rows_take_the_plain_weight(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    matrix = matrices(264, 512, 64, torch.float16, torch.device("cuda"))[kind].narrowed()
    assert is_packed(matrix, dtype)
    expected = matrix.dequantised(dtype)
    bias = torch.randn(264, device="cuda").to(dtype)
    kept, made = (
        PackedLinear(matrix, bias, Scratch(matrix.device, dtype), keeps_plain=keeps)
        for keeps in (True, False)
    )
    ordered = expected if matrix.order is None else expected[:, matrix.order]
    assert torch.equal(made.made_plain(), ordered)
    for rows in (MOST_ROWS, MOST_ROWS + 1):
        x = torch.randn(rows, 512, device="cuda").to(dtype)
        wanted = x.double() @ matrix.dequantised().double().t() + bias.double()
        for linear in (kept, made):
            found = linear(x)
            assert (found.double() - wanted).norm() / wanted.norm() < 5e-3
