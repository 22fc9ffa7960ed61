"""Products in C: right, and with the same bits for a row in every batch."""

from __future__ import annotations

import ctypes

import pytest
import torch
import torch.nn.functional as F

from quire.backends.cpu.native.kernels import NativeInvariantKernels, NativeKernels
from quire.backends.cpu.native.linear import NativeLinear
from quire.backends.ops import HeadShape
from quire.layers.embedding import Embedding, shared_table
from quire.layers.linear import Linear

SIZES = [(1, 1), (47, 3), (48, 128), (100, 37), (97, 300), (192, 576)]


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_product(library: ctypes.CDLL, size: tuple[int, int], has_bias: bool) -> None:
    made = torch.Generator().manual_seed(size[0])
    weight = torch.randn(*size, generator=made)
    bias = torch.randn(size[0], generator=made) if has_bias else None
    multiply = NativeLinear(library, weight.clone(), bias)
    for rows in (1, 2, 5, 8, 9, 70, 300):
        x = torch.randn(rows, size[1], generator=made)
        exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
        limit = 1e-6 * size[1] ** 0.5 * 4
        assert torch.allclose(multiply(x).double(), exact, atol=limit, rtol=1e-5)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_row_has_the_same_bits_in_every_batch(
    library: ctypes.CDLL, size: tuple[int, int]
) -> None:
    made = torch.Generator().manual_seed(3)
    multiply = NativeLinear(library, torch.randn(*size, generator=made), None)
    x = torch.randn(300, size[1], generator=made)
    whole = multiply(x)
    for first, last in ((0, 1), (7, 8), (3, 5), (255, 258), (10, 23), (40, 104), (1, 300)):
        assert torch.equal(multiply(x[first:last].clone()), whole[first:last])
    assert torch.equal(multiply(x.flip(0)).flip(0), whole)


def test_threads_change_no_bit(library: ctypes.CDLL) -> None:
    multiply = NativeLinear(library, torch.randn(500, 200), torch.randn(500))
    x, threads = torch.randn(50, 200), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = multiply(x)
        torch.set_num_threads(3)
        assert torch.equal(multiply(x), alone)
    finally:
        torch.set_num_threads(threads)


def test_rows_that_are_a_view_and_rows_that_are_none(library: ctypes.CDLL) -> None:
    weight, wide = torch.randn(60, 30), torch.randn(9, 80)
    multiply = NativeLinear(library, weight, None)
    assert torch.equal(multiply(wide[:, 10:40]), multiply(wide[:, 10:40].contiguous()))
    turned = torch.randn(30, 9).t()
    assert torch.equal(multiply(turned), multiply(turned.contiguous()))
    assert multiply(torch.empty(0, 30)).shape == (0, 60)


def test_a_tied_head_and_its_table_are_one_piece_of_memory(library: ctypes.CDLL) -> None:
    kernels = NativeKernels(HeadShape(4, 2, 16, 16, torch.float32), library)
    table = torch.randn(100, 64)
    head = Linear(kernels, table.clone())
    shared = shared_table(table, head)
    assert isinstance(shared, NativeLinear) and shared.packed is head.multiply.packed
    ids = torch.tensor([0, 99, 47, 48, 47])
    assert torch.equal(Embedding(kernels, shared)(ids, ids), table[ids])


def test_float32_needs_no_padding_to_keep_its_bits(library: ctypes.CDLL) -> None:
    wide, short = (
        NativeInvariantKernels(HeadShape(4, 2, 16, 16, dtype), library)
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert isinstance(wide.make_linear(torch.randn(8, 8), None), NativeLinear)
    assert [wide.padded(n) for n in (1, 17, 300)] == [1, 17, 300]
    assert not isinstance(short.make_linear(torch.randn(8, 8).bfloat16(), None), NativeLinear)
    assert short.padded(17) > 17
