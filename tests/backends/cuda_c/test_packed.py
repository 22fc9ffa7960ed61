"""Products with codes of 4 bits in CUDA C++, beside the plain weight in float32; on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.cuda_c.few_rows import AddedRows, NormedRows
from quire.backends.cuda_c.linear import CodesMatrix, is_packed, load_kernels
from quire.backends.cuda_c.packed import (
    MOST_ROWS,
    SQUARES,
    kind_of,
    multiply_packed,
    with_stages,
)
from quire.backends.quantised.fragments import fragments
from quire.backends.quantised.grouped import FP4
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_floats_of_4_bits_are_multiplied_as_they_are(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    device = torch.device("cuda")
    made = matrices(264, 1024, 32, dtype, device)["4 bits, table"]
    powers = torch.randint(-6, -1, made.scales.shape, device=device)
    for unit in (1.0, 2.0):
        table, scales = torch.tensor(FP4, device=device) * unit, torch.exp2(powers.float())
        matrix = replace(made, scales=scales, table=table).narrowed()
        assert is_packed(matrix, dtype)
        codes = CodesMatrix.of(matrix, Scratch(device, dtype), keeps_plain=False)
        assert torch.equal(codes.made_plain(), matrix.dequantised(dtype))
        for rows in (1, 16, 32):
            x = torch.randn(rows, 1024, device=device).to(dtype)
            expected = x.double() @ matrix.dequantised().double().t()
            near(multiply_packed(codes.codes, x, None), expected.to(dtype))


@pytest.mark.parametrize(
    "size", [(1, 8, 4, 2), (2, 8, 4, 1), (4, 2, 4, 2), (8, 1, 2, 1), (1, 4, 4, 4), (2, 4, 2, 3)]
)
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


def near(found: Tensor, expected: Tensor) -> None:
    """The same but for sums that lie between two numbers."""
    apart = (found.double() - expected.double()).norm() / expected.double().norm()
    assert apart < 1e-3, float(apart)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [32, 64, 128, 0])
def test_steps_of_few_rows_norm_gate_and_add_on_the_way(kind: str, group: int) -> None:
    """Each step is rounded where a pass of several kernels would round it."""
    torch.manual_seed(group)
    dtype, device, width, inner = torch.bfloat16, torch.device("cuda"), 1024, 1536
    first = matrices(2 * inner, width, group or width, torch.float16, device)[kind]
    last = matrices(width, inner, group or inner, torch.float16, device)[kind]
    one, two = fragments(first, dtype), fragments(last, dtype)
    load_kernels([(one, "normed"), (one, "gated"), (two, "adds")], dtype)
    up_bias = torch.randn(2 * inner, device=device).to(dtype)
    bias = torch.randn(width, device=device).to(dtype)
    for rows in (1, 3, 8, 9, 16, 17, 31, 32):
        stream = torch.randn(rows, width, device=device).to(dtype)
        normed = NormedRows(1e-5, stream.float().square().view(rows, 4, -1).sum(2))
        scale = torch.rsqrt(stream.double().square().mean(1, keepdim=True) + 1e-5)
        product = stream.double() @ first.dequantised().double().t() * scale
        expected = (product + up_bias.double()).to(dtype)
        near(multiply_packed(one, stream, up_bias, norm=normed), expected)
        gate, up = expected.float().chunk(2, dim=1)
        opened = multiply_packed(one, stream, up_bias, norm=normed, gated=True)
        near(opened, (F.silu(gate).to(dtype).float() * up).to(dtype))
        more = opened.double() @ last.dequantised().double().t() + bias.double()
        total = (stream.float() + more.to(dtype).float()).to(dtype)
        spare, norm = torch.empty_like(stream), torch.rand_like(stream[0])
        added = AddedRows.to(stream, spare, norm, width // SQUARES)
        multiply_packed(two, opened, bias, added=added)
        near(stream, total)
        assert torch.allclose(added.squares.sum(1), stream.float().square().sum(1), rtol=1e-4)
        assert torch.equal(added.scaled, stream * added.norm)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [*KINDS, "4 bits, order"])
def test_many_rows_take_the_plain_weight(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    matrix = matrices(264, 512, 64, torch.float16, torch.device("cuda"))[kind].narrowed()
    assert is_packed(matrix, dtype)
    expected = matrix.dequantised(dtype)
    bias = torch.randn(264, device="cuda").to(dtype)
    kept, made = (
        CodesMatrix.of(matrix, Scratch(matrix.device, dtype), keeps_plain=keeps)
        for keeps in (True, False)
    )
    ordered = expected if matrix.order is None else expected[:, matrix.order]
    assert torch.equal(made.made_plain(), ordered)
    for rows in (MOST_ROWS, MOST_ROWS + 1):
        x = torch.randn(rows, 512, device="cuda").to(dtype)
        wanted = x.double() @ matrix.dequantised().double().t() + bias.double()
        for one in (kept, made):
            found = one.linear(bias)(x)
            assert (found.double() - wanted).norm() / wanted.norm() < 5e-3
