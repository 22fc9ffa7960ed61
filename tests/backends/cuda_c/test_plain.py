"""Products of few rows in CUDA C++ with plain weights, beside torch in float32; on a GPU."""

from __future__ import annotations

import logging
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

from quire.backends.cuda_c import plain
from quire.backends.cuda_c.few_rows import AddedRows, NormedRows, Way
from quire.backends.cuda_c.launch import CudaKernel
from quire.backends.cuda_c.nvrtc import NoCudaC
from quire.backends.cuda_c.plain import (
    MOST_ROWS,
    PlainTile,
    multiply_plain,
    num_parts,
    plain_tile,
)
from quire.backends.triton.small_batch import Product
from tests.backends.cuda_c.checks import assert_near, random

# Lines that fill no block, columns of part of a stage and of few, and real sizes.
SHAPES = ((456, 520), (1000, 768), (8, 64), (1024, 2048), (28672, 4096), (4096, 14336))
ROWS = (1, 8, 33, 64, 65, 97, MOST_ROWS)
EPS = 1e-5


class TestTiles:
    @pytest.mark.parametrize("way", ["plain", "normed", "gated", "adds"])
    @pytest.mark.parametrize("lines", [8, 24, 576, 1024, 1536, 4096, 6144, 28672, 34816, 151936])
    @pytest.mark.parametrize("columns", [64, 576, 1024, 4096, 17408])
    def test_fit_a_core_and_cover_all_lines(self, lines: int, columns: int, way: Way) -> None:
        if way == "gated" and lines % 16:
            pytest.skip("half of the lines must be whole eights")
        for rows in (1, 64, 65, 128):
            tile = plain_tile((lines, columns), rows, way)
            assert tile.rows >= rows
            assert tile.shared_bytes <= 227 << 10
            assert tile.stages >= 4
            assert tile.lines <= 256
            each = tile.lines // (2 if way == "gated" else 1)
            assert each % (8 * tile.splits) == 0  # each block finishes whole eights
            assert columns >= tile.splits * 256 or tile.splits == 1

    def test_are_the_same_for_any_number_of_rows(self) -> None:
        """So that a row has the same bits in every batch."""
        for shape in SHAPES:
            tiles = {(t.lines, t.splits) for t in (plain_tile(shape, n) for n in ROWS)}
            assert len(tiles) == 1

    @pytest.mark.parametrize(("lines", "way"), [(28672, "gated"), (4096, "adds"), (6144, "normed")])
    def test_keep_nearly_all_cores_busy_at_once(self, lines: int, way: Way) -> None:
        tile = plain_tile((lines, 4096), 64, way)
        assert 120 <= tile.blocks(lines) <= 132


@pytest.mark.gpu
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", SHAPES)
class TestProducts:
    def test_a_plain_one(self, shape: tuple[int, int], rows: int) -> None:
        torch.manual_seed(0)
        for dtype in (torch.bfloat16, torch.float16):
            weight, x = random(*shape, dtype=dtype), random(rows, shape[1], dtype=dtype)
            bias = random(shape[0], dtype=dtype) if rows % 2 else None
            expected = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
            found = multiply_plain(weight, x, bias)
            assert_near(found, expected)
            assert torch.equal(found, multiply_plain(weight, x, bias)), "not the same bits"

    def test_a_normed_one_and_a_gated_one(self, shape: tuple[int, int], rows: int) -> None:
        torch.manual_seed(1)
        weight, x = random(*shape, spread=shape[1] ** -0.5), random(rows, shape[1])
        squares = torch.rand(rows, 37, device="cuda") * shape[1] / 20
        norm = NormedRows(EPS, squares)
        factors = torch.rsqrt(squares.sum(1) / shape[1] + EPS)
        normed = (F.linear(x.float(), weight.float()) * factors[:, None]).bfloat16()
        assert_near(multiply_plain(weight, x, None, norm=norm), normed)
        if shape[0] % 16 == 0:
            gate, up = normed.float().chunk(2, 1)
            expected = F.silu(gate).bfloat16().float() * up
            assert_near(multiply_plain(weight, x, None, norm=norm, gated=True), expected, 6e-3)

    def test_one_that_adds_to_the_stream(self, shape: tuple[int, int], rows: int) -> None:
        torch.manual_seed(2)
        weight, x = random(*shape, spread=shape[1] ** -0.5), random(rows, shape[1])
        stream, norm = random(rows, shape[0]), random(shape[0])
        made = F.linear(x.float(), weight.float()).bfloat16().float()
        expected = (stream.float() + made).bfloat16()
        nan = torch.full_like(stream, torch.nan)
        added = AddedRows.to(stream, nan, norm, num_parts(weight, rows))
        added.squares.fill_(torch.nan)
        multiply_plain(weight, x, None, added=added)
        assert_near(added.stream, expected)
        assert_near(added.scaled, added.stream.float() * norm.float())
        assert_near(added.squares.sum(1), added.stream.float().square().sum(1), 1e-5)


@pytest.mark.gpu
def test_a_row_has_the_same_bits_in_every_batch() -> None:
    torch.manual_seed(3)
    for shape in SHAPES:
        weight, x = random(*shape), random(MOST_ROWS, shape[1])
        whole = multiply_plain(weight, x, None)
        for rows in ROWS:
            assert torch.equal(multiply_plain(weight, x[:rows], None), whole[:rows]), (shape, rows)


@pytest.mark.gpu
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("size", [(48, 3), (160, 4), (8, 1), (64, 2), (256, 1), (128, 8)])
def test_other_tiles_make_the_same(size: tuple[int, int], groups: int) -> None:
    """Also with more rows than a tile has, and blocks with a single step."""
    torch.manual_seed(4)
    for lines, columns, rows in ((456, 520, 64 * groups), (320, 1096, 64 * groups + 5)):
        weight, x = random(lines, columns), random(rows, columns)
        found = multiply_plain(weight, x, None, tile=PlainTile(groups, *size))
        assert_near(found, F.linear(x.float(), weight.float()))


def test_where_nothing_compiles_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(*_: object) -> CudaKernel:
        raise NoCudaC("no compiler in this test")

    monkeypatch.setattr(plain, "kernel_of", missing)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    product = Product(16, 64, 64, torch.bfloat16, normed=True, gated=False, has_bias=False)
    caplog.set_level(logging.INFO, "quire")
    for _ in range(2):
        assert not plain.load_kernels([product], torch.device("cuda", 0))
    assert caplog.text.count("no compiler in this test") == 1
