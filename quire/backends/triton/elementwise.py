"""Norms, alone or after adding to the residual stream, and the activations of an MLP.

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
    return _normed(rows_of(x), None, weight, None, eps, layer=False).view(x.shape)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual += x, then rms_norm(residual); both [T, H], and the latter contiguous."""
    return _normed(x, residual, weight, None, eps, layer=False)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """(x - mean(x)) / sqrt(variance(x) + eps) * weight + bias over the last dimension."""
    return _normed(rows_of(x), None, weight, bias, eps, layer=True).view(x.shape)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> Tensor:
    """residual += x, then layer_norm(residual); both [T, H], and the latter contiguous."""
    return _normed(x, residual, weight, bias, eps, layer=True)


def _normed(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    *,
    layer: bool,
) -> Tensor:
    """The norm of x [T, H], or of the residual to which it is added."""
    count, width = x.shape
    out = x.new_empty(count, width)
    _norm[(count,)](
        *(x, x if residual is None else residual, weight, weight if bias is None else bias, out),
        *(x.stride(0), width, eps),
        **norm_constants(width, layer=layer, adds=residual is not None, bias=bias is not None),
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


def norm_constants(width: int, *, layer: bool, adds: bool, bias: bool) -> dict[str, int | bool]:
    """The constants of a norm: LayerNorm or RMSNorm, with or without addition."""
    block = power_of_two(width)
    asked = {"LAYER": layer, "ADDS": adds, "HAS_BIAS": bias}
    return {**asked, "BLOCK": block, "num_warps": warps(block)}


def gate_constants(activation: Activation, *, gated: bool = True) -> dict[str, int | str | bool]:
    """The constants of the gate."""
    return {"KIND": activation, "GATED": gated, "BLOCK": _COLUMNS, "num_warps": 4}


def warps(block: int) -> int:
    """The warps of a program that holds a row of so many numbers."""
    return min(16, max(1, block // 512))


@part
def normed(
    x: tl.tensor, weight: tl.tensor, width: tl.tensor, eps: tl.tensor, dtype: tl.constexpr
) -> Any:
    """The normed row; rounded before the weight is applied if that has the same dtype, as in the
    reference."""
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
def _norm(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    stride: tl.tensor,
    width: tl.tensor,
    eps: tl.tensor,
    LAYER: tl.constexpr,
    ADDS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    dtype: tl.constexpr = out.dtype.element_ty
    values = tl.load(x + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        before = tl.load(residual + row * width + at, mask=inside, other=0.0).to(tl.float32)
        total = (values + before).to(dtype)
        tl.store(residual + row * width + at, total, mask=inside)
        values = total.to(tl.float32)
    scale = tl.load(weight + at, mask=inside, other=0.0)
    if LAYER:
        apart = tl.where(inside, values - tl.sum(values) / width, 0.0)
        wide = apart * tl.rsqrt(tl.sum(apart * apart) / width + eps) * scale.to(tl.float32)
        if HAS_BIAS:
            wide += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
        made = wide.to(dtype)
    else:
        made = normed(values, scale, width, eps, dtype)
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
