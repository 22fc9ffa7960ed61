"""PlainKernels: what kernels in plain torch share, the judge's and those of a CPU: they decline no
part of a layer, and what is made of other ops they make alike."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quire.backends import generic
from quire.backends.adapter_ops import AdapterKernels, AdapterRoom
from quire.backends.adapters import LoopedAdapters
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
    RowOp,
    StateStep,
)
from quire.backends.states import state_pass
from quire.layer_plan import ExpertsPlan, LayerPlan


class PlainKernels(Kernels):
    """All but the ops themselves."""

    def __init__(self, shape: HeadShape) -> None:
        self.shape = shape

    def declines(self, layer: LayerPlan) -> tuple[str, ...]:
        return ()

    def kv_dtype_beside_int8(self) -> torch.dtype:
        return self.shape.dtype

    def padded(self, num_tokens: int) -> int:
        return num_tokens

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

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        residual += x
        return self.rms_norm(residual, weight, eps)

    def plan_states(self, inputs: AttentionInputs) -> StateStep:
        return state_pass(inputs, self.shape.block_size)

    def turn_latents(self, given: LatentRows, slots: Tensor, keys: Tensor) -> Tensor:
        return generic.turn_latents(self, given, slots, keys)
