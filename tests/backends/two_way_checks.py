"""Attention with spans whose tokens see each other, against its meaning."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.backends.ops import AttentionInputs, HeadShape, Kernels
from quire.backends.two_way import TwoWayAttention, TwoWaySpan
from tests.backends.reference import ReferenceKernels

NUM_BLOCKS = 24
# (tokens before the pass, tokens of it) of three sequences, the last of which decodes.
SEQUENCES = ((0, 19), (11, 14), (9, 1))
# A whole span, one that begins with its pass, and one that was begun before it.
SPANS = (TwoWaySpan(0, 2, 2, 2, 9), TwoWaySpan(0, 12, 12, 12, 19), TwoWaySpan(1, 19, 11, 6, 20))


def inputs_of(block_size: int, device: str, *, whole: bool) -> AttentionInputs:
    """The pass, or with `whole` one that computes all of every sequence."""
    free = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(4)).tolist()
    lengths = [past + new for past, new in SEQUENCES]
    tables = torch.full((len(lengths), -(-max(lengths) // block_size)), -1)
    slots = []
    for i, (past, new) in enumerate(SEQUENCES):
        count = -(-(past + new) // block_size)
        tables[i, :count] = torch.tensor([free.pop() for _ in range(count)])
        at = torch.arange(0 if whole else past, past + new)
        slots.append(tables[i, at // block_size] * block_size + at % block_size)
    starts = torch.tensor([0, *map(len, slots)]).cumsum(0)
    num_prefill = len(lengths) - (0 if whole else 1)
    return AttentionInputs(
        query_starts=starts.to(device),
        context_lens=torch.tensor(lengths).to(device),
        tables=tables.to(device),
        slots=torch.cat(slots).to(device),
        num_prefill=num_prefill,
    )


def attended(
    kernels: Kernels, shape: HeadShape, cache: Tensor, window: int | None, spans: bool
) -> tuple[Tensor, Tensor]:
    """What the pass gives, and its queries; everything before it is stored first."""
    made = torch.Generator().manual_seed(1)
    device = str(cache.device)
    total = sum(past + new for past, new in SEQUENCES)

    def numbers(*size: int) -> Tensor:
        return torch.randn(*size, generator=made).to(device, shape.dtype)

    qk = numbers(total, shape.num_heads + shape.num_kv_heads, shape.head_dim)
    v = numbers(total, shape.num_kv_heads, shape.head_dim)
    angles = numbers(total, shape.head_dim // 2).float()
    whole = inputs_of(shape.block_size, device, whole=True)
    every = kernels.plan_attention(whole, window)
    every.rope_and_store(qk, v, angles.cos(), angles.sin(), *cache)
    inputs = inputs_of(shape.block_size, device, whole=False)
    ends = [past + new for past, new in SEQUENCES]
    firsts = [sum(ends[:i]) + past for i, (past, _) in enumerate(SEQUENCES)]
    own = [
        torch.arange(first, first + new) for first, (_, new) in zip(firsts, SEQUENCES, strict=True)
    ]
    mine = torch.cat(own).to(device)
    step = kernels.plan_attention(inputs, window)
    if spans:
        step = TwoWayAttention(step, shape, inputs, window, SPANS)
    q = step.rope_and_store(qk[mine], v[mine], angles[mine].cos(), angles[mine].sin(), *cache)
    return step.attend(q, *cache), q


def meant(shape: HeadShape, window: int | None) -> Tensor:
    """The pass of the reference, with each token of a span computed by itself."""
    size = (2, NUM_BLOCKS, shape.num_kv_heads, shape.block_size, shape.head_dim)
    cache = torch.randn(size, generator=torch.Generator().manual_seed(2)).to(shape.dtype)
    out, q = attended(ReferenceKernels(shape), shape, cache, window, False)
    tables = inputs_of(shape.block_size, "cpu", whole=False).tables
    for span in SPANS:
        at = torch.arange(span.end)
        blocks = tables[span.sequence, at // shape.block_size]
        k, v = (x[blocks, :, at % shape.block_size].float() for x in cache)  # [keys, kv_heads, D]
        for position in range(span.first, span.end):
            lowest = 0 if window is None else max(0, position - window + 1)
            token = span.at + position - span.first
            for head in range(shape.num_heads):
                key, value = k[lowest:, head // shape.group], v[lowest:, head // shape.group]
                chances = (key @ q[token, head].float() * shape.scale).softmax(0)
                first = head * shape.head_dim
                out[token, first : first + shape.head_dim] = (chances @ value).to(out.dtype)
    return out
