"""CpuKernels: every op on a CPU in plain torch; it declines no part of a layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends import generic
from quire.backends.adapter_ops import AdapterKernels, AdapterRoom
from quire.backends.adapters import LoopedAdapters
from quire.backends.cpu.attention import CpuAttention, Scratch
from quire.backends.cpu.linear import make_linear
from quire.backends.experts import Choice, LoopedExperts
from quire.backends.linear import LinearOp
from quire.backends.ops import (
    AttentionInputs,
    ChoiceOp,
    ExpertsOp,
    HeadShape,
    HeadsOp,
    Kernels,
    LatentRows,
    PlannedAttention,
    ReadGate,
    RowOp,
    StateStep,
)
from quire.backends.states import state_pass
from quire.layer_plan import Activation, ExpertsPlan, LayerPlan


class CpuKernels(Kernels):
    """The fast set: a row's last bits may depend on other rows of the batch."""

    def __init__(self, shape: HeadShape) -> None:
        self.shape, self.scratch = shape, Scratch(shape.dtype)
        self._others: dict[HeadShape, Kernels] = {}

    def of_heads(self, shape: HeadShape) -> Kernels:
        if shape == self.shape:
            return self
        if shape not in self._others:
            self._others[shape] = self._made_for(shape)
        return self._others[shape]

    def _made_for(self, shape: HeadShape) -> Kernels:
        return type(self)(shape)

    def declines(self, layer: LayerPlan) -> tuple[str, ...]:
        return ()

    def kv_dtype_beside_int8(self) -> torch.dtype:
        return self.shape.dtype

    def padded(self, num_tokens: int) -> int:
        return num_tokens

    def make_linear(self, weight: Tensor, bias: Tensor | None) -> LinearOp:
        return make_linear(weight, bias)

    def make_experts(
        self, gate: RowOp, ups: Sequence[LinearOp], downs: Sequence[LinearOp]
    ) -> ExpertsOp:
        return LoopedExperts(gate, ups, downs, self.padded)

    def make_head_products(self, products: Sequence[LinearOp]) -> HeadsOp:
        return generic.HeadProducts(products)

    def make_choice(self, plan: ExpertsPlan, bias: Tensor | None) -> ChoiceOp:
        return Choice(plan, bias)

    def make_adapters(self, room: AdapterRoom) -> AdapterKernels:
        return LoopedAdapters(self.make_linear, self.padded)

    def embed(self, token_ids: Tensor, table: Tensor) -> Tensor:
        return F.embedding(token_ids, table)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return generic.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        residual += x
        return self.rms_norm(residual, weight, eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        return generic.layer_norm(x, weight, bias, eps)

    def add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
    ) -> Tensor:
        residual += x
        return self.layer_norm(residual, weight, bias, eps)

    def gate(self, activation: Activation) -> RowOp:
        return generic.gate(activation)

    def activate(self, activation: Activation) -> RowOp:
        return generic.activate(activation)

    def plan_attention(self, inputs: AttentionInputs, window: int | None) -> PlannedAttention:
        return CpuAttention(self.shape, self.scratch, inputs, window)

    def plan_states(self, inputs: AttentionInputs) -> StateStep:
        return state_pass(inputs, self.shape.block_size)

    def gate_read(self, read: Tensor, gate: Tensor, by: ReadGate) -> Tensor:
        return generic.gate_read(read, gate, by)

    def rotate_latents(self, given: LatentRows, slots: Tensor, keys: Tensor) -> Tensor:
        return generic.rotate_latents(self, given, slots, keys)

    def copy_blocks(self, cache: Tensor, copies: tuple[tuple[int, int], ...]) -> None:
        old, new = torch.tensor(copies, device=cache.device).T
        cache.index_copy_(2, new, cache.index_select(2, old))

    def clear_blocks(self, cache: Tensor, blocks: Tensor) -> None:
        cache.index_fill_(2, blocks, 0)
