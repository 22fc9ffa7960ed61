"""From the packed qkv projection to q and the KV cache, in one launch.

For each token: q and k are normed by head (if the model does that) and rotated, and k and v are
written to the token's slot. Slot -1 (or no slot: padding) stores nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton.language as tl

from quire.backends.ops import HeadNorms, HeadShape
from quire.backends.triton.fp8_kernels import store_rounded
from quire.backends.triton.jit import kernel, part, power_of_two

if TYPE_CHECKING:
    from torch import Tensor


def norm_rope_store(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
    shape: HeadShape,
    norms: HeadNorms | None = None,
) -> Tensor:
    """qkv [T, heads + 2 kv_heads, D] -> q [T, heads, D]; k and v go to slots [at most T].

    cos and sin are float32 [T, D / 2], a layer's keys and values [N, kv_heads, S, D], or in
    fp8 (fp8_kernels.py).
    """
    turned = shape.num_heads + shape.num_kv_heads
    return rope_store(qkv[:, :turned], qkv[:, turned:], cos, sin, slots, keys, values, shape, norms)


def rope_store(
    qk: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
    shape: HeadShape,
    norms: HeadNorms | None = None,
) -> Tensor:
    """As norm_rope_store, from qk [T, heads + kv_heads, D] and v [T, kv_heads, D], which may be
    views."""
    num_tokens, width = qk.shape[0], shape.head_dim
    if qk.stride()[1:] != (width, 1):
        qk = qk.contiguous()
    if v.stride()[1:] != (width, 1):
        v = v.contiguous()
    q = qk.new_empty(num_tokens, shape.num_heads, width)
    q_weight, k_weight = (norms.q, norms.k) if norms else (q, q)
    _rope_store[(num_tokens, 2)](
        *(qk, v, cos, sin, slots, q, keys, values, q_weight, k_weight),
        *(qk.stride(0), v.stride(0), slots.shape[0], norms.eps if norms else 0.0),
        NORMED=norms is not None,
        **store_constants(shape),
    )
    return q


def store_constants(shape: HeadShape) -> dict[str, int]:
    """The constants of the kernel, with norms and without."""
    return {
        "HEADS": shape.num_heads,
        "KV_HEADS": shape.num_kv_heads,
        "Q_ROWS": power_of_two(shape.num_heads),
        "K_ROWS": power_of_two(shape.num_kv_heads),
        "WIDTH": shape.head_dim,
        "HALF": power_of_two(shape.head_dim // 2),
        "SLOTS": shape.block_size,
        "num_warps": 4,
    }


@part
def _turned(
    source: tl.tensor,
    head: tl.tensor,
    at: tl.tensor,
    inside: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    weight: tl.tensor,
    eps: tl.tensor,
    WIDTH: tl.constexpr,
    NORMED: tl.constexpr,
) -> Any:
    """(first half, second half) of the heads at `source`, normed and rotated, as float32."""
    dtype: tl.constexpr = source.dtype.element_ty
    half: tl.constexpr = WIDTH // 2
    place = source + head[:, None] * WIDTH + at[None, :]
    first = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(place + half, mask=inside, other=0.0).to(tl.float32)
    if NORMED:
        known = at < half
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        scale = tl.rsqrt(squares / WIDTH + eps)[:, None]
        left = tl.load(weight + at, mask=known, other=0.0).to(tl.float32)[None, :]
        right = tl.load(weight + half + at, mask=known, other=0.0).to(tl.float32)[None, :]
        first, second = first * scale, second * scale
        if weight.dtype.element_ty == dtype:  # else it is applied before rounding: see ops.py
            first, second = first.to(dtype).to(tl.float32), second.to(dtype).to(tl.float32)
        first = (first * left).to(dtype).to(tl.float32)
        second = (second * right).to(dtype).to(tl.float32)
    c, s = cos[None, :], sin[None, :]
    return first * c - second * s, second * c + first * s


@kernel("num_slots")
def _rope_store(
    qk: tl.tensor,
    v: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    slots: tl.tensor,
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    q_weight: tl.tensor,
    k_weight: tl.tensor,
    qk_stride: tl.tensor,
    v_stride: tl.tensor,
    num_slots: tl.tensor,
    eps: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    Q_ROWS: tl.constexpr,
    K_ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    SLOTS: tl.constexpr,
    NORMED: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    half: tl.constexpr = WIDTH // 2
    dtype: tl.constexpr = q.dtype.element_ty
    at = tl.arange(0, HALF)
    c = tl.load(cos + token * half + at, mask=at < half, other=0.0)
    s = tl.load(sin + token * half + at, mask=at < half, other=0.0)
    if tl.program_id(1) == 0:
        head = tl.arange(0, Q_ROWS)
        inside = (head < HEADS)[:, None] & (at < half)[None, :]
        source = qk + token * qk_stride
        a, b = _turned(source, head, at, inside, c, s, q_weight, eps, WIDTH, NORMED)
        place = q + (token * HEADS + head[:, None]) * WIDTH + at[None, :]
        tl.store(place, a.to(dtype), mask=inside)
        tl.store(place + half, b.to(dtype), mask=inside)
    else:
        slot = tl.load(slots + token, mask=token < num_slots, other=-1).to(tl.int64)
        if slot >= 0:
            head = tl.arange(0, K_ROWS)
            inside = (head < KV_HEADS)[:, None] & (at < half)[None, :]
            source = qk + token * qk_stride + HEADS * WIDTH
            a, b = _turned(source, head, at, inside, c, s, k_weight, eps, WIDTH, NORMED)
            if keys.dtype.element_ty == tl.float8e4nv:
                region, spot = slot // SLOTS * KV_HEADS + head, slot % SLOTS
                store_rounded(keys, region, spot, at, inside, a, b, SLOTS, WIDTH, False)
                source = v + token * v_stride + head[:, None] * WIDTH + at[None, :]
                a = tl.load(source, mask=inside, other=0.0).to(tl.float32)
                b = tl.load(source + half, mask=inside, other=0.0).to(tl.float32)
                store_rounded(values, region, spot, at, inside, a, b, SLOTS, WIDTH, True)
            else:
                row = (slot // SLOTS * KV_HEADS + head[:, None]) * SLOTS + slot % SLOTS
                place = row * WIDTH + at[None, :]
                tl.store(keys + place, a.to(dtype), mask=inside)
                tl.store(keys + place + half, b.to(dtype), mask=inside)
                source = v + token * v_stride + head[:, None] * WIDTH + at[None, :]
                tl.store(values + place, tl.load(source, mask=inside), mask=inside)
                tl.store(values + place + half, tl.load(source + half, mask=inside), mask=inside)
