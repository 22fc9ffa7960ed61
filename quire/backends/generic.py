"""Ops in plain torch for every device, used where it has no kernel.

They give a number the same bits at any place of a tensor. On a CPU torch's own silu, gelu, sigmoid
and softplus do not: they round differently in the last few numbers, which do not fill a vector.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.linear import LinearOp
from quire.backends.ops import HeadNorms, Kernels, LatentRows, ReadGate, RowOp
from quire.layer_plan import CLAMP, CLAMPED_SLOPE, Activation, LayerPlan

_TWICE_ROOT_2_OVER_PI = 1.5957691216057308
_CUBE = 0.044715
_ROOT_HALF = 0.7071067811865476
_STRAIGHT = 20.0  # from here on softplus is its argument, to the last bit of a float32


def activated(x: Tensor, activation: Activation) -> Tensor:
    """An activation of float32 numbers; `x` may be overwritten."""
    match activation:
        case "silu":
            return x / x.neg().exp_().add_(1)
        case "gelu_tanh":  # x (1 + tanh(u)) / 2 = x / (1 + exp(-2 u))
            u = x.square().mul_(x).mul_(_CUBE).add_(x)
            return x / u.mul_(-_TWICE_ROOT_2_OVER_PI).exp_().add_(1)
        case "gelu":
            return (x * _ROOT_HALF).erf_().add_(1).mul_(x).mul_(0.5)
        case "relu":
            return x.relu()
        case "relu2":
            return x.relu().square_()
        case "clamped_silu":
            return x / x.mul(-CLAMPED_SLOPE).exp_().add_(1)
        case "xielu":  # layers/mlp.py computes it
            raise LookupError(
                "an activation with learned numbers is no op by itself. This is a bug."
            )


def sigmoid(x: Tensor) -> Tensor:
    if x.is_cuda:
        return x.sigmoid()
    return x.float().neg().exp_().add_(1).reciprocal_().to(x.dtype)


def softplus(x: Tensor) -> Tensor:
    """The logarithm of 1 + exp(x)."""
    if x.is_cuda:
        return F.softplus(x)
    wide = x.float()
    return torch.where(wide > _STRAIGHT, wide, wide.clamp(max=_STRAIGHT).exp_().log1p_()).to(
        x.dtype
    )


def gate(activation: Activation) -> RowOp:
    """[T, 2 I] = gate | up -> activation(gate) * up [T, I]."""

    def gated(gate_up: Tensor) -> Tensor:
        first, up = gate_up.chunk(2, dim=-1)
        if activation == "clamped_silu":
            first, up = first.clamp(max=CLAMP), up.clamp(-CLAMP, CLAMP).add_(1)
        return activated(first.float(), activation).to(up.dtype).mul_(up)

    return gated


def activate(activation: Activation) -> RowOp:
    """[T, I] -> activation of each number."""

    def activate(x: Tensor) -> Tensor:
        return activated(x.float(), activation).to(x.dtype)

    return activate


def gate_read(read: Tensor, gate: Tensor, by: ReadGate) -> Tensor:
    """What was read from states, gated and normed (Kernels.gate_read)."""
    opened = activated(gate.float(), "silu")
    if by.norm is None:
        return opened.mul_(read).to(gate.dtype)
    wide = read if by.norm_first else opened * read
    parts = wide.view(len(read), by.parts, -1)
    scaled = parts * parts.square().mean(-1, keepdim=True).add_(by.norm.eps).rsqrt_()
    weight, dtype = by.norm.weight.view(-1, parts.shape[-1]), gate.dtype
    if by.norm_first:
        return scaled.mul_(weight).flatten(1).mul_(opened).to(dtype)
    if weight.dtype == dtype:
        return scaled.to(dtype).mul_(weight).flatten(1)
    return scaled.mul_(weight).flatten(1).to(dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """LayerNorm over the last dimension, in float32 like weight and bias, rounded once."""
    return F.layer_norm(x.float(), (x.shape[-1],), weight, bias, eps).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension. A weight of x's dtype is applied after rounding to it, as in
    most models; a weight of float32 before."""
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True).add_(eps))
    if weight.dtype == x.dtype:
        return scaled.to(x.dtype).mul_(weight)
    return scaled.mul_(weight).to(x.dtype)


def normed_heads(qk: Tensor, norms: HeadNorms | None, num_heads: int) -> Tensor:
    """Norm each head of qk [T, heads + kv_heads, D] by itself."""
    if norms is None:
        return qk
    q, k = qk[:, :num_heads], qk[:, num_heads:]
    made = [rms_norm(q, norms.q, norms.eps), rms_norm(k, norms.k, norms.eps)]
    return torch.cat(made, dim=1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (x[i], x[i + D/2]) of x [T, heads, D] by cos and sin [T, D/2].

    Products and sums are separate ops: fused ones round differently in a vector's tail.
    """
    halves = x.view(*x.shape[:2], 2, -1)
    turned = halves * cos[:, None, None]
    turned[:, :, 0] -= halves[:, :, 1] * sin[:, None]
    turned[:, :, 1] += halves[:, :, 0] * sin[:, None]
    return turned.flatten(-2).to(x.dtype)


class HeadProducts:
    """A separate product for each head, one by one: [T, heads, K] into [T, heads, N]."""

    def __init__(self, products: Sequence[LinearOp]) -> None:
        self._products = tuple(products)

    def __call__(self, x: Tensor, out: Tensor) -> None:
        heads = x.transpose(0, 1).contiguous()
        for number, (product, one) in enumerate(zip(self._products, heads, strict=True)):
            out[:, number] = product(one)


def rotate_latents(kernels: Kernels, given: LatentRows, slots: Tensor, keys: Tensor) -> Tensor:
    """Kernels.rotate_latents, with the norm of these kernels."""
    q, row, norm, cos, sin = given.q, given.row, given.norm, given.cos, given.sin
    width, turned = row.shape[1], 2 * cos.shape[1]
    latent = kernels.rms_norm(row[:, : width - turned].contiguous(), norm.weight, norm.eps)
    end = rotate(row[:, None, width - turned :], cos, sin)[:, 0]
    rows = torch.cat([latent, end], -1)[: slots.shape[0]]
    keys.view(-1, width).index_copy_(0, slots, rows.to(keys.dtype))
    out = q.new_empty(*q.shape[:2], width)
    out[..., width - turned :] = rotate(q[..., q.shape[2] - turned :], cos, sin)
    return out


def row_norms_of(layer: LayerPlan) -> tuple[str, ...]:
    """Norms of q and k for which no device has a kernel: not by head, or not RMSNorms."""
    norm = layer.attention.qk_norm
    if norm is None or layer.attention.head_norm is not None:
        return ()
    return (f"norms of q and k ({norm.kind}, over {layer.attention.qk_norm_over})",)


def softcapped(scores: Tensor, softcap: float | None) -> Tensor:
    """softcap * tanh(scores / softcap), in place."""
    return scores if softcap is None else scores.div_(softcap).tanh_().mul_(softcap)
