"""RMSNorm, alone or after adding to the residual stream, and the gate of an MLP.

Arithmetic in float32, rounded where the reference rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from quire.backends.triton.jit import kernel, part, power_of_two, rows_of

if TYPE_CHECKING:
    from torch import Tensor

_COLUMNS = 1024


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension."""
    rows = rows_of(x)
    out = rows.new_empty(rows.shape)
    width = rows.shape[1]
    _rms_norm[(rows.shape[0],)](rows, weight, out, width, eps, **norm_constants(width))
    return out.view(x.shape)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual += x, then rms_norm(residual); both [T, H] and contiguous."""
    out = residual.new_empty(residual.shape)
    width = residual.shape[1]
    _add_rms_norm[(residual.shape[0],)](
        x, residual, weight, out, x.stride(0), width, eps, **norm_constants(width)
    )
    return out


def silu_mul(gate_up: Tensor) -> Tensor:
    """[T, 2 I] = gate | up -> silu(gate) * up [T, I]."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    grid = (rows, triton.cdiv(width, _COLUMNS))
    _silu_mul[grid](gate_up, out, gate_up.stride(0), width, **gate_constants())
    return out


def norm_constants(width: int) -> dict[str, int]:
    """What both norms are compiled for."""
    block = power_of_two(width)
    return {"BLOCK": block, "num_warps": warps(block)}


def gate_constants() -> dict[str, int]:
    """What the gate is compiled for."""
    return {"BLOCK": _COLUMNS, "num_warps": 4}


def warps(block: int) -> int:
    """Of a program that holds a row of so many numbers."""
    return min(16, max(1, block // 512))


@part
def normed(
    x: tl.tensor, weight: tl.tensor, width: tl.tensor, eps: tl.tensor, dtype: tl.constexpr
) -> Any:
    scale = tl.rsqrt(tl.sum(x * x) / width + eps)
    # Rounded before the weight is applied, as the reference does.
    return ((x * scale).to(dtype).to(tl.float32) * weight).to(dtype)


@part
def opened(gate: tl.tensor, up: tl.tensor, dtype: tl.constexpr) -> Any:
    """silu(gate) * up of float32, rounded as the reference does."""
    gate = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    return (gate * up).to(dtype)


@kernel()
def _rms_norm(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    width: tl.tensor,
    eps: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    values = tl.load(x + row * width + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    dtype: tl.constexpr = out.dtype.element_ty
    made = normed(values, scale, width, eps, dtype)
    tl.store(out + row * width + at, made, mask=inside)


@kernel()
def _add_rms_norm(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    stride: tl.tensor,
    width: tl.tensor,
    eps: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    dtype: tl.constexpr = out.dtype.element_ty
    added = tl.load(x + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    before = tl.load(residual + row * width + at, mask=inside, other=0.0).to(tl.float32)
    total = (added + before).to(dtype)
    tl.store(residual + row * width + at, total, mask=inside)
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    made = normed(total.to(tl.float32), scale, width, eps, dtype)
    tl.store(out + row * width + at, made, mask=inside)


@kernel()
def _silu_mul(
    gate_up: tl.tensor, out: tl.tensor, stride: tl.tensor, width: tl.tensor, BLOCK: tl.constexpr
) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    dtype: tl.constexpr = out.dtype.element_ty
    gate = tl.load(gate_up + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * stride + width + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, opened(gate, up, dtype), mask=inside)
