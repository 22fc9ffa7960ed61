"""8-bit products: every path gives the same bits, to every row, in any batch."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from quire.backends.cpu.int8 import (
    BLOCK,
    MAX_DEPTH,
    Int8Arithmetic,
    Int8Matrix,
    TorchInt8,
    hadamard,
    rounded,
)
from quire.backends.cpu.native.library import AVX2, library
from quire.backends.cpu.native_int8 import PATHS, Choice, NativeInt8, paths_here
from quire.errors import UnsupportedModel

# (rows, K, N): one row and many, odd sizes, more rows than one task takes, sizes below a block.
SIZES = ((1, 64, 32), (2, 8, 5), (7, 96, 40), (16, 128, 33), (33, 200, 70), (300, 70, 50))


def native(path: str) -> Int8Arithmetic:
    found = library()
    if found is None:
        pytest.skip("no C compiler here")
    if path not in paths_here(found):
        pytest.skip(f"this processor has no {path}")
    return NativeInt8(found, [Choice(0, path)])


def arithmetics() -> list[Int8Arithmetic]:
    found = library()
    if found is None:
        return [TorchInt8()]
    return [TorchInt8(), *(NativeInt8(found, [Choice(0, path)]) for path in paths_here(found))]


def made(rows: int, width: int, channels: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of very different sizes, with outliers, a weight and a bias."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=generator)
    x *= torch.randn(rows, 1, generator=generator).mul(3).exp()
    x[:, width // 3] *= 100
    weight = torch.randn(channels, width, generator=generator)
    return x, weight, torch.randn(channels, generator=generator)


@pytest.mark.parametrize("path", PATHS)
def test_a_path_in_c_gives_the_bits_that_torch_gives(path: str) -> None:
    arithmetic = native(path)
    for size in SIZES:
        x, weight, bias = made(*size)
        ours, theirs = Int8Matrix.of(weight, arithmetic), Int8Matrix.of(weight, TorchInt8())
        assert torch.equal(ours.scales, theirs.scales)
        assert torch.equal(ours.sums, theirs.sums)
        assert torch.equal(ours.linear(None)(x), theirs.linear(None)(x)), size
        assert torch.equal(ours.linear(bias)(x), theirs.linear(bias)(x)), size
        ids = torch.tensor([size[2] - 1, 0, size[2] // 2])
        assert torch.equal(ours.look_up(ids), theirs.look_up(ids))


@pytest.mark.parametrize("arithmetic", arithmetics(), ids=lambda a: type(a).__name__)
def test_a_row_has_the_same_bits_in_any_batch(arithmetic: Int8Arithmetic) -> None:
    x, weight, bias = made(70, 192, 100)
    linear = Int8Matrix.of(weight, arithmetic).linear(bias)
    whole = linear(x)
    rng = random.Random(0)
    for _ in range(20):
        some = rng.sample(range(70), rng.randint(1, 69))
        assert torch.equal(linear(x[some]), whole[some])


@pytest.mark.parametrize("arithmetic", arithmetics(), ids=lambda a: type(a).__name__)
def test_the_result_is_near_the_wide_product(arithmetic: Int8Arithmetic) -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(n, 576, generator=generator) for n in (40, 96))
    exact = x @ weight.t()
    error = (Int8Matrix.of(weight, arithmetic).linear(None)(x) - exact).norm() / exact.norm()
    assert error < 0.02
    # An outlier costs little, because it is spread: without the transform, the error is over 0.5.
    x[:, 5] *= 300
    weight[:, 5] /= 300
    exact = x @ weight.t()
    error = (Int8Matrix.of(weight, arithmetic).linear(None)(x) - exact).norm() / exact.norm()
    assert error < 0.25


@pytest.mark.parametrize("arithmetic", arithmetics(), ids=lambda a: type(a).__name__)
def test_a_row_that_is_not_finite_spoils_no_other(arithmetic: Int8Arithmetic) -> None:
    x, weight, bias = made(9, 100, 40)
    linear = Int8Matrix.of(weight, arithmetic).linear(bias)
    good = linear(x)
    x[2, 7], x[5, 99], x[6, 0] = torch.nan, torch.inf, -torch.inf
    x[8] = 0
    spoiled = linear(x)
    assert spoiled[[2, 5, 6]].isnan().all()
    others = [0, 1, 3, 4, 7]
    assert torch.equal(spoiled[others], good[others])
    assert torch.equal(spoiled[8], bias)


@pytest.mark.parametrize("arithmetic", arithmetics(), ids=lambda a: type(a).__name__)
def test_rows_that_are_tiny_or_huge_keep_their_meaning(arithmetic: Int8Arithmetic) -> None:
    x, weight, _ = made(4, 64, 32)
    linear = Int8Matrix.of(weight, arithmetic).linear(None)
    x = x / x.abs().amax(-1, keepdim=True)
    for size in (1e-35, 1e-20, 1e20):
        assert torch.allclose(linear(x * size) / size, linear(x), rtol=1e-3, atol=1e-3)
    assert torch.equal(linear(x * 1e-39), torch.zeros(4, 32))


def test_rows_need_not_lie_together() -> None:
    x, weight, _ = made(6, 128, 40)
    for arithmetic in arithmetics():
        linear = Int8Matrix.of(weight, arithmetic).linear(None)
        assert torch.equal(linear(torch.cat([x, x], 1)[:, :128]), linear(x))


def test_a_matrix_may_be_packed_in_pieces() -> None:
    _, weight, _ = made(1, 100, 75)
    for arithmetic in arithmetics():
        whole = Int8Matrix.of(weight, arithmetic)
        pieces = Int8Matrix.empty((75, 100), arithmetic)
        for first, last in ((20, 61), (0, 20), (61, 75)):
            pieces.pack(weight[first:last].contiguous(), first)
        assert torch.equal(pieces.packed, whole.packed)
        assert torch.equal(pieces.scales, whole.scales)


def test_looked_up_rows_are_near_the_stored_ones() -> None:
    _, weight, _ = made(1, 192, 64)
    for arithmetic in arithmetics():
        found = Int8Matrix.of(weight, arithmetic).look_up(torch.arange(64))
        assert (found - weight).norm() / weight.norm() < 0.02


def test_the_transform_twice_gives_the_row_back() -> None:
    x = torch.arange(3 * 2 * BLOCK).float().view(3, -1)
    assert torch.equal(hadamard(hadamard(x)) / BLOCK, x)


def test_bytes_stay_within_127() -> None:
    whole, scale = rounded(torch.tensor([[1.0, -1.0, 0.5], [3e38, -3e38, 1e38]]))
    assert whole.tolist() == [[127, -127, 64], [127, -127, 42]]
    assert torch.allclose(scale[:, 0] * 127, torch.tensor([1.0, 3e38]))


def test_sums_that_could_overflow_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="65536"):
        Int8Matrix.empty((4, MAX_DEPTH + 1), TorchInt8())


def test_the_number_of_rows_chooses_the_path() -> None:
    found = library()
    if found is None:
        pytest.skip("no C compiler here")
    arithmetic = NativeInt8(found, [Choice(1, "plain"), Choice(4, "avx2"), Choice(64, "amx")])
    assert [arithmetic.path(rows) for rows in (1, 2, 4, 5, 64, 1000)] == [0, 1, 1, 4, 4, 4]


def test_a_path_that_the_processor_lacks_is_never_taken() -> None:
    found = library()
    if found is None:
        pytest.skip("no C compiler here")
    x, weight, _ = made(3, 64, 32)
    try:
        found.quire_allow(AVX2)
        assert set(paths_here(found)) <= {"plain", "avx2"}
        linear = Int8Matrix.of(weight, NativeInt8(found, [Choice(0, "amx")])).linear(None)
        with pytest.raises(RuntimeError, match="not there"):
            linear(x)
    finally:
        found.quire_allow(-1)
