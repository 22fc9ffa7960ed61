"""Device code of fp8_product.py."""

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from quire.backends.triton.experts_kernels import expert_of
from quire.backends.triton.jit import kernel, part
from quire.backends.triton.split_sums import finish

_LARGEST = tl.constexpr(448.0)
_LEAST_SCALE = tl.constexpr(1e-12)


@kernel("num_rows", "row_step", "group_step")
def round_rows(
    x: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    num_rows: tl.tensor,
    row_step: tl.tensor,
    group_step: tl.tensor,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """GROUPS groups of SIZE columns of a row of x in fp8, and their scales, which lie so far apart
    by row and by group; NaN where a group has numbers that are not finite. Sizes are constants:
    of masks that may end anywhere numbers would be read one by one."""
    row = tl.program_id(0).to(tl.int64)
    group, at = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS), tl.arange(0, BLOCK)
    column = group[:, None] * SIZE + at[None, :]
    inside = column < WIDTH
    if SIZE != BLOCK:
        inside = inside & (at < SIZE)[None, :]
    place = row * WIDTH + column
    wide = tl.load(x + place, mask=inside & (row < num_rows), other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(wide), 1) / _LARGEST, _LEAST_SCALE)
    broken = tl.sum(wide * 0.0, 1)  # NaN, or nothing
    scale += broken
    small = wide * (1.0 / scale)[:, None]
    small = tl.minimum(tl.maximum(small, -_LARGEST), _LARGEST)
    small = tl.where((broken == 0.0)[:, None], small, 0.0)
    tl.store(codes + place, small.to(codes.dtype.element_ty), mask=inside)
    tl.store(scales + row * row_step + group * group_step, scale, mask=group * SIZE < WIDTH)


@part
def _multiplied(
    left: tl.tensor,
    left_scales: tl.tensor,
    left_line: tl.tensor,
    left_known: tl.tensor,
    right: tl.tensor,
    right_scales: tl.tensor,
    right_line: tl.tensor,
    right_known: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    INNER: tl.constexpr,
    WIDE: tl.constexpr,
    DEPTH: tl.constexpr,
    ONE_SCALE: tl.constexpr,
) -> Any:
    """[left lines, right lines]: the products of lines of two matrices in fp8, over the steps from
    `first` to `last`. Scales are pointers to the first group's of each line; ONE_SCALE: that of the
    right is the same for all of its lines, and one pointer."""
    at = tl.arange(0, DEPTH)
    several: tl.constexpr = INNER > WIDE
    acc = tl.zeros([left_line.shape[0], right_line.shape[0]], tl.float32)
    group = first * DEPTH // WIDE
    by_left = tl.load(left_scales + group, mask=left_known, other=0.0)
    if ONE_SCALE:
        by_right = tl.load(right_scales + group)
    else:
        by_right = tl.load(right_scales + group, mask=right_known, other=0.0)
    for step in range(first, last):
        if several:  # those of the next step: they would come too late for this one
            group = tl.minimum((step + 1) * DEPTH, INNER - 1) // WIDE
            next_by_left = tl.load(left_scales + group, mask=left_known, other=0.0)
            if ONE_SCALE:
                next_by_right = tl.load(right_scales + group)
            else:
                next_by_right = tl.load(right_scales + group, mask=right_known, other=0.0)
        column = step * DEPTH + at
        inside = column < INNER
        a = tl.load(
            left + left_line.to(tl.int64)[:, None] * INNER + column[None, :],
            mask=left_known[:, None] & inside[None, :],
            other=0.0,
        )
        b = tl.load(
            right + right_line.to(tl.int64)[None, :] * INNER + column[:, None],
            mask=right_known[None, :] & inside[:, None],
            other=0.0,
        )
        some = tl.dot(a, b)
        if several:
            if ONE_SCALE:
                some = some * (by_left * by_right)[:, None]
            else:
                some = some * by_left[:, None] * by_right[None, :]
            by_left, by_right = next_by_left, next_by_right
        acc += some
    if several:
        return acc
    return acc * by_left[:, None] * (by_right if ONE_SCALE else by_right[None, :])


