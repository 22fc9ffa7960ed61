"""Attention of prompts over an fp8 cache by the kernel without fp8: what a pass reads is converted
first, layer by layer, which costs little compared with the attention."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from quire.backends.cuda_c.prompt_attention import PromptAttention, prompt_attention
from quire.backends.fp8 import MOST_WIDENED
from quire.backends.ops import AttentionInputs, HeadShape
from quire.backends.triton.tiles import padded_width
from quire.backends.triton.widen_kernels import widen_blocks

MOST_SLOTS = 128  # slots of a block that one program converts


class WidenedAttention:
    """The slices of one pass, for every layer with the same window."""

    def __init__(self, inner: PromptAttention, shape: HeadShape, inputs: AttentionInputs) -> None:
        self._inner, self._shape, self._inputs = inner, shape, inputs

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, out: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        """q [T, heads, D] -> out [T, heads * D], for the tokens of the slices."""
        return self._inner.attend(q, *widen(keys, values, self._inputs, self._shape), out, sinks)


def widened_attention(
    shape: HeadShape, inputs: AttentionInputs, num_tokens: int, window: int | None
) -> WidenedAttention | None:
    """None if the cache is not fp8, the other kernel cannot be used, or a pass may read more than
    is converted at a time."""
    count, width = inputs.num_prefill, inputs.tables.shape[1]
    if not shape.fp8_kv or count * width * shape.block_size > MOST_WIDENED:
        return None
    numbers = torch.arange(count * width, dtype=torch.int32, device=inputs.tables.device)
    widened = replace(inputs, tables=numbers.view(count, width))
    inner = prompt_attention(replace(shape, fp8_kv=False), widened, num_tokens, window)
    return None if inner is None else WidenedAttention(inner, shape, inputs)


def widen(
    keys: Tensor, values: Tensor, inputs: AttentionInputs, shape: HeadShape
) -> tuple[Tensor, Tensor]:
    """Keys and values of the slices' blocks, table after table: [n * width, kv_heads, S, D]. Places
    after a context, or without a block, are 0 or not written."""
    count, width = inputs.num_prefill, inputs.tables.shape[1]
    size = (2, count * width, shape.num_kv_heads, shape.block_size, shape.head_dim)
    made = torch.empty(size, dtype=shape.dtype, device=keys.device)
    piece = min(MOST_SLOTS, shape.block_size & -shape.block_size)  # a power of two
    widen_blocks[(count * width, shape.num_kv_heads, shape.block_size // piece)](
        *(keys, values, inputs.tables, inputs.context_lens, made[0], made[1]),
        *(width, inputs.tables.stride(0)),
        KV_HEADS=shape.num_kv_heads,
        SLOTS=shape.block_size,
        WIDTH=shape.head_dim,
        PADDED=padded_width(shape),
        PIECE=piece,
        num_warps=4,
    )
    return made[0], made[1]
