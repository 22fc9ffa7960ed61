"""Attention of one row over a stretch of a cache in fp8; part of decode_kernels.py.

Turned round: keys and values are the left sides of the products, the few queries of a row their
right sides. A tensor core takes 16 lines on the left and 8 on the right at least, so that half as
many products are wasted on queries that are not there, and what is converted from fp8 is used
where it lies.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends.triton.fp8_kernels import fetch_pairs, fetch_scales
from quire.backends.triton.jit import part
from quire.backends.triton.softmax import NOTHING, fetch_keys, finished, order_of_keys, readied


@part
def attend_fp8(
    mine: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    head: tl.tensor,
    scale: tl.tensor,
    QUERIES: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SLOTS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
) -> Any:
    """(weighted mean of the values of tokens first .. end, log2-sum of the weights)"""
    at, step = tl.arange(0, PADDED), order_of_keys(KEYS)
    mine, highest = readied(mine)
    scale *= highest
    turned = tl.trans(mine)
    m = tl.full([QUERIES], NOTHING, tl.float32)
    mass = tl.zeros([QUERIES], tl.float32)
    acc = tl.zeros([PADDED, QUERIES], tl.float32)
    for base in range(first // 2 * 2, end, KEYS):  # from the beginning of a pair of values
        index = base + step
        real = (index >= first) & (index < end)
        block = tl.load(table + index.to(tl.uint32) // SLOTS, mask=real, other=0)
        k = fetch_keys(keys, block, index, head, at, KV_HEADS, SLOTS, WIDTH, PADDED, False)
        by = fetch_scales(keys, block, index, head, real, KV_HEADS, SLOTS, WIDTH)
        scores = tl.dot(k, turned) * (scale[None, :] * tl.exp2(by)[:, None])
        scores = tl.where(real[:, None], scores, NOTHING)
        by = fetch_scales(values, block, index, head, real, KV_HEADS, SLOTS, WIDTH)
        scores += by[:, None]
        new_m = tl.maximum(m, tl.max(scores, 0))
        p = tl.exp2(scores - new_m[None, :])
        shrink = tl.exp2(m - new_m)
        even, odd = fetch_pairs(
            values, table, base, end, head, at, KV_HEADS, SLOTS, KEYS, WIDTH, PADDED, True
        )
        halves = tl.reshape(p, (2, KEYS // 2, QUERIES))
        for_even, for_odd = tl.split(tl.permute(halves, (1, 2, 0)))
        acc = tl.dot(even, for_even.to(tl.float16), acc * shrink[None, :])
        acc = tl.dot(odd, for_odd.to(tl.float16), acc)
        mass = mass * shrink + tl.sum(p * tl.exp2(-by)[:, None], 0)
        m = new_m
    return finished(m, mass, tl.trans(acc))
