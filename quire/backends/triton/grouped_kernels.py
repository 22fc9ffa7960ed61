"""The code that runs on the device for grouped.py: products with codes of 4 or 8 bits."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends.triton.jit import kernel, part
from quire.backends.triton.split_sums import finish

CENTRE = 8  # what codes of 4 bits are counted from while they are multiplied
_CENTRE = tl.constexpr(CENTRE)


def _pairs(shift: int, kind: str, magic: int, one: int, less: int) -> tl.constexpr:
    """Instructions that make two numbers of 16 bits of four bits each of two words of 16 bits,
    from bit `shift` on, exactly: they become the last bits of a power of two, which is taken away
    again."""
    twice = "{0:#06x}{0:04x}".format
    return tl.constexpr(
        "{ .reg .b32 t, m, o, n; "
        f"shr.b32 t, $1, {shift}; mov.b32 m, {twice(magic)}; "
        "lop3.b32 t, t, 0x000f000f, m, 0xea; "  # (t & mask) | m
        f"mov.b32 o, {twice(one)}; mov.b32 n, {twice(less)}; fma.rn.{kind}x2 $0, t, o, n; }}"
    )


# 128 + code in bfloat16, less 136 or 128; 1024 + code in float16, less 1032 or 1024.
_BF16_0, _BF16_1, _BF16_2, _BF16_3 = (
    _pairs(4 * i, "bf16", 0x4300, 0x3F80, 0xC308) for i in range(4)
)
_BF16_0_WHOLE, _BF16_2_WHOLE = (_pairs(i, "bf16", 0x4300, 0x3F80, 0xC300) for i in (0, 8))
_F16_0, _F16_1, _F16_2, _F16_3 = (_pairs(4 * i, "f16", 0x6400, 0x3C00, 0xE408) for i in range(4))
_F16_0_WHOLE, _F16_2_WHOLE = (_pairs(i, "f16", 0x6400, 0x3C00, 0xE400) for i in (0, 8))


@part
def _picked(
    words: tl.tensor,
    bf16: tl.constexpr,
    f16: tl.constexpr,
    SHIFT: tl.constexpr,
    LESS: tl.constexpr,
    dtype: tl.constexpr,
    BY_PAIRS: tl.constexpr,
) -> Any:
    """Four bits of each word, less a number."""
    if not BY_PAIRS:
        made = (((words.to(tl.int32) >> SHIFT) & 15) - LESS).to(dtype)
    elif dtype == tl.bfloat16:
        made = tl.inline_asm_elementwise(bf16, "=r,r", [words], tl.bfloat16, True, 2)
    else:
        made = tl.inline_asm_elementwise(f16, "=r,r", [words], tl.float16, True, 2)
    return made


@part
def _quarters(
    words: tl.tensor,
    table: tl.tensor,
    dtype: tl.constexpr,
    BITS: tl.constexpr,
    HAS_TABLE: tl.constexpr,
    BY_PAIRS: tl.constexpr,
) -> Any:
    """The four parts of words of 16 bits: four codes of 4 bits, or the low and the high half of one
    code of 8 bits and then of another."""
    if HAS_TABLE:
        wide = words.to(tl.int32)
        a, b = tl.load(table + (wide & 15)).to(dtype), tl.load(table + ((wide >> 4) & 15)).to(dtype)
        c = tl.load(table + ((wide >> 8) & 15)).to(dtype)
        d = tl.load(table + ((wide >> 12) & 15)).to(dtype)
    else:
        # The low half of a code of 8 bits is as it is, the high one is less 8: all of it less 128.
        less: tl.constexpr = _CENTRE if BITS == 4 else 0
        first: tl.constexpr = _BF16_0 if BITS == 4 else _BF16_0_WHOLE
        third: tl.constexpr = _BF16_2 if BITS == 4 else _BF16_2_WHOLE
        first16: tl.constexpr = _F16_0 if BITS == 4 else _F16_0_WHOLE
        third16: tl.constexpr = _F16_2 if BITS == 4 else _F16_2_WHOLE
        a = _picked(words, first, first16, 0, less, dtype, BY_PAIRS)
        b = _picked(words, _BF16_1, _F16_1, 4, _CENTRE, dtype, BY_PAIRS)
        c = _picked(words, third, third16, 8, less, dtype, BY_PAIRS)
        d = _picked(words, _BF16_3, _F16_3, 12, _CENTRE, dtype, BY_PAIRS)
    return a, b, c, d


@part
def _columns(at: tl.tensor, BITS: tl.constexpr) -> Any:
    """The first column that words of 16 bits hold: of 4 bits also those 16, 32 and 48 further, of
    8 bits that 16 further."""
    per: tl.constexpr = 64 if BITS == 4 else 32
    return at // 16 * per + at % 16


@part
def _multiplied(
    words: tl.tensor,
    table: tl.tensor,
    mine: tl.tensor,
    known: tl.tensor,
    dtype: tl.constexpr,
    BITS: tl.constexpr,
    HAS_TABLE: tl.constexpr,
    HALVES: tl.constexpr,
    BY_PAIRS: tl.constexpr,
    PRECISION: tl.constexpr,
) -> Any:
    """[lines, rows]: codes (less CENTRE, or less 128) times x; with HALVES those in the first half
    of words, and those in the second."""
    place = mine[None, :] + _columns(tl.arange(0, words.shape[1]), BITS)[:, None]
    a, b, c, d = _quarters(words, table, dtype, BITS, HAS_TABLE, BY_PAIRS)
    here = known[None, :]
    x, more = tl.load(place, here, 0.0), tl.load(place + 16, here, 0.0)
    if BITS == 4:
        third, fourth = tl.load(place + 32, here, 0.0), tl.load(place + 48, here, 0.0)
        first = tl.dot(a, x, input_precision=PRECISION)
        first = tl.dot(b, more, first, input_precision=PRECISION)
        if HALVES:
            second = tl.dot(c, third, input_precision=PRECISION)
        else:
            second = tl.dot(c, third, first, input_precision=PRECISION)
        second = tl.dot(d, fourth, second, input_precision=PRECISION)
    elif HALVES:
        first = 16 * tl.dot(b, x, input_precision=PRECISION)
        first = tl.dot(a, x, first, input_precision=PRECISION)
        second = 16 * tl.dot(d, more, input_precision=PRECISION)
        second = tl.dot(c, more, second, input_precision=PRECISION)
    else:
        first = tl.dot(b, x, input_precision=PRECISION)
        second = 16 * tl.dot(d, more, first, input_precision=PRECISION)
        second = tl.dot(a, x, second, input_precision=PRECISION)
        second = tl.dot(c, more, second, input_precision=PRECISION)
    return first, second


@part
def _scaled(
    made: tl.tensor,
    scales: tl.tensor,
    others: tl.tensor,
    sums: tl.tensor,
    line: tl.tensor,
    row: tl.tensor,
    known: tl.tensor,
    group: tl.tensor,
    part_: tl.tensor,
    GROUPS: tl.constexpr,
    PARTS: tl.constexpr,
    LESS: tl.constexpr,
    ZERO: tl.constexpr,
    SECOND: tl.constexpr,
) -> Any:
    """What codes of a group made, in its scale, with what its zero point or minimum adds."""
    scale = tl.load(scales + line * GROUPS + group).to(tl.float32)
    total = made * scale[:, None]
    if SECOND != "none" or LESS != ZERO:
        added = (LESS - ZERO) * scale
        if SECOND == "zeros":
            added = (LESS - tl.load(others + line * GROUPS + group).to(tl.float32)) * scale
        if SECOND == "minima":
            added += tl.load(others + line * GROUPS + group).to(tl.float32)
        total += added[:, None] * tl.load(sums + row * PARTS + part_, known, 0.0)[None, :]
    return total


@kernel("num_rows")
def multiply_grouped(
    x: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    others: tl.tensor,
    table: tl.tensor,
    sums: tl.tensor,
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
    """LINES lines of the weight times ROWS rows, over one of SPLITS parts of the sum. A step takes
    DEPTH columns of it: of one group, or a block of words whose halves are groups.

    Codes are multiplied as whole numbers, and what a group gives is scaled: so a weight costs one
    or two instructions, and is rounded by none of them. A zero point or a minimum is times the sum
    of x in the group, which `sum_groups` found."""
    own = tl.program_id(0) * LINES + tl.arange(0, LINES)
    line = tl.minimum(own, OUTER - 1)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    dtype: tl.constexpr = x.dtype.element_ty
    held: tl.constexpr = DEPTH * BITS // 16
    less: tl.constexpr = 0 if HAS_TABLE else (_CENTRE if BITS == 4 else 128)
    halves: tl.constexpr = GROUP < DEPTH
    groups: tl.constexpr = INNER // GROUP
    stored = codes + line.to(tl.int64)[:, None] * (INNER * BITS // 16) + tl.arange(0, held)[None, :]
    mine, known = x + row.to(tl.int64) * INNER, row < num_rows
    acc = tl.zeros([LINES, ROWS], tl.float32)
    split, steps = tl.program_id(1), INNER // DEPTH
    for step in range(steps * split // SPLITS, steps * (split + 1) // SPLITS):
        base = step * DEPTH
        first, second = _multiplied(
            *(tl.load(stored + base * BITS // 16), table, mine + base, known, dtype, BITS),
            *(HAS_TABLE, halves, BY_PAIRS, PRECISION),
        )
        if halves:
            acc += _scaled(
                *(first, scales, others, sums, line, row, known, 2 * step, 2 * step),
                *(groups, groups, less, ZERO, SECOND),
            )
        group, part_ = (2 * step + 1, 2 * step + 1) if halves else (base // GROUP, step)
        acc += _scaled(
            *(second, scales, others, sums, line, row, known, group, part_),
            *(groups, groups if halves else INNER // DEPTH, less, ZERO, SECOND),
        )
    acc = tl.trans(acc)
    finish(acc, parts, arrived, bias, out, row, own, num_rows, OUTER, SPLITS, HAS_BIAS)


@kernel()
def sum_groups(
    x: tl.tensor,
    sums: tl.tensor,
    INNER: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUPS: tl.constexpr,
) -> None:
    """The sums of DEPTH numbers of x each."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    inside = group < INNER // DEPTH
    place = row * INNER + group[:, None] * DEPTH + tl.arange(0, DEPTH)[None, :]
    wide = tl.load(x + place, mask=inside[:, None], other=0.0).to(tl.float32)
    tl.store(sums + row * (INNER // DEPTH) + group, tl.sum(wide, 1), mask=inside)


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
    held: tl.constexpr = DEPTH * BITS // 16
    at = tl.arange(0, held)
    stored = codes + line.to(tl.int64)[:, None] * (INNER * BITS // 16) + base * BITS // 16
    words = tl.load(stored + at[None, :]).to(tl.int32)
    place = out + own.to(tl.int64)[:, None] * INNER + (base + _columns(at, BITS))[None, :]
    for i in tl.static_range(16 // BITS):
        group = line * (INNER // GROUP) + (base + 16 * i) // GROUP
        scale = tl.load(scales + group).to(tl.float32)[:, None]
        code = (words >> (BITS * i)) & ((1 << BITS) - 1)
        value = tl.load(table + code) if HAS_TABLE else code.to(tl.float32)
        if SECOND == "zeros":
            wide = (value - tl.load(others + group).to(tl.float32)[:, None]) * scale
        elif SECOND == "minima":
            wide = (value - ZERO) * scale + tl.load(others + group).to(tl.float32)[:, None]
        else:
            wide = (value - ZERO) * scale
        tl.store(place + 16 * i, wide.to(dtype), mask=(own < OUTER)[:, None])