@kernel()
def multiply_fp8_experts(
    x: tl.tensor,
    x_scales: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    biases: tl.tensor,
    counts: tl.tensor,
    ordered: tl.tensor,
    out: tl.tensor,
    steps: tl.tensor,
    PER_ROW: tl.constexpr,
    INNER: tl.constexpr,
    OUTER: tl.constexpr,
    EXPERTS: tl.constexpr,
    LANES: tl.constexpr,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    LINES: tl.constexpr,
    DEPTH: tl.constexpr,
    ONE_SCALE: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """multiply_experts of experts_kernels.py in fp8: the weights of all experts are one below the
    other. `steps`: of DEPTH columns; not a constant, or they might be unrolled. Many rows are on
    the left, where a thread has few of them and so few of their scales; ONE_SCALE: a tile's lines
    share theirs."""
    per_tile: tl.constexpr = (OUTER + LINES - 1) // LINES
    tile, strip = tl.program_id(0) // per_tile, tl.program_id(0) % per_tile
    if OVERLAPS:
        gdc_wait()
    expert, first, count = expert_of(counts, tile, EXPERTS, LANES, ROWS)
    if expert >= EXPERTS:
        return
    inside = (tile - first) * ROWS + tl.arange(0, ROWS) < count
    pair = tl.load(ordered + tile * ROWS + tl.arange(0, ROWS), mask=inside, other=0)
    own = strip * LINES + tl.arange(0, LINES)
    line = expert * OUTER + tl.minimum(own, OUTER - 1)
    row = pair // PER_ROW
    groups: tl.constexpr = (INNER + WIDE - 1) // WIDE
    row_scales = x_scales + row * groups
    if ROWS >= 64:
        if ONE_SCALE:
            line_scales = scales + (expert * OUTER + strip * LINES) // TALL * groups
        else:
            line_scales = scales + line // TALL * groups
        acc = _multiplied(
            *(x, row_scales, row, inside, codes, line_scales, line, own >= 0),
            *(0, steps, INNER, WIDE, DEPTH, ONE_SCALE),
        )
    else:
        acc = _multiplied(
            *(codes, scales + line // TALL * groups, line, own >= 0, x, row_scales, row, inside),
            *(0, steps, INNER, WIDE, DEPTH, False),
        )
        acc = tl.trans(acc)
    if HAS_BIAS:
        acc += tl.load(biases + line).to(tl.float32)[None, :]
    place = out + pair.to(tl.int64)[:, None] * OUTER + own[None, :]
    kept = inside[:, None] & (own < OUTER)[None, :]
    tl.store(place, acc.to(out.dtype.element_ty), mask=kept)


@kernel("num_rows")
def multiply_fp8(
    x: tl.tensor,
    x_scales: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    parts: tl.tensor,
    arrived: tl.tensor,
    num_rows: tl.tensor,
    INNER: tl.constexpr,
    OUTER: tl.constexpr,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    LINES: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    """LINES lines of the weight times ROWS rows, both in fp8; a row has as many scales as a line.
    Partial sums come together as in split_sums.py."""
    tile, split, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    own = tile * LINES + tl.arange(0, LINES)
    line = tl.minimum(own, OUTER - 1)
    row = block * ROWS + tl.arange(0, ROWS)
    steps: tl.constexpr = (INNER + DEPTH - 1) // DEPTH
    groups: tl.constexpr = (INNER + WIDE - 1) // WIDE
    acc = _multiplied(
        *(codes, scales + line // TALL * groups, line, own >= 0),
        *(x, x_scales + row * groups, row, row < num_rows),
        *(steps * split // SPLITS, steps * (split + 1) // SPLITS, INNER, WIDE, DEPTH, False),
    )
    acc = tl.trans(acc)
    finish(acc, parts, arrived, bias, out, row, own, num_rows, OUTER, SPLITS, HAS_BIAS)
