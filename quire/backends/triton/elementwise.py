"""RMSNorm, alone or after adding to the residual stream, and the activations of an MLP.

Arithmetic in float32, rounded where the reference rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from quire.backends.triton.jit import kernel, part, power_of_two, rows_of

if TYPE_CHECKING:
    from torch import Tensor

    from quire.layer_plan import Activation

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


def gate_mul(gate_up: Tensor, activation: Activation = "silu") -> Tensor:
    """[T, 2 I] = gate | up -> activation(gate) * up [T, I]."""
    return _activated(gate_up, gate_up.shape[1] // 2, activation, gated=True)


def activate(x: Tensor, activation: Activation) -> Tensor:
    """[T, I] -> activation(x)."""
    return _activated(x, x.shape[1], activation, gated=False)


def _activated(x: Tensor, width: int, activation: Activation, *, gated: bool) -> Tensor:
    out = x.new_empty(x.shape[0], width)
    grid = (x.shape[0], triton.cdiv(width, _COLUMNS))
    _activate[grid](x, out, x.stride(0), width, **gate_constants(activation, gated=gated))
    return out


def norm_constants(width: int) -> dict[str, int]:
    """What both norms are compiled for."""
    block = power_of_two(width)
    return {"BLOCK": block, "num_warps": warps(block)}


def gate_constants(activation: Activation, *, gated: bool = True) -> dict[str, int | str | bool]:
    """What the gate is compiled for."""
    return {"KIND": activation, "GATED": gated, "BLOCK": _COLUMNS, "num_warps": 4}


def warps(block: int) -> int:
    """Of a program that holds a row of so many numbers."""
    return min(16, max(1, block // 512))


@part
def normed(
    x: tl.tensor, weight: tl.tensor, width: tl.tensor, eps: tl.tensor, dtype: tl.constexpr
) -> Any:
    """Rounded before the weight is applied if that is of the same type, as the reference does."""
    x *= tl.rsqrt(tl.sum(x * x) / width + eps)
    if weight.dtype == dtype:
        x = x.to(dtype).to(tl.float32)
    return (x * weight.to(tl.float32)).to(dtype)


@part
def activated(x: tl.tensor, KIND: tl.constexpr) -> Any:
    """An activation of float32."""
    if KIND == "silu":
        x = x / (1.0 + tl.exp(-x))
    elif KIND == "gelu_tanh":  # x (1 + tanh(u)) / 2 = x / (1 + exp(-2 u))
        x = x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    elif KIND == "clamped_silu":
        x = x / (1.0 + tl.exp(-1.702 * x))
    elif KIND == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    else:
        tl.static_assert(KIND == "relu" or KIND == "relu2")
        x = tl.maximum(x, 0.0)
        if KIND == "relu2":
            x = x * x
    return x


@part
def opened(gate: tl.tensor, up: tl.tensor, KIND: tl.constexpr, dtype: tl.constexpr) -> Any:
    """activation(gate) * up of float32, rounded as the reference does."""
    if KIND == "clamped_silu":
        gate = tl.minimum(gate, 7.0)
        up = (tl.minimum(tl.maximum(up, -7.0), 7.0) + 1.0).to(dtype).to(tl.float32)
    return (activated(gate, KIND).to(dtype).to(tl.float32) * up).to(dtype)


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
    scale = tl.load(weight + at, mask=inside, other=0.0)
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
    scale = tl.load(weight + at, mask=inside, other=0.0)
    made = normed(total.to(tl.float32), scale, width, eps, dtype)
    tl.store(out + row * width + at, made, mask=inside)


@kernel()
def _activate(
    x: tl.tensor,
    out: tl.tensor,
    stride: tl.tensor,
    width: tl.tensor,
    KIND: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    dtype: tl.constexpr = out.dtype.element_ty
    made = tl.load(x + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    if GATED:
        up = tl.load(x + row * stride + width + at, mask=inside, other=0.0).to(tl.float32)
        made = opened(made, up, KIND, dtype)
    else:
        made = activated(made, KIND).to(dtype)
    tl.store(out + row * width + at, made, mask=inside)
