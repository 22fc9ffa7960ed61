"""The sets of kernels that compute in C what is faster there, and leave the rest to torch.

Every op here gives a row the same bits in any batch, so both sets share one class. They differ only
in matrix products of less than 32 bits.
"""

from __future__ import annotations

import ctypes
from functools import partial

import torch
from torch import Tensor

from quire.backends.cpu.fast import CpuKernels
from quire.backends.cpu.invariant import InvariantKernels
from quire.backends.cpu.native.attention import LARGEST_HEAD, NativeAttention, Room
from quire.backends.cpu.native.library import TYPES, library
from quire.backends.cpu.native.linear import NativeLinear
from quire.backends.cpu.native.states import NativeStates
from quire.backends.generic import row_norms_of
from quire.backends.linear import LinearOp
from quire.backends.ops import (
    AttentionInputs,
    HeadShape,
    Kernels,
    PlannedAttention,
    RowOp,
    StateStep,
)
from quire.backends.states import state_pass
from quire.layer_plan import Activation, LayerPlan, mlps_of

GATES: dict[Activation, int] = {"silu": 0, "gelu_tanh": 1}  # QUIRE_SILU, ...


def native_kernels(shape: HeadShape, *, batch_invariant: bool) -> NativeKernels | None:
    """The kernels in C for these heads; None if they are not available."""
    found = library() if fits(shape) else None
    if found is None:
        return None
    return (NativeInvariantKernels if batch_invariant else NativeKernels)(shape, found)


def fits(shape: HeadShape) -> bool:
    """Whether the attention in C supports these heads."""
    return (
        shape.dtype in TYPES
        and shape.head_dim % 2 == 0
        and shape.head_dim <= LARGEST_HEAD
        and shape.num_heads % shape.num_kv_heads == 0
        and shape.softcap is None
        and not shape.sinks
        and not shape.values_in_keys
    )


class NativeKernels(CpuKernels):
    """The fast set: norms, gates, rotation, KV writes, attention, states and float32 products in
    C."""

    def __init__(self, shape: HeadShape, library: ctypes.CDLL) -> None:
        super().__init__(shape)
        self.library, self.room = library, Room()

    def _made_for(self, shape: HeadShape) -> Kernels:
        """Heads that C does not support are left to torch."""
        if fits(shape):
            return type(self)(shape, self.library)
        invariant = isinstance(self, InvariantKernels)
        return InvariantKernels(shape) if invariant else CpuKernels(shape)

    def declines(self, layer: LayerPlan) -> tuple[str, ...]:
        found = ["layer norms"] if layer.norm.kind == "layer" else []
        found += row_norms_of(layer)
        if layer.norm.kind == "rms" and layer.norm.is_wide and self.shape.dtype != torch.float32:
            found.append("norms whose weights are in float32")
        for mlp in mlps_of(layer):
            if not mlp.gated or mlp.activation not in GATES:
                found.append(f"{mlp.activation} {'gates' if mlp.gated else 'without a gate'}")
        return tuple(found)

    def kv_dtype_beside_int8(self) -> torch.dtype:
        """bfloat16 if attention then uses AMX's tiles, twice as fast as float32; else unchanged."""
        in_tiles = self.library.quire_lies_in_tiles(TYPES[torch.bfloat16], self.shape.head_dim)
        return torch.bfloat16 if in_tiles else self.shape.dtype

    def make_linear(self, weight: Tensor, bias: Tensor | None) -> LinearOp:
        if weight.dtype == torch.float32:
            return NativeLinear(self.library, weight, bias)
        return super().make_linear(weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if weight.dtype != x.dtype:  # C needs one type for both
            return super().rms_norm(x, weight, eps)
        rows = x if x.is_contiguous() else x.contiguous()
        return self._norm(None, rows, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        if weight.dtype != x.dtype:
            return super().add_rms_norm(x, residual, weight, eps)
        return self._norm(x.contiguous(), residual, weight, eps)

    def _norm(self, added: Tensor | None, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        """`rows` are contiguous; they are written to only if something is added."""
        width = rows.shape[-1]
        out = torch.empty_like(rows)
        self.library.quire_norm(
            TYPES[rows.dtype],
            rows.numel() // width,
            width,
            None if added is None else added.data_ptr(),
            width,
            rows.data_ptr(),
            width,
            weight.data_ptr(),
            eps,
            out.data_ptr(),
        )
        return out

    def gate(self, activation: Activation) -> RowOp:
        kind = GATES.get(activation)
        return super().gate(activation) if kind is None else partial(self._gate, kind)

    def _gate(self, kind: int, gate_up: Tensor) -> Tensor:
        count, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(count, width)
        self.library.quire_gate(
            TYPES[gate_up.dtype],
            kind,
            count,
            width,
            gate_up.data_ptr(),
            gate_up.stride(0),
            out.data_ptr(),
        )
        return out

    def plan_attention(self, inputs: AttentionInputs, window: int | None) -> PlannedAttention:
        return NativeAttention(self.library, self.shape, self.room, inputs, window)

    def plan_states(self, inputs: AttentionInputs) -> StateStep:
        return NativeStates(self.library, state_pass(inputs, self.shape.block_size))

    def clear_blocks(self, cache: Tensor, blocks: Tensor) -> None:
        """Nothing to do: slots that were never written are never read."""


class NativeInvariantKernels(NativeKernels, InvariantKernels):
    """The batch-invariant set, in C. Products of less than 32 bits are torch's and need padding."""
