"""What each Triton kernel must do, as plain functions: for pytest, and for a machine without it.

On a CPU the kernels run in Triton's interpreter, where products of bfloat16 are garbage, so
the dtypes there are float16 and float32 and the shapes are tiny.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from quire.backends.fp8 import wide_keys, wide_values
from quire.backends.ops import AttentionInputs, HeadShape
from tests.backends.reference import ACTIVATIONS, ReferenceKernels

if TYPE_CHECKING:
    from quire.backends.ops import HeadNorms

NAN_BYTE = 0x7F  # of float8_e4m3
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def assert_close(made: Tensor, expected: Tensor, *, least: float = 0.0) -> None:
    """Same dtype, no NaN, every value within the tolerance of its dtype, or `least`."""
    assert made.dtype == expected.dtype, (made.dtype, expected.dtype)
    assert made.shape == expected.shape, (made.shape, expected.shape)
    limit = max(TOLERANCE[made.dtype], least)
    torch.testing.assert_close(made.float().cpu(), expected.float().cpu(), atol=limit, rtol=limit)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a check runs."""

    device: torch.device
    dtype: torch.dtype

    def random(self, *size: int, seed: int) -> Tensor:
        return torch.randn(*size, generator=generator(seed)).to(self.device, self.dtype)


def check_norms(place: Place, rows: int, width: int) -> None:
    from quire.backends.triton import elementwise

    reference = ReferenceKernels(HeadShape(1, 1, width, 16, place.dtype))
    x, weight = place.random(rows, width, seed=0), place.random(width, seed=1)
    assert_close(elementwise.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
    wide = weight.float() + 1e-4  # a weight of float32 is applied before rounding
    assert_close(elementwise.rms_norm(x, wide, 1e-5), reference.rms_norm(x, wide, 1e-5))
    residual = place.random(rows, width, seed=2)
    expected_residual = residual.clone()
    expected = reference.add_rms_norm(x, expected_residual, weight, 1e-5)
    assert_close(elementwise.add_rms_norm(x, residual, weight, 1e-5), expected)
    assert_close(residual, expected_residual)
    for bias in (None, place.random(width, seed=3).float()):
        given = (wide, bias, 1e-5)
        x = x + 3  # a mean that counts
        assert_close(elementwise.layer_norm(x, *given), reference.layer_norm(x, *given))
        expected = reference.add_layer_norm(x, expected_residual, *given)
        assert_close(elementwise.add_layer_norm(x, residual, *given), expected)
        assert_close(residual, expected_residual)


def check_activations(place: Place, rows: int, width: int) -> None:
    from quire.backends.triton import elementwise

    reference = ReferenceKernels(HeadShape(1, 1, 16, 16, place.dtype))
    gate_up = place.random(rows, 2 * width, seed=0)
    for kind in ACTIVATIONS:  # the others have learned numbers, and are no ops
        gated, alone = reference.gate(kind)(gate_up), reference.activate(kind)(gate_up)
        assert_close(elementwise.gate_mul(gate_up, kind), gated)
        assert_close(elementwise.activate(gate_up, kind), alone)


@dataclass(frozen=True, slots=True)
class HeadInputs:
    """What norm_rope_store is given: `before` = qkv, cos, sin, slots."""

    before: tuple[Tensor, Tensor, Tensor, Tensor]
    keys: Tensor
    values: Tensor
    norms: HeadNorms | None


def head_inputs(place: Place, shape: HeadShape, num_tokens: int, *, normed: bool) -> HeadInputs:
    """Random heads for shuffled slots: the first token's is -1, the last token has none."""
    from quire.backends.ops import HeadNorms

    width = shape.head_dim
    qkv = place.random(num_tokens, shape.num_heads + 2 * shape.num_kv_heads, width, seed=0)
    weights = [place.random(width, seed=seed) for seed in (1, 2)]
    num_blocks = num_tokens // shape.block_size + 2
    keys, values = place.random(2, num_blocks, *_block(shape), seed=3)
    angles = torch.randn(num_tokens, width // 2, generator=generator(4)).to(place.device)
    slots = torch.randperm(num_blocks * shape.block_size, generator=generator(5))
    slots = slots[: num_tokens - 1].to(place.device)
    slots = torch.cat([slots.new_full((1,), -1), slots[1:]])
    norms = HeadNorms(weights[0], weights[1], 1e-6) if normed else None
    return HeadInputs((qkv, angles.cos(), angles.sin(), slots), keys, values, norms)


def check_heads(place: Place, shape: HeadShape, num_tokens: int, *, normed: bool) -> None:
    """q, keys and values are the reference's; slot -1 and missing slots store nothing."""
    from quire.backends.triton.heads import norm_rope_store

    reference, turned = ReferenceKernels(shape), shape.num_heads + shape.num_kv_heads
    given = head_inputs(place, shape, num_tokens, normed=normed)
    (qkv, cos, sin, slots), keys, values = given.before, given.keys, given.values
    qk = qkv[:, :turned]
    if given.norms:
        q, k = qk[:, : shape.num_heads], qk[:, shape.num_heads :]
        weights = given.norms.q, given.norms.k
        normed_heads = [
            reference.rms_norm(x, w, 1e-6) for x, w in zip((q, k), weights, strict=True)
        ]
        qk = torch.cat(normed_heads, 1)
    inputs = AttentionInputs(slots, slots, slots, slots[1:], 0)
    step = reference.plan_attention(inputs, None)
    want_keys, want_values = keys.clone(), values.clone()
    rest = slice(1, None)  # the reference knows no slot -1: the first token is kept from it
    step.rope_and_store(qk[rest], qkv[rest, turned:], cos[rest], sin[rest], want_keys, want_values)
    want_q = step.rope_and_store(
        qk, qkv[:, turned:], cos, sin, want_keys.clone(), want_values.clone()
    )
    made = norm_rope_store(qkv, cos, sin, slots, keys, values, shape, given.norms)
    assert_close(made, want_q)
    assert_close(keys, want_keys)
    assert_close(values, want_values)


def _block(shape: HeadShape) -> tuple[int, int, int]:
    return shape.num_kv_heads, shape.block_size, shape.head_dim


@dataclass(frozen=True, slots=True)
class Paged:
    """Contexts in shuffled blocks; slots that belong to nobody are NaN."""

    keys: Tensor
    values: Tensor
    tables: Tensor
    lengths: Tensor
    nobodys: int  # a block that is NaN all through

    def give_back(self, firsts: Sequence[int], window: int | None, size: int) -> None:
        """Row i will see nothing behind the window of token firsts[i]: its table is wrong there, or
        names no block, as behind a cached prefix."""
        for row, first in enumerate(firsts if window is not None else ()):
            behind = max(0, first - (window or 0) + 1) // size
            self.tables[row, :behind] = self.nobodys if row % 2 else -1


def paged(
    place: Place,
    shape: HeadShape,
    lengths: Sequence[int],
    *,
    shared: Sequence[tuple[int, Sequence[int]]] = (),
) -> Paged:
    """`shared`: (number of blocks, rows that begin with the same ones), shortest first."""
    size = shape.block_size
    counts = [-(-length // size) for length in lengths]
    order = torch.randperm(sum(counts) + 3, generator=generator(9)).tolist()
    tables = torch.full((len(lengths), max([*counts, 1]) + 2), -1, dtype=torch.int32)
    for row, count in enumerate(counts):
        tables[row, :count] = torch.tensor([order.pop() for _ in range(count)], dtype=torch.int32)
    for count, rows in shared:
        tables[list(rows), :count] = tables[rows[0], :count].clone()
    cache = torch.randn(2, sum(counts) + 3, *_block(shape), generator=generator(10))
    used = torch.zeros(sum(counts) + 3, size, dtype=torch.bool)
    for row, length in enumerate(lengths):
        index = torch.arange(length)
        used[tables[row, index // size].long(), index % size] = True
    cache.masked_fill_(~used[None, :, None, :, None], torch.nan)
    if shape.fp8_kv:
        from tests.backends.triton.fp8_checks import packed

        # What is no token's may have been a state: any bytes, also those that are NaN.
        keys = packed(cache[0], paired=False, left=NAN_BYTE).to(place.device)
        values = packed(cache[1], paired=True, left=NAN_BYTE).to(place.device)
    else:
        keys, values = cache.to(place.device, place.dtype)
    return Paged(
        keys,
        values,
        tables.to(place.device),
        torch.tensor(lengths, dtype=torch.int32, device=place.device),
        order[0],
    )


def expected_attention(
    shape: HeadShape, q: Tensor, inputs: AttentionInputs, made: Paged, window: int | None
) -> Tensor:
    """The reference, on a CPU and without the NaN that nobody may read."""
    on_cpu = AttentionInputs(
        inputs.query_starts.cpu(), inputs.context_lens.cpu(), inputs.tables.cpu(), inputs.slots, 0
    )
    keys, values = made.keys.cpu(), made.values.cpu()
    if shape.fp8_kv:
        keys, values = wide_keys(keys, shape.block_size), wide_values(values, shape.block_size)
    keys, values = keys.float().nan_to_num(), values.float().nan_to_num()
    step = ReferenceKernels(shape).plan_attention(on_cpu, window)
    return step.attend(q.cpu().float(), keys, values, _sinks(shape))


def _sinks(shape: HeadShape) -> Tensor | None:
    """Below, among and above scores."""
    return torch.linspace(-4.0, 4.0, shape.num_heads) if shape.sinks else None


def sinks_on(place: Place, shape: HeadShape) -> Tensor | None:
    sinks = _sinks(shape)
    return None if sinks is None else sinks.to(place.device)


def check_decode(
    place: Place,
    shape: HeadShape,
    lengths: Sequence[int],
    *,
    window: int | None = None,
    shared: Sequence[tuple[int, Sequence[int]]] = (),
    queries: int = 64,
) -> None:
    """Ragged rows, some empty, with or without groups; tables are reached by way of `rows`."""
    from quire.backends.triton.decode import DecodeAttention, DecodeBuffers
    from quire.backends.triton.prefix import PrefixSize, PrefixWork

    made = paged(place, shape, lengths, shared=shared)
    if not shared:
        made.give_back([length - 1 for length in lengths], window, shape.block_size)
    num_rows = len(lengths)
    q = place.random(num_rows, shape.num_heads, shape.head_dim, seed=11)
    work, parts = None, 0
    if shared:
        size = PrefixSize.of(shape, num_rows, queries=queries, blocks=256)
        work, parts = PrefixWork(shape, num_rows, place.device, size), size.parts
        tables = made.tables.cpu().numpy()
        groups = [(tables[rows[0], :count], np.asarray(rows, np.int32)) for count, rows in shared]
        assert work.fill(groups) == sum(len(rows) for _, rows in shared)
    buffers = DecodeBuffers.make(shape, num_rows, place.device, prefix_parts=parts)
    buffers.parts.fill_(torch.nan)
    buffers.sums.fill_(torch.nan)
    attention = DecodeAttention(shape, buffers, num_rows, window=window, prefixes=work)
    turned = made.tables.flip(0).contiguous()  # place i reads row num_rows - 1 - i
    rows = torch.arange(num_rows - 1, -1, -1, dtype=torch.int32, device=place.device)
    attention.plan(made.lengths, turned, rows)
    out = attention.attend(q, made.keys, made.values, sinks=sinks_on(place, shape))
    active = made.lengths.cpu() > 0
    inputs = AttentionInputs(
        torch.arange(int(active.sum()) + 1),
        made.lengths.cpu()[active],
        made.tables.cpu()[active],
        made.lengths,
        0,
    )
    expected = torch.zeros(num_rows, shape.num_heads * shape.head_dim)
    expected[active] = expected_attention(shape, q[active.to(q.device)], inputs, made, window)
    assert_close(out, expected.to(place.dtype), least=least_of(shape))


def check_prefill(
    place: Place,
    shape: HeadShape,
    slices: Sequence[tuple[int, int]],
    *,
    window: int | None = None,
    queries: int = 64,
) -> None:
    """Slices as (new tokens, tokens before them)."""
    from quire.backends.triton.prefill import PrefillAttention
    from quire.backends.triton.tiles import many_queries_tile

    lengths = [new + past for new, past in slices]
    made = paged(place, shape, lengths)
    made.give_back([past for _, past in slices], window, shape.block_size)
    starts = torch.tensor([0, *(new for new, _ in slices)]).cumsum(0)
    num_tokens = int(starts[-1])
    q = place.random(num_tokens, shape.num_heads, shape.head_dim, seed=12)
    on_device = starts.to(place.device)
    attention = PrefillAttention(
        shape,
        on_device,
        made.lengths,
        made.tables,
        num_tokens,
        window=window,
        tile=many_queries_tile(shape, queries),
    )
    out = q.new_full((num_tokens, shape.num_heads * shape.head_dim), torch.nan)
    attention.attend(q, made.keys, made.values, out, sinks_on(place, shape))
    inputs = AttentionInputs(starts, made.lengths, made.tables, starts, len(slices))
    expected = expected_attention(shape, q, inputs, made, window).to(place.dtype)
    assert_close(out, expected, least=least_of(shape))


def least_of(shape: HeadShape) -> float:
    """A cache in fp8 is multiplied in float16, whatever else is float32."""
    return TOLERANCE[torch.float16] if shape.fp8_kv else 0.0
