"""Tokens that see their own chunk alone, with the kernels of every set that runs here."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import tests.backends.triton.conftest  # noqa: F401 - before Triton is imported
from quire.backends.choose import kernels_for, torch_kernels
from quire.backends.ops import AttentionInputs, HeadShape, Kernels
from quire.layers.attention import Kind, planned
from quire.layers.own_chunks import apart_by_chunk
from tests.backends.passes import random_pass
from tests.backends.reference import ReferenceKernels, rotate
from tests.backends.test_ops import TOLERANCE, close

SIZE, CHUNK = 4, 16


def sets(shape: HeadShape) -> dict[str, Kernels]:
    from quire.backends.triton.kernels import TritonKernels

    found: dict[str, Kernels] = {
        "reference": ReferenceKernels(shape),
        "torch": torch_kernels(shape, batch_invariant=False),
        "invariant": torch_kernels(shape, batch_invariant=True),
        "native": kernels_for("cpu", shape, batch_invariant=False),
    }
    return found | ({"triton": TritonKernels(shape)} if shape.dtype == torch.float32 else {})


def one_pass(shape: HeadShape) -> tuple[AttentionInputs, int]:
    """Slices and rows that begin and end anywhere in a chunk, and rows behind a shared prefix."""
    return random_pass(shape, 0, shared=9, decode=9, new=50, past=40)


def numbers(shape: HeadShape, count: int) -> tuple[Tensor, ...]:
    """Heads and turns of the token in each slot."""
    made = torch.Generator().manual_seed(1)
    heads, width = shape.num_heads + shape.num_kv_heads, shape.head_dim
    qk = torch.randn(count, heads, width, generator=made).to(shape.dtype)
    v = torch.randn(count, shape.num_kv_heads, width, generator=made).to(shape.dtype)
    angles = torch.randn(count, width // 2, generator=made)
    return qk, v, angles.cos(), angles.sin()


def slots_of(inputs: AttentionInputs) -> list[Tensor]:
    """Of all tokens of each sequence."""
    every = [torch.arange(length) for length in inputs.context_lens.tolist()]
    pairs = zip(inputs.tables, every, strict=True)
    return [table[at // SIZE] * SIZE + at % SIZE for table, at in pairs]


def attended(kernels: Kernels, shape: HeadShape) -> Tensor:
    """What the pass gives in a cache in which all that came before it was stored."""
    inputs, num_blocks = one_pass(shape)
    cache = torch.zeros(2, num_blocks, shape.num_kv_heads, SIZE, shape.head_dim, dtype=shape.dtype)
    stored, slots = numbers(shape, num_blocks * SIZE), slots_of(inputs)
    ends = torch.cat([torch.tensor([0]), inputs.context_lens.cumsum(0)])
    whole = replace(inputs, query_starts=ends, slots=torch.cat(slots), num_prefill=len(slots))
    every = kernels.plan_attention(replace(whole, prefixes=()), None)
    every.rope_and_store(*(one[whole.slots] for one in stored), *cache)
    step = planned(kernels, Kind(0, None, shape, CHUNK), inputs)
    q = step.rope_and_store(*(one[inputs.slots] for one in stored), *cache)
    return step.attend(q, *cache)


def meant(shape: HeadShape) -> Tensor:
    """The same by a mask over all tokens of each sequence."""
    inputs, num_blocks = one_pass(shape)
    qk, v, cos, sin = numbers(shape, num_blocks * SIZE)
    turned, found = rotate(qk, cos, sin), []
    for slots, new in zip(slots_of(inputs), inputs.query_starts.diff(), strict=True):
        at = torch.arange(len(slots))
        seen = (at[:, None] // CHUNK == at // CHUNK) & (at[:, None] >= at)
        heads = turned[slots].transpose(0, 1).float()
        q, k = heads.split([shape.num_heads, shape.num_kv_heads])
        values = v[slots].transpose(0, 1).float()
        k, values = (x.repeat_interleave(shape.group, 0) for x in (k, values))
        scores = (q @ k.transpose(1, 2) * shape.scale).masked_fill(~seen, -torch.inf)
        found.append((scores.softmax(-1) @ values).transpose(0, 1).flatten(1)[-int(new) :])
    return torch.cat(found).to(shape.dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_token_sees_its_own_chunk_alone(dtype: torch.dtype) -> None:
    shape = HeadShape(4, 2, 16, SIZE, dtype)
    expected = meant(shape)
    for name, kernels in sets(shape).items():
        assert close(attended(kernels, shape), expected), name


def test_the_example_of_the_docstring() -> None:
    inputs = AttentionInputs(
        *(torch.tensor([0, 13]), torch.tensor([19]), torch.tensor([[7, 3, 5, 1, 9]])),
        *(torch.arange(13), 1),
        longest_query=13,
        longest_context=19,
    )
    made = apart_by_chunk(inputs, 8, 4)
    assert made.query_starts.tolist() == [0, 2, 10, 13]
    assert made.context_lens.tolist() == [8, 8, 3]
    assert made.tables.tolist() == [[7, 3], [5, 1], [9, 9]]
    assert (made.num_prefill, made.longest_query, made.longest_context) == (3, 8, 8)


def test_idle_rows_stay_idle() -> None:
    tables, slots = torch.tensor([[4, 2], [6, -1], [-1, -1]]), torch.tensor([11, 24, -1])
    lengths = torch.tensor([8, 1, 0])
    made = apart_by_chunk(AttentionInputs(torch.arange(4), lengths, tables, slots, 0), 4, 4)
    assert made.query_starts.tolist() == [0, 1, 2, 3]
    assert made.context_lens.tolist() == [4, 1, 0]
    assert made.tables.tolist() == [[2], [6], [-1]]
