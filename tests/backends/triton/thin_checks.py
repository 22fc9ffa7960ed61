"""What the kernels of few rows must do, for pytest and for a machine without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quire.backends.ops import HeadShape
from tests.backends.reference import ReferenceKernels
from tests.backends.triton.checks import Place, assert_close, generator, paged

if TYPE_CHECKING:
    from quire.backends.triton.small_batch import ThinTile


def check_thin(
    place: Place,
    rows: int,
    hidden: int,
    inner: int,
    *,
    tile: ThinTile | None = None,
    has_bias: bool = False,
) -> None:
    """Embed, a product of the normed stream, gate and up, and what is added to the stream."""
    from quire.backends.triton import small_batch as small_batch

    reference = ReferenceKernels(HeadShape(1, 1, 16, 16, place.dtype))

    def random(*size: int, seed: int, spread: float = 1.0) -> Tensor:
        return (place.random(*size, seed=seed).float() * spread).to(place.dtype)

    def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return reference.make_linear(weight, bias)(x)

    table = random(50, hidden, seed=1)
    ids = torch.randint(0, 50, (rows,), generator=generator(2)).to(place.device)
    norm = small_batch.Norm(random(hidden, seed=3), 1e-5)
    qkv, bias = random(72, hidden, seed=4, spread=hidden**-0.5), random(72, seed=5)
    gate_up = random(2 * inner, hidden, seed=6, spread=hidden**-0.5)
    down = random(hidden, inner, seed=7, spread=inner**-0.5)
    products = small_batch.ThinProducts(tile)
    stream = small_batch.embed(ids, table, norm)
    expected = table[ids].clone()
    assert_close(stream.residual, expected)
    normed = reference.rms_norm(expected, norm.weight, norm.eps)
    made = products.normed(stream, qkv, bias if has_bias else None)
    assert_close(made, multiply(normed, qkv, bias if has_bias else None))
    opened = products.gated(stream, gate_up)
    # The stream is rounded before it is normed here, after it there; what a wide row of the gate
    # makes of that is seen in one value of a hundred thousand.
    assert_close(opened, reference.gate("silu")(multiply(normed, gate_up, None)), least=5e-2)
    norm = small_batch.Norm(random(hidden, seed=8), 1e-4)
    products.add(stream, opened, down, None, norm)
    expected += multiply(opened, down, None)
    assert_close(stream.residual, expected)
    normed = reference.rms_norm(expected, norm.weight, norm.eps)
    assert_close(products.normed(stream, qkv), multiply(normed, qkv, None))


def check_packed(
    place: Place, shape: HeadShape, lengths: Sequence[int], *, window: int | None, normed: bool
) -> None:
    """From the packed projection, what is made of it in two steps: the same output, and the same
    new keys and values in the cache."""
    from quire.backends.ops import HeadNorms
    from quire.backends.triton.decode import DecodeAttention, DecodeBuffers
    from quire.backends.triton.heads import norm_rope_store

    made, rows, width = paged(place, shape, lengths), len(lengths), shape.head_dim
    newest = made.lengths.long() - 1
    block = made.tables.gather(1, (newest.clamp(min=0) // shape.block_size)[:, None])[:, 0].long()
    slots = torch.where(newest >= 0, block * shape.block_size + newest % shape.block_size, -1)
    for slot in slots[slots >= 0].tolist():  # not there before it is stored
        for cache in (made.keys, made.values):
            cache[slot // shape.block_size, :, slot % shape.block_size] = torch.nan
    num_all = shape.num_heads + 2 * shape.num_kv_heads
    qkv = place.random(rows, num_all, width, seed=1)
    angles = 100 * torch.rand(rows, width // 2, generator=generator(2))
    cos, sin = angles.cos().to(place.device), angles.sin().to(place.device)
    q_weight, k_weight = place.random(width, seed=3), place.random(width, seed=4)
    norms = HeadNorms(q_weight, k_weight, 1e-5) if normed else None
    outs, caches = [], []
    for packed in (True, False):
        keys, values = made.keys.clone(), made.values.clone()
        buffers = DecodeBuffers.make(shape, rows, place.device)
        attention = DecodeAttention(shape, buffers, rows, window=window)
        attention.plan(made.lengths, made.tables)
        place.random(1, seed=5)  # a kernel between what is planned and what overlaps
        if packed:
            flat = qkv.view(rows, -1)
            outs.append(attention.attend_packed(flat, cos, sin, slots, keys, values, norms))
            assert not buffers.counters.any()
        else:
            q = norm_rope_store(qkv, cos, sin, slots, keys, values, shape, norms)
            outs.append(attention.attend(q, keys, values))
        caches.append(torch.stack([keys, values]))
    assert not outs[0].isnan().any()
    assert_close(outs[0], outs[1])
    assert torch.equal(caches[0].isnan(), caches[1].isnan())
    assert_close(caches[0].nan_to_num(), caches[1].nan_to_num())
