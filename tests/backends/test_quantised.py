"""Quantised matrices are cut, stacked and widened without changing a weight."""

from __future__ import annotations

import pytest
import torch

from quire.backends.quantised.fp8_matrix import Fp8Matrix, stacked_fp8
from quire.backends.quantised.grouped import GroupedMatrix, put_together, stacked, taken_apart
from quire.errors import NotSupported
from tests.backends.triton import conftest  # noqa: F401 - before kernels: they are interpreted
from tests.backends.triton.grouped_checks import matrices

CPU = torch.device("cpu")
KINDS = matrices(96, 256, 32, torch.float16, CPU)


@pytest.mark.parametrize("bits", [4, 8])
def test_codes_come_out_as_they_went_in(bits: int) -> None:
    codes = torch.randint(0, 1 << bits, (5, 192), dtype=torch.uint8)
    assert torch.equal(taken_apart(put_together(codes, bits), bits), codes)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_columns_are_those_of_the_plain_weight(kind: str) -> None:
    matrix = KINDS[kind]
    plain = matrix.dequantised()
    assert torch.equal(matrix.rows(32, 64).dequantised(), plain[32:64])
    index = torch.tensor([3, 90, 0])
    assert torch.equal(matrix.rows_at(index).dequantised(), plain[index])
    if matrix.order is None:
        assert torch.equal(matrix.columns(64, 192).dequantised(), plain[:, 64:192])
    else:
        with pytest.raises(NotSupported, match="desc_act"):
            matrix.columns(64, 192)


def test_columns_are_cut_where_words_are() -> None:
    with pytest.raises(NotSupported, match="multiples of 64"):
        KINDS["4 bits"].columns(32, 96)


def test_unlike_parts_of_a_weight_are_stacked_in_8_bits() -> None:
    coarse = matrices(32, 256, 64, torch.float16, CPU)["4 bits, minima"]
    parts = [KINDS["4 bits"], coarse, KINDS["8 bits"]]
    made = stacked(parts)
    assert made is not None and (made.bits, made.group) == (8, 32)
    expected = torch.cat([part.dequantised() for part in parts])
    assert torch.allclose(made.dequantised(), expected, rtol=1e-6, atol=1e-7)


def test_parts_whose_columns_are_in_different_orders_are_not_stacked() -> None:
    assert stacked([KINDS["4 bits"], KINDS["4 bits, order"]]) is None


def fp8(rows: int, columns: int, tall: int, wide: int) -> Fp8Matrix:
    codes = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    return Fp8Matrix(codes, torch.rand(-(-rows // tall), -(-columns // wide)), tall, wide)


def test_fp8_is_cut_and_stacked_with_its_scales() -> None:
    matrix = fp8(96, 160, 32, 64)
    plain = matrix.dequantised()
    for first, last in ((32, 96), (10, 50)):  # at blocks, and through them
        assert torch.equal(matrix.rows(first, last).dequantised(), plain[first:last])
    for first, last in ((64, 160), (32, 96)):
        assert torch.equal(matrix.columns(first, last).dequantised(), plain[:, first:last])
    parts = [matrix, fp8(40, 160, 32, 64), fp8(7, 160, 1, 160)]
    expected = torch.cat([part.dequantised() for part in parts])
    assert torch.equal(stacked_fp8(parts).dequantised(), expected)


def test_scales_are_narrowed_where_that_costs_nothing_to_speak_of() -> None:
    codes = KINDS["4 bits"].codes
    for scales, dtype in (
        (torch.full((96, 8), 0.5), torch.bfloat16),
        (torch.full((96, 8), 0.123456), torch.float16),
        (torch.full((96, 8), 1.23456e-7), torch.float32),
    ):
        assert GroupedMatrix(4, codes, scales).narrowed().scales.dtype == dtype
