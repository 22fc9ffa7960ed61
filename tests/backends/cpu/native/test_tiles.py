"""Products in tiles: what rounding to bfloat16 makes of them and no more, whatever the batch."""

from __future__ import annotations

import ctypes

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.cpu.native.library import AVX2, AVX512, library
from quire.backends.cpu.native.tiles import Tiles, tiles
from quire.models.encoder_ops import activation

SIZES = [(1, 1), (33, 31), (100, 70), (96, 384), (64, 1536)]


@pytest.fixture
def made_in() -> Tiles:
    found = tiles()
    if found is None:
        pytest.skip("this processor has no tiles of bfloat16")
    return found


def rounded(x: Tensor) -> Tensor:
    return x.bfloat16().double()


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Of numbers rounded to bfloat16, exactly."""
    return F.linear(rounded(x), rounded(weight), None if bias is None else bias.double())


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_product_rounds_its_factors_and_nothing_else(
    made_in: Tiles, size: tuple[int, int], has_bias: bool
) -> None:
    random = torch.Generator().manual_seed(size[0])
    weight = torch.randn(*size, generator=random)
    bias = torch.randn(size[0], generator=random) if has_bias else None
    multiply = made_in.make_linear(weight.clone(), bias)
    for rows in (1, 2, 15, 16, 17, 32, 33, 300):
        x = torch.randn(rows, size[1], generator=random)
        limit = 1e-6 * size[1] ** 0.5 * 4
        exact = product(x, weight, bias)
        assert torch.allclose(multiply(x).double(), exact, atol=limit, rtol=1e-5)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_row_has_the_same_bits_in_every_batch(made_in: Tiles, size: tuple[int, int]) -> None:
    random = torch.Generator().manual_seed(3)
    up = made_in.make_linear(torch.randn(*size, generator=random), None)
    down = made_in.make_linear(torch.randn(40, size[0], generator=random), None)
    both = made_in.join(up, down, "gelu")
    assert both is not None
    x = torch.randn(300, size[1], generator=random)
    for op in (up, both):
        whole = op(x)
        for first, last in ((0, 1), (7, 8), (3, 5), (255, 258), (10, 29), (40, 104), (1, 300)):
            assert torch.equal(op(x[first:last].clone()), whole[first:last])
        assert torch.equal(op(x.flip(0)).flip(0), whole)


def test_threads_change_no_bit(made_in: Tiles) -> None:
    multiply = made_in.make_linear(torch.randn(500, 200), torch.randn(500))
    x, threads = torch.randn(350, 200), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = multiply(x)
        torch.set_num_threads(3)
        assert torch.equal(multiply(x), alone)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "relu", "silu"])
@pytest.mark.parametrize("inner", [1, 45, 96])
def test_two_products_with_an_activation_between(made_in: Tiles, inner: int, name: str) -> None:
    random = torch.Generator().manual_seed(inner)
    first, second = (
        (torch.randn(rows, columns, generator=random), torch.randn(rows, generator=random))
        for rows, columns in ((inner, 50), (70, inner))
    )
    up, down = made_in.make_linear(*first), made_in.make_linear(*second)
    both = made_in.join(up, down, name)
    assert both is not None
    for rows in (1, 40, 270):
        x = torch.randn(rows, 50, generator=random)
        between = activation(name)(product(x, *first)).float()
        # A sum a hair beside another may be rounded to the next bfloat16.
        limit = 2**-8 * (between.abs() @ second[0].abs().T).double()
        assert ((both(x) - product(between, *second)).abs() < limit + 1e-4).all()
        exact = down(activation(name)(up(x)))
        assert (both(x) - exact).abs().mean() < 2e-4 * exact.abs().mean()


def test_an_activation_that_tiles_have_not_is_left_to_others(made_in: Tiles) -> None:
    up, down = (made_in.make_linear(torch.randn(8, 8), None) for _ in range(2))
    assert made_in.join(up, down, "tanh") is None
    assert made_in.join(torch.tanh, down, "gelu") is None


def test_what_is_not_finite_stays_in_its_row(made_in: Tiles) -> None:
    multiply = made_in.make_linear(torch.randn(40, 64), None)
    x = torch.randn(50, 64)
    whole = multiply(x)
    x[17, 3], x[40, 60] = torch.nan, torch.inf
    found = multiply(x)
    finite = found.isfinite().all(1)
    assert finite.sum() == 48 and not finite[17] and not finite[40]
    assert torch.equal(found[finite], whole[finite])


def test_rows_that_are_a_view_and_rows_that_are_none(made_in: Tiles) -> None:
    multiply, wide = made_in.make_linear(torch.randn(60, 30), None), torch.randn(9, 80)
    assert torch.equal(multiply(wide[:, 10:40]), multiply(wide[:, 10:40].contiguous()))
    assert multiply(torch.empty(0, 30)).shape == (0, 60)


def test_processors_without_tiles_have_none() -> None:
    found: ctypes.CDLL | None = library()
    if found is None:
        pytest.skip("no native kernels here")
    try:
        found.quire_allow(AVX512 | AVX2)
        assert tiles() is None
    finally:
        found.quire_allow(-1)
