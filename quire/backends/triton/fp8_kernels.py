"""KV in fp8, as the device reads and writes it.

A head's part of a block is SLOTS x WIDTH numbers of float8_e4m3, then a float32 for each of its
slots: the log2 of the scale that the slot's numbers are multiplied with. All of it lies in one
tensor of bytes, so that whoever copies a block copies its scales.

Keys lie slot by slot. Values lie in pairs of slots, [SLOTS / 2, WIDTH, 2]: a tensor core wants
neighbouring tokens of one channel side by side, and turns round numbers of 16 bits but not of 8.
No number is ever NaN: where a model's numbers are not finite the scale is NaN instead. Bytes that
are no token's may be anything, as blocks may have held states before: values of tokens that are
not there are read as 0, since a weight of 0 does not remove NaN.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from quire.backends.triton.jit import part

SCALE_BYTES = tl.constexpr(4)
LARGEST = tl.constexpr(448.0)  # of float8_e4m3
# The least scale: far smaller numbers become 0, and nothing is divided by less.
LEAST_SCALE = tl.constexpr(1.0e-12)
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@part
def scale_places(
    cache: tl.tensor,
    region: tl.tensor,
    slot: tl.tensor,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> Any:
    """The places of the scales of `slot` in a `region` (a head's part of a block)."""
    size: tl.constexpr = (WIDTH + SCALE_BYTES) * SLOTS // SCALE_BYTES
    first: tl.constexpr = SLOTS * WIDTH // SCALE_BYTES
    wide = cache.to(tl.pointer_type(tl.float32), bitcast=True)
    return wide + region * size + first + slot


@part
def fetch_scales(
    cache: tl.tensor,
    block_ids: tl.tensor,
    index: tl.tensor,
    head: tl.tensor,
    inside: tl.tensor,
    KV_HEADS: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> Any:
    """log2 of the scales of tokens `index`; 0 for those not `inside`."""
    region = block_ids.to(tl.int64) * KV_HEADS + head
    place = scale_places(cache, region, index.to(tl.uint32) % SLOTS, SLOTS, WIDTH)
    return tl.load(place, mask=inside, other=0.0)


@part
def _widened(pairs: tl.tensor) -> Any:
    """The first and the second numbers of pairs, as float16."""
    if INTERPRETED:
        both = pairs.to(tl.uint16, bitcast=True)
        first, second = both.to(tl.uint8), (both >> 8).to(tl.uint8)
        even = first.to(tl.float8e4nv, bitcast=True).to(tl.float16)
        odd = second.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    else:
        even, odd = tl.inline_asm_elementwise(
            """{.reg .b32 sorted; .reg .b16 first, second;
            prmt.b32 sorted, $2, 0, 0x3120; mov.b32 {first, second}, sorted;
            cvt.rn.f16x2.e4m3x2 $0, first; cvt.rn.f16x2.e4m3x2 $1, second;}""",
            "=r,=r,r", [pairs], dtype=(tl.float16, tl.float16), is_pure=True, pack=2,
        )  # fmt: skip
    return even, odd


@part
def fetch_pairs(
    values: tl.tensor,
    table: tl.tensor,
    base: tl.tensor,
    end: tl.tensor,
    head: tl.tensor,
    at: tl.tensor,
    KV_HEADS: tl.constexpr,
    SLOTS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    TURNED: tl.constexpr,
) -> Any:
    """Values of the even and of the odd tokens of base .. base + KEYS, base even, without their
    scales: twice float16 [KEYS / 2, PADDED], or transposed [PADDED, KEYS / 2]. They are 0 from
    token `end` on."""
    # Unsigned: dividing what may be negative takes four times as long.
    index = (base + 2 * tl.arange(0, KEYS // 2)).to(tl.uint32)
    block = tl.load(table + index // SLOTS, mask=index < end.to(tl.uint32), other=0).to(tl.int64)
    size: tl.constexpr = (WIDTH + SCALE_BYTES) * SLOTS // 2
    row = (block * KV_HEADS + head) * size + (index % SLOTS // 2 * WIDTH).to(tl.int64)
    pairs = values.to(tl.pointer_type(tl.int16), bitcast=True)
    # Missing tokens are read from block 0. The first of a pair is its low byte.
    left = end.to(tl.int32) - index.to(tl.int32)
    kept = tl.where(left > 1, -1, tl.where(left > 0, 255, 0)).to(tl.int16)
    if TURNED:
        place, wanted = pairs + row[None, :] + at[:, None], (at < WIDTH)[:, None]
        kept = kept[None, :]
    else:
        place, wanted = pairs + row[:, None] + at[None, :], (at < WIDTH)[None, :]
        kept = kept[:, None]
    found = tl.load(place) if WIDTH == PADDED else tl.load(place, mask=wanted, other=0)
    even, odd = _widened(found & kept)
    return even, odd


@part
def rounding_scale(x: tl.tensor) -> Any:
    """The scale of each line of x, float32: NaN where a number is not finite."""
    broken = tl.max((x - x != 0.0).to(tl.int32), 1) > 0
    highest = tl.max(tl.abs(tl.where(broken[:, None], 0.0, x)), 1)
    return tl.where(broken, float("nan"), tl.maximum(highest / LARGEST, LEAST_SCALE))


@part
def rounded(x: tl.tensor, scale: tl.tensor) -> Any:
    """Lines of x, divided by their scales, as fp8; zeros where a scale is NaN."""
    whole = scale == scale
    by = tl.where(whole, scale, 1.0)
    small = tl.where(whole[:, None], x, 0.0) / by[:, None]
    # The scale was rounded too, and beyond the largest number there is only NaN.
    return tl.minimum(tl.maximum(small, -LARGEST), LARGEST).to(tl.float8e4nv)


@part
def store_rounded(
    cache: tl.tensor,
    region: tl.tensor,
    slot: tl.tensor,
    at: tl.tensor,
    inside: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
    PAIRED: tl.constexpr,
) -> None:
    """Both halves of some heads, float32 [heads, half] and 0 where not `inside`, go to a slot of
    their `region`s."""
    left, right = rounding_scale(first), rounding_scale(second)
    scale = tl.where(left == left, tl.where(right == right, tl.maximum(left, right), right), left)
    known = tl.max(inside.to(tl.int32), 1) > 0
    tl.store(scale_places(cache, region, slot, SLOTS, WIDTH), tl.log2(scale), mask=known)
    row = region * ((WIDTH + SCALE_BYTES) * SLOTS)
    step: tl.constexpr = 2 if PAIRED else 1  # from one channel to the next
    row += slot // step * (step * WIDTH) + slot % step
    place = cache + row[:, None] + at[None, :] * step
    tl.store(place, rounded(first, scale), mask=inside)
    tl.store(place + WIDTH // 2 * step, rounded(second, scale), mask=inside)
