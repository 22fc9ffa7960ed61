"""Device code of fp8_product.py."""

from __future__ import annotations

import triton.language as tl

from quire.backends.triton.jit import kernel
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
    known = row < num_rows
    at = tl.arange(0, DEPTH)
    groups: tl.constexpr = (INNER + WIDE - 1) // WIDE
    acc = tl.zeros([LINES, ROWS], tl.float32)
    steps: tl.constexpr = (INNER + DEPTH - 1) // DEPTH
    first, last = steps * split // SPLITS, steps * (split + 1) // SPLITS
    for step in range(first, last):
        column = step * DEPTH + at
        inside = column < INNER
        w = tl.load(
            codes + line.to(tl.int64)[:, None] * INNER + column[None, :],
            mask=inside[None, :],
            other=0.0,
        )
        mine = tl.load(
            x + row.to(tl.int64)[None, :] * INNER + column[:, None],
            mask=known[None, :] & inside[:, None],
            other=0.0,
        )
        some = tl.dot(w, mine)
        if groups > 1:
            group = step * DEPTH // WIDE
            by_line = tl.load(scales + line // TALL * groups + group)
            by_row = tl.load(x_scales + row * groups + group, mask=known, other=0.0)
            some = some * by_line[:, None] * by_row[None, :]
        acc += some
    if groups == 1:
        by_line = tl.load(scales + line // TALL)
        acc = acc * by_line[:, None] * tl.load(x_scales + row, mask=known, other=0.0)[None, :]
    acc = tl.trans(acc)
    finish(acc, parts, arrived, bias, out, row, own, num_rows, OUTER, SPLITS, HAS_BIAS)
