"""What products with codes must give, on whatever device there is."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quire.backends.quantised.grouped import GroupedMatrix, put_together
from quire.backends.triton.grouped import GroupedLinear, GroupedTile, Scratch

NF4 = torch.linspace(-1, 1, 16) ** 3


def codes_of(lines: int, columns: int, bits: int, device: torch.device) -> Tensor:
    codes = torch.randint(0, 1 << bits, (lines, columns), dtype=torch.uint8, device=device)
    return put_together(codes, bits)


def matrices(
    lines: int, columns: int, group: int, dtype: torch.dtype, device: torch.device
) -> dict[str, GroupedMatrix]:
    """One of each kind."""
    shape = (lines, columns // group)

    def scales() -> Tensor:
        return (torch.rand(shape, device=device) + 0.5).div_(16).to(dtype)

    four, eight = (codes_of(lines, columns, bits, device) for bits in (4, 8))
    zeros = torch.randint(1, 16, shape, dtype=torch.uint8, device=device)
    order = torch.randperm(columns, device=device)
    return {
        "4 bits": GroupedMatrix(4, four, scales(), zero=8),
        "4 bits, zeros": GroupedMatrix(4, four, scales(), zeros=zeros),
        "4 bits, minima": GroupedMatrix(4, four, scales(), minima=-8 * scales()),
        "4 bits, table": GroupedMatrix(4, four, scales(), table=NF4.to(device)),
        "4 bits, order": GroupedMatrix(4, four, scales(), zero=8, order=order),
        "8 bits, minima": GroupedMatrix(8, eight, scales() / 16, 128, minima=scales()),
        "8 bits": GroupedMatrix(8, eight, scales() / 16, zero=128),
        "8 bits, zeros": GroupedMatrix(8, eight, scales() / 16, zeros=zeros * 8),
    }


def check_product(
    matrix: GroupedMatrix,
    num_rows: int,
    dtype: torch.dtype,
    tile: GroupedTile | None = None,
    *,
    run: Callable[[GroupedLinear, Tensor], Tensor] = lambda linear, x: linear(x),
) -> None:
    """Beside the plain weight in float64."""
    lines, columns = matrix.shape
    device = matrix.device
    x = torch.randn(num_rows, columns, device=device).to(dtype)
    bias = torch.randn(lines, device=device).to(dtype)
    linear = GroupedLinear(matrix, bias, Scratch(device, dtype), tile)
    expected = x.double() @ matrix.dequantised().double().t() + bias.double()
    found = run(linear, x)
    assert found.shape == expected.shape
    bound = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    assert (found.double() - expected).abs().max() <= bound * expected.abs().max()


def check_plain(matrix: GroupedMatrix, dtype: torch.dtype) -> None:
    """Made plain, a weight has the bits that `dequantised` gives it."""
    linear = GroupedLinear(matrix, None, Scratch(matrix.device, dtype))
    expected = matrix.dequantised(dtype)
    if matrix.order is not None:
        expected = expected[:, matrix.order]
    found = linear.plain()
    if matrix.minima is None:
        assert torch.equal(found, expected)
    else:  # a product and a sum may be rounded once or twice
        assert torch.allclose(found.float(), expected.float(), rtol=1e-2, atol=1e-6)
