"""CpuKernels: every op on a CPU, as fast as plain torch gets."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends import generic
from quire.backends.cpu.attention import CpuAttention, Scratch
from quire.backends.cpu.linear import make_linear
from quire.backends.linear import LinearOp
from quire.backends.ops import (
    AttentionInputs,
    HeadShape,
    PlannedAttention,
    RowOp,
)
from quire.backends.plain_kernels import PlainKernels
from quire.layer_plan import Activation


class CpuKernels(PlainKernels):
    """The fast set: a row's last bits may depend on the rows beside it."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__(shape)
        self.scratch = Scratch(shape.dtype)

    def make_linear(self, weight: Tensor, bias: Tensor | None) -> LinearOp:
        return make_linear(weight, bias)

    def embed(self, token_ids: Tensor, table: Tensor) -> Tensor:
        return F.embedding(token_ids, table)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return generic.rms_norm(x, weight, eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        return generic.layer_norm(x, weight, bias, eps)

    def gate(self, activation: Activation) -> RowOp:
        return generic.gate(activation)

    def activate(self, activation: Activation) -> RowOp:
        return generic.activate(activation)

    def plan_attention(self, inputs: AttentionInputs, window: int | None) -> PlannedAttention:
        return CpuAttention(self.shape, self.scratch, inputs, window)

    def copy_blocks(self, cache: Tensor, copies: tuple[tuple[int, int], ...]) -> None:
        old, new = (torch.tensor(blocks) for blocks in zip(*copies, strict=True))
        cache.index_copy_(2, new, cache.index_select(2, old))

    def clear_blocks(self, cache: Tensor, blocks: Tensor) -> None:
        cache.index_fill_(2, blocks, 0)
