"""What each op means, in plain torch and one sequence at a time: the judge of the other kernels."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.cpu.fast import CpuKernels
from quire.backends.linear import LinearOp
from quire.backends.ops import (
    AttentionInputs,
    HeadNorms,
    HeadShape,
    RowOp,
)
from quire.layer_plan import CLAMP, CLAMPED_SLOPE, Activation

ACTIVATIONS: Mapping[Activation, RowOp] = {
    "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu": F.gelu,
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "clamped_silu": lambda x: x * torch.sigmoid(CLAMPED_SLOPE * x),
}


class ReferenceKernels(CpuKernels):
    """Every op in fp32, without a thought about speed; what is made of other ops is made as on a
    CPU."""

    def __init__(self, shape: HeadShape) -> None:
        self.shape = shape  # and no memory to gather into

    def make_linear(self, weight: Tensor, bias: Tensor | None) -> LinearOp:
        return ReferenceLinear(weight, bias)

    def embed(self, token_ids: Tensor, table: Tensor) -> Tensor:
        return table[token_ids]

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        # A weight of x's type is applied after rounding, as Transformers does for most families.
        if weight.dtype == x.dtype:
            return weight * scaled.to(x.dtype)
        return (weight * scaled).to(x.dtype)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        wide = x.double()
        apart = wide - wide.mean(-1, keepdim=True)
        scaled = apart * torch.rsqrt(apart.pow(2).mean(-1, keepdim=True) + eps) * weight
        return (scaled if bias is None else scaled + bias).to(x.dtype)

    def gate(self, activation: Activation) -> RowOp:
        def gated(gate_up: Tensor) -> Tensor:
            gate, up = gate_up.chunk(2, dim=-1)
            if activation == "clamped_silu":
                gate, up = gate.clamp(max=CLAMP), up.clamp(-CLAMP, CLAMP) + 1
            return ACTIVATIONS[activation](gate.float()).to(up.dtype) * up

        return gated

    def activate(self, activation: Activation) -> RowOp:
        return lambda x: ACTIVATIONS[activation](x.float()).to(x.dtype)

    def of_heads(self, shape: HeadShape) -> ReferenceKernels:
        return self if shape == self.shape else type(self)(shape)

    def plan_attention(self, inputs: AttentionInputs, window: int | None) -> ReferenceAttention:
        return ReferenceAttention(self.shape, inputs, window)

    def copy_blocks(self, cache: Tensor, copies: tuple[tuple[int, int], ...]) -> None:
        for old, new in copies:
            cache[:, :, new] = cache[:, :, old]

    def clear_blocks(self, cache: Tensor, blocks: Tensor) -> None:
        cache[:, :, blocks] = 0


class ReferenceLinear:
    """A product in fp32."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        wide = None if self.bias is None else self.bias.float()
        return F.linear(x.float(), self.weight.float(), wide).to(x.dtype)

    def write_rows(self, first: int, rows: Tensor) -> None:
        self.weight[first : first + len(rows)] = rows

    def read_rows(self, first: int, count: int) -> Tensor:
        return self.weight[first : first + count].to("cpu", torch.float32)

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.weight,)


class ReferenceAttention:
    """One pass, sequence by sequence."""

    def __init__(self, shape: HeadShape, inputs: AttentionInputs, window: int | None) -> None:
        self.shape, self.inputs, self.window = shape, inputs, window

    def rope_and_store(
        self,
        qk: Tensor,
        v: Tensor,
        cos: Tensor,
        sin: Tensor,
        keys: Tensor,
        values: Tensor,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        slots = self.inputs.slots
        blocks, offsets = slots // self.shape.block_size, slots % self.shape.block_size
        if norms is not None:
            q, k = qk[:, : self.shape.num_heads], qk[:, self.shape.num_heads :]
            judge, by = ReferenceKernels(self.shape), norms.eps
            qk = torch.cat([judge.rms_norm(q, norms.q, by), judge.rms_norm(k, norms.k, by)], 1)
        turned = rotate(qk, cos, sin)
        keys[blocks, :, offsets] = turned[: len(slots), self.shape.num_heads :]
        values[blocks, :, offsets] = v[: len(slots)]
        return turned[:, : self.shape.num_heads]

    def plain(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return keys, values

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        shape, inputs = self.shape, self.inputs
        out = torch.zeros_like(q)
        for i, context in enumerate(inputs.context_lens.tolist()):
            first, last = inputs.query_starts[i : i + 2].tolist()
            start, size = context - (last - first), shape.block_size
            # Blocks behind the window of the first query may be somebody else's.
            unseen = 0 if self.window is None else max(0, start - self.window + 1) // size
            blocks = inputs.tables[i, unseen : -(-context // size)]
            k, v = (
                cache[blocks].transpose(0, 1).flatten(1, 2)[:, : context - unseen * size].float()
                for cache in (keys, values)
            )
            k, v = (x.repeat_interleave(shape.group, dim=0) for x in (k, v))
            scores = q[first:last].transpose(0, 1).float() @ k.transpose(1, 2) * shape.scale
            if shape.softcap is not None:
                scores = shape.softcap * (scores / shape.softcap).tanh()
            query_at = torch.arange(start, context)[:, None]
            key_at = torch.arange(unseen * size, context)[None]
            hidden = key_at > query_at
            if self.window is not None:
                hidden |= key_at <= query_at - self.window
            scores = scores.masked_fill(hidden, -torch.inf)
            if sinks is not None:
                column = sinks.float()[:, None, None].expand(*scores.shape[:2], 1)
                scores = torch.cat([scores, column], -1)
            weights = scores.softmax(-1)[..., : context - unseen * size]
            out[first:last] = (weights @ v).transpose(0, 1).to(q.dtype)
        return out.flatten(1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (x[i], x[i + D/2]) of x [T, heads, D] by cos and sin [T, D/2]."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)
