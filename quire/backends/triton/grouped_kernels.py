"""The code that runs on the device for grouped.py: products with codes of 4 or 8 bits."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends.triton.jit import kernel, part
from quire.backends.triton.split_sums import finish

CENTRE = 8  # what codes of 4 bits are counted from while they are multiplied
_CENTRE = tl.constexpr(CENTRE)


def _pairs(shift: int, kind: str, magic: int, one: int, less: int) -> tl.constexpr:
    """Instructions that make four numbers of 16 bits of the half bytes of four bytes, two at a
    time and exactly: they become the last bits of a power of two, which is taken away again."""
    made = " ".join(f"prmt.b32 ${i}, t, m, {pick};" for i, pick in enumerate(("0x4140", "0x4342")))
    ones, lesses = (f"{one:#06x}{one:04x}", f"{less:#06x}{less:04x}")
    taken = " ".join(f"fma.rn.{kind}x2 ${i}, ${i}, o, n;" for i in (0, 1))
    return tl.constexpr(
        "{ .reg .b32 t, m, o, n; "
        f"shr.b32 t, $2, {shift}; and.b32 t, t, 0x0f0f0f0f; mov.b32 m, {magic:#x}; "
        f"mov.b32 o, {ones}; mov.b32 n, {lesses}; {made} {taken} }}"
    )


# 128 + code in bfloat16, less 128 or 136; 1024 + code in float16, less 1024 or 1032.
_BF16_LOW = _pairs(0, "bf16", 0x43434343, 0x3F80, 0xC308)
_BF16_HIGH = _pairs(4, "bf16", 0x43434343, 0x3F80, 0xC308)
_BF16_LOW_WHOLE = _pairs(0, "bf16", 0x43434343, 0x3F80, 0xC300)
_F16_LOW = _pairs(0, "f16", 0x64646464, 0x3C00, 0xE408)
_F16_HIGH = _pairs(4, "f16", 0x64646464, 0x3C00, 0xE408)
_F16_LOW_WHOLE = _pairs(0, "f16", 0x64646464, 0x3C00, 0xE400)


@part
def _low(codes: tl.tensor, dtype: tl.constexpr, BITS: tl.constexpr, BY_PAIRS: tl.constexpr) -> Any:
    """The low halves of bytes: less CENTRE where they are codes, as they are where they are the
    last bits of one."""
    if not BY_PAIRS:
        made = ((codes & 15).to(tl.int32) - (_CENTRE if BITS == 4 else 0)).to(dtype)
    elif dtype == tl.bfloat16:
        bf16: tl.constexpr = _BF16_LOW if BITS == 4 else _BF16_LOW_WHOLE
        made = tl.inline_asm_elementwise(bf16, "=r,=r,r", [codes], tl.bfloat16, True, 4)
    else:
        f16: tl.constexpr = _F16_LOW if BITS == 4 else _F16_LOW_WHOLE
        made = tl.inline_asm_elementwise(f16, "=r,=r,r", [codes], tl.float16, True, 4)
    return made


@part
def _high(codes: tl.tensor, dtype: tl.constexpr, BY_PAIRS: tl.constexpr) -> Any:
    """The high halves of bytes less CENTRE."""
    if not BY_PAIRS:
        made = ((codes >> 4).to(tl.int32) - _CENTRE).to(dtype)
    elif dtype == tl.bfloat16:
        made = tl.inline_asm_elementwise(_BF16_HIGH, "=r,=r,r", [codes], tl.bfloat16, True, 4)
    else:
        made = tl.inline_asm_elementwise(_F16_HIGH, "=r,=r,r", [codes], tl.float16, True, 4)
    return made


@part
def _columns(at: tl.tensor, BITS: tl.constexpr) -> Any:
    """Which columns bytes hold; of 4 bits those of their low halves, and 16 further the others."""
    column = at
    if BITS == 4:
        column = at // 16 * 32 + at % 16
    return column


@part
def _multiplied(
    codes: tl.tensor,
    table: tl.tensor,
    mine: tl.tensor,
    known: tl.tensor,
    dtype: tl.constexpr,
    BITS: tl.constexpr,
    HAS_TABLE: tl.constexpr,
    NEEDS_SUMS: tl.constexpr,
    BY_PAIRS: tl.constexpr,
    PRECISION: tl.constexpr,
) -> Any:
    """[lines, rows]: codes (less CENTRE, or less 128) times x, and the sums of x."""
    place = mine[None, :] + _columns(tl.arange(0, codes.shape[1]), BITS)[:, None]
    x = tl.load(place, mask=known[None, :], other=0.0)
    if HAS_TABLE:
        low = tl.load(table + (codes & 15).to(tl.int32)).to(dtype)
        high = tl.load(table + (codes >> 4).to(tl.int32)).to(dtype)
    else:
        low, high = _low(codes, dtype, BITS, BY_PAIRS), _high(codes, dtype, BY_PAIRS)
    if BITS == 4:
        more = tl.load(place + 16, mask=known[None, :], other=0.0)
        made = tl.dot(low, x, input_precision=PRECISION)
        made = tl.dot(high, more, made, input_precision=PRECISION)
    else:
        made = 16 * tl.dot(high, x, input_precision=PRECISION)
        made = tl.dot(low, x, made, input_precision=PRECISION)
    sums = made
    if NEEDS_SUMS:
        ones = tl.full(codes.shape, 1.0, dtype)
        sums = tl.dot(ones, x, input_precision=PRECISION)
        if BITS == 4:
            sums = tl.dot(ones, more, sums, input_precision=PRECISION)
    return made, sums


@kernel("num_rows")
def multiply_grouped(
    x: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    others: tl.tensor,
    table: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    parts: tl.tensor,
    arrived: tl.tensor,
    num_rows: tl.tensor,
    INNER: tl.constexpr,
    OUTER: tl.constexpr,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    SECOND: tl.constexpr,
    HAS_TABLE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    LINES: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLITS: tl.constexpr,
    BY_PAIRS: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """LINES lines of the weight times ROWS rows, over one of SPLITS parts of the sum.

    Codes are multiplied as whole numbers, and what a group gives is scaled: so a weight costs a
    few instructions, and is rounded by none of them. A zero point or a minimum is times the sum of
    x in the group, which tensor cores find beside."""
    own = tl.program_id(0) * LINES + tl.arange(0, LINES)
    line = tl.minimum(own, OUTER - 1)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    dtype: tl.constexpr = x.dtype.element_ty
    held: tl.constexpr = DEPTH * BITS // 8
    less: tl.constexpr = 0 if HAS_TABLE else (_CENTRE if BITS == 4 else 128)
    needs_sums: tl.constexpr = SECOND != "none" or less != ZERO
    stored = codes + line.to(tl.int64)[:, None] * (INNER * BITS // 8) + tl.arange(0, held)[None, :]
    of_line = line * (INNER // GROUP)
    mine, known = x + row.to(tl.int64) * INNER, row < num_rows
    acc = tl.zeros([LINES, ROWS], tl.float32)
    steps: tl.constexpr = INNER // DEPTH
    split = tl.program_id(1)
    for step in range(steps * split // SPLITS, steps * (split + 1) // SPLITS):
        base = step * DEPTH
        code = tl.load(stored + base * BITS // 8)
        scale = tl.load(scales + of_line + base // GROUP).to(tl.float32)
        made, sums = _multiplied(
            *(code, table, mine + base, known, dtype, BITS, HAS_TABLE, needs_sums, BY_PAIRS),
            *(PRECISION,),
        )
        acc += made * scale[:, None]
        if needs_sums:
            added = (less - ZERO) * scale
            if SECOND != "none":
                other = tl.load(others + of_line + base // GROUP).to(tl.float32)
                added = less * scale + other if SECOND == "minima" else (less - other) * scale
            acc += sums * added[:, None]
    acc = tl.trans(acc)
    finish(acc, parts, arrived, bias, out, row, own, num_rows, OUTER, SPLITS, HAS_BIAS)


@kernel()
def dequantise_grouped(
    codes: tl.tensor,
    scales: tl.tensor,
    others: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    INNER: tl.constexpr,
    OUTER: tl.constexpr,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    SECOND: tl.constexpr,
    HAS_TABLE: tl.constexpr,
    LINES: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """LINES lines of the weight at DEPTH columns, as they would be plain."""
    own = tl.program_id(0) * LINES + tl.arange(0, LINES)
    line = tl.minimum(own, OUTER - 1)
    base = tl.program_id(1) * DEPTH
    dtype: tl.constexpr = out.dtype.element_ty
    held: tl.constexpr = DEPTH * BITS // 8
    at = tl.arange(0, held)
    stored = codes + line.to(tl.int64)[:, None] * (INNER * BITS // 8) + base * BITS // 8
    code = tl.load(stored + at[None, :])
    group = line * (INNER // GROUP) + base // GROUP
    scale = tl.load(scales + group).to(tl.float32)[:, None]
    place = out + own.to(tl.int64)[:, None] * INNER + (base + _columns(at, BITS))[None, :]
    for half in tl.static_range(2 if BITS == 4 else 1):
        part_ = code if BITS == 8 else (code >> (4 * half)) & 15
        value = tl.load(table + part_.to(tl.int32)) if HAS_TABLE else part_.to(tl.float32)
        if SECOND == "zeros":
            wide = (value - tl.load(others + group).to(tl.float32)[:, None]) * scale
        elif SECOND == "minima":
            wide = value * scale + tl.load(others + group).to(tl.float32)[:, None]
        else:
            wide = (value - ZERO) * scale
        tl.store(place + 16 * half, wide.to(dtype), mask=(own < OUTER)[:, None])
