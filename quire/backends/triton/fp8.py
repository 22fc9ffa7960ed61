"""Matrix products in fp8: activations are rounded token by token, then torch multiplies.

What comes out of a norm or a gate is rounded by the kernel that makes it.

Sums are added up in float32 outside the tensor cores at intervals (no `use_fast_accum`): inside,
sums of fp8 products keep about 14 bits.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire.backends.fp8 import FP8, Fp8Matrix, Fp8Rows
from quire.backends.triton.elementwise import normed, opened, warps
from quire.backends.triton.fp8_kernels import rounded, rounding_scale
from quire.backends.triton.jit import kernel, part, power_of_two

FAST_SUMS = False
# Numbers of a result up to which it is faster to multiply without scales and apply them after:
# torch's products with one scale are 1.1 to 2.8 times as fast as those with one per line.
MOST_SCALED_APART = 1 << 21
_COLUMNS = 1024


class Fp8Linear:
    """x [T, K] bfloat16 -> x matrix^T + bias [T, N]."""

    def __init__(self, matrix: Fp8Matrix, bias: Tensor | None) -> None:
        self.matrix, self.bias = matrix, bias
        self._one = torch.ones((), device=matrix.device)

    def __call__(self, x: Tensor | Fp8Rows) -> Tensor:
        rows = round_rows(x) if isinstance(x, Tensor) else x
        matrix, bias = self.matrix, self.bias
        multiply: Any = partial(torch._scaled_mm, rows.numbers, matrix.numbers.t())
        options = {"out_dtype": torch.bfloat16, "use_fast_accum": FAST_SUMS}
        if rows.shape[0] * matrix.shape[0] > MOST_SCALED_APART:
            scales = {"scale_a": rows.scales, "scale_b": matrix.scales.t()}
            made: Tensor = multiply(**scales, bias=bias, **options)
            return made
        made = multiply(scale_a=self._one, scale_b=self._one, **options)
        scale_lines(made, rows.scales, matrix.scales, bias)
        return made

    def write_rows(self, first: int, rows: Tensor) -> None:
        self.matrix.pack(rows.to(self.matrix.device), first)


def round_rows(x: Tensor) -> Fp8Rows:
    """x [T, K], which may be a view with contiguous rows."""
    width = x.shape[1]
    out, block = _empty(x.shape[0], width, x.device), power_of_two(width)
    _round_rows[(x.shape[0],)](
        *(x, out.numbers, out.scales, x.stride(0), width), BLOCK=block, num_warps=warps(block)
    )
    return out


def rms_norm_rounded(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Fp8Rows:
    """The norm of x [T, H], or of the residual after x was added to it, as round_rows gives it."""
    stream = x.contiguous() if residual is None else residual
    width = stream.shape[1]
    out, block = _empty(stream.shape[0], width, x.device), power_of_two(width)
    _norm_rounded[(stream.shape[0],)](
        *(x, stream, weight, out.numbers, out.scales, x.stride(0), width, eps),
        ADDS=residual is not None,
        BLOCK=block,
        num_warps=warps(block),
    )
    return out


def silu_mul_rounded(gate_up: Tensor) -> Fp8Rows:
    """[T, 2 I] = gate | up -> silu(gate) * up [T, I], as round_rows gives it."""
    width = gate_up.shape[1] // 2
    out, block = _empty(gate_up.shape[0], width, gate_up.device), power_of_two(width)
    _silu_mul_rounded[(gate_up.shape[0],)](
        *(gate_up, out.numbers, out.scales, gate_up.stride(0), width),
        BLOCK=block,
        num_warps=warps(block),
    )
    return out


def scale_lines(made: Tensor, rows: Tensor, columns: Tensor, bias: Tensor | None) -> None:
    """made [T, N] times rows [T, 1] and columns [N, 1], plus bias [N], in place."""
    num_rows, width = made.shape
    _scale_lines[(num_rows, triton.cdiv(width, _COLUMNS))](
        *(made, rows, columns, columns if bias is None else bias, width),
        HAS_BIAS=bias is not None,
        BLOCK=_COLUMNS,
        num_warps=4,
    )


def _empty(num_rows: int, width: int, device: torch.device) -> Fp8Rows:
    return Fp8Rows(
        torch.empty(num_rows, width, dtype=FP8, device=device),
        torch.empty(num_rows, 1, dtype=torch.float32, device=device),
    )


@part
def _store_row(
    made: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    row: tl.tensor,
    at: tl.tensor,
    width: tl.tensor,
) -> None:
    """A row of float32 and zeros, rounded by its own scale."""
    line = made[None, :]
    scale = rounding_scale(line)
    tl.store(scales + row + tl.arange(0, 1), scale)
    place = out + row * width + at
    tl.store(place[None, :], rounded(line, scale), mask=(at < width)[None, :])


@kernel()
def _scale_lines(
    made: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    bias: tl.tensor,
    width: tl.tensor,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place, inside = made + row * width + at, at < width
    by = tl.load(columns + at, mask=inside, other=0.0) * tl.load(rows + row)
    x = tl.load(place, mask=inside, other=0.0).to(tl.float32) * by
    if HAS_BIAS:
        x += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(place, x.to(made.dtype.element_ty), mask=inside)


@kernel()
def _round_rows(
    x: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    stride: tl.tensor,
    width: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + at, mask=at < width, other=0.0).to(tl.float32)
    _store_row(values, out, scales, row, at, width)


@kernel()
def _norm_rounded(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    stride: tl.tensor,
    width: tl.tensor,
    eps: tl.tensor,
    ADDS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = at < width
    dtype: tl.constexpr = x.dtype.element_ty
    place = residual + row * width + at
    total = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        total += tl.load(x + row * stride + at, mask=inside, other=0.0).to(tl.float32)
        total = total.to(dtype).to(tl.float32)
        tl.store(place, total.to(dtype), mask=inside)
    by = tl.load(weight + at, mask=inside, other=0.0)
    made = normed(total, by, width, eps, dtype).to(tl.float32)
    _store_row(made, out, scales, row, at, width)


@kernel()
def _silu_mul_rounded(
    gate_up: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    stride: tl.tensor,
    width: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    dtype: tl.constexpr = gate_up.dtype.element_ty
    place = gate_up + row * stride + at
    gate = tl.load(place, mask=at < width, other=0.0).to(tl.float32)
    up = tl.load(place + width, mask=at < width, other=0.0).to(tl.float32)
    made = opened(gate, up, dtype).to(tl.float32)
    _store_row(made, out, scales, row, at, width)
