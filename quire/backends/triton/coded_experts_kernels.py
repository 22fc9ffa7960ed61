"""Device code of coded_experts.py."""

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from quire.backends.triton.experts_kernels import expert_of
from quire.backends.triton.jit import kernel, part

_WHOLE = tl.constexpr(8388608.0)  # 2^23, whose last bits a code becomes
_RAISED = tl.constexpr(2.0**126)
_TWICE = tl.constexpr(0x10001)


def pair_code(kind: str, index: int, *, fp4: bool, minima: bool) -> str:
    """Instructions that make two numbers ($0, $1) of four bits each of a word ($2), at bits 4 index
    and 16 + 4 index. $3 is the scale, $4 minus the zero point (and what is said below), $5 the
    minimum: each a pair of the 16-bit floats that the numbers are, too ("bf16" or "f16").

    A whole number becomes the last bits of a power of two, which is taken away with the zero point.
    A float of 4 bits (a sign, two bits of exponent, one of fraction) becomes one with the same
    bits, whose exponent is then raised; that makes numbers without exponent right, too."""
    magic, ones, first, raised = {
        "bf16": ("0x43004300", "0x3F803F80", 6, "0x7E807E80"),
        "f16": ("0x64006400", "0x3C003C00", 9, "0x74007400"),
    }[kind]
    up = first - 4 * index
    shifted = f"shl.b32 t, $2, {up};" if up >= 0 else f"shr.u32 t, $2, {-up};"
    if fp4:
        plain = (
            f"{shifted} and.b32 t, t, {(7 << first) * 0x10001:#x}; "
            f"shl.b32 m, $2, {12 - 4 * index}; and.b32 m, m, 0x80008000; or.b32 t, t, m; "
            f"mov.b32 m, {raised}; mul.rn.{kind}x2 t, t, m;"
        )
    else:
        plain = (
            f"shr.u32 t, $2, {4 * index}; mov.b32 m, {magic}; "
            f"lop3.b32 t, t, 0x000f000f, m, 0xea; mov.b32 m, {ones}; fma.rn.{kind}x2 t, t, m, $4;"
        )
    scaled = f"fma.rn.{kind}x2 t, t, $3, $5;" if minima else f"mul.rn.{kind}x2 t, t, $3;"
    return f"{{ .reg .b32 t, m; {plain} {scaled} mov.b32 {{$0, $1}}, t; }}"


@part
def _half(two: tl.tensor, SECOND_HALF: tl.constexpr) -> Any:
    """The 16 bits of a word that belong to line g, or to line g + 8."""
    return ((two >> 16) if SECOND_HALF else two) & 0xFFFF


@part
def _wide(bits: tl.tensor, kind: tl.constexpr) -> Any:
    return bits.to(tl.int16).to(kind, bitcast=True).to(tl.float32)


@part
def _number(words: tl.tensor, SHIFT: tl.constexpr, FP4: tl.constexpr) -> Any:
    """Four bits of each word as float32, see `pair_code`: a float of 4 bits times 2^-126, or a code
    plus 2^23."""
    if FP4:
        up: tl.constexpr = 22 - SHIFT
        size = words << up if up >= 0 else words >> -up
        made = (size & 0x01C00000) | ((words << (28 - SHIFT)) & -0x80000000)
    else:
        made = ((words >> SHIFT) & 15) | 0x4B000000
    return made.to(tl.float32, bitcast=True)


@part
def _scaled(
    number: tl.tensor,
    scale: tl.tensor,
    second: tl.tensor,
    FP4: tl.constexpr,
    SECOND: tl.constexpr,
    MAGIC: tl.constexpr,
    ZERO: tl.constexpr,
) -> Any:
    if FP4:
        number = number * _RAISED
    elif SECOND == 1:
        number = number + (second + (MAGIC - _WHOLE))
    else:
        number = number - (_WHOLE + ZERO)
    number = number * scale
    return number + second if SECOND == 2 else number


@part
def _pair(
    words: tl.tensor,
    scales: tl.tensor,
    seconds: tl.tensor,
    INDEX: tl.constexpr,
    CODE: tl.constexpr,
    dtype: tl.constexpr,
    kind: tl.constexpr,
    FP4: tl.constexpr,
    SECOND: tl.constexpr,
    MAGIC: tl.constexpr,
    ZERO: tl.constexpr,
    LESS: tl.constexpr,
) -> Any:
    """[words, 2]: the two numbers of each word that belong together (see fragments.py), in
    `dtype`, each rounded once. `kind`: of scales; with CODE (`pair_code`) it is the same."""
    scale = _half(scales, INDEX % 2)
    second = _half(seconds, INDEX % 2)
    if CODE != "":
        less = second * _TWICE if SECOND == 1 else tl.full(words.shape, LESS, tl.int32)
        given = [words, scale * _TWICE, less, second * _TWICE]
        if dtype == tl.bfloat16:
            first, other = tl.inline_asm_elementwise(
                CODE, "=h,=h,r,r,r,r", given, (tl.bfloat16, tl.bfloat16), True, 1
            )
        else:
            first, other = tl.inline_asm_elementwise(
                CODE, "=h,=h,r,r,r,r", given, (tl.float16, tl.float16), True, 1
            )
    else:
        wide = _wide(scale, kind)
        more = _wide(second, dtype if SECOND == 1 else kind)
        low, high = _number(words, 4 * INDEX, FP4), _number(words, 16 + 4 * INDEX, FP4)
        first = _scaled(low, wide, more, FP4, SECOND, MAGIC, ZERO).to(dtype)
        other = _scaled(high, wide, more, FP4, SECOND, MAGIC, ZERO).to(dtype)
    return tl.join(first, other)


@part
def _places(
    expert: tl.tensor,
    strip: tl.tensor,
    INNER: tl.constexpr,
    OUTER: tl.constexpr,
    LINES: tl.constexpr,
    GROUP: tl.constexpr,
) -> Any:
    """Of a strip of an expert's lines: where the words of its first 64 columns are, and where their
    scales are, in words [tiles of 16 lines, g, groups]. Behind an expert's last line it is that."""
    blocks: tl.constexpr = OUTER // 64
    tiles: tl.constexpr = LINES // 16
    sets: tl.constexpr = 64 // GROUP if GROUP < 64 else 1
    first, last = expert * blocks + strip * (LINES // 64), (expert + 1) * blocks - 1
    word, own = tl.arange(0, LINES * 8), tl.arange(0, tiles)[:, None, None]
    stored = tl.minimum(first + word // 512, last).to(tl.int64) * (INNER * 8) + word % 512
    spot = tl.minimum(first + own // 4, last).to(tl.int64) * (INNER // GROUP * 32) + own % 4
    spot += tl.arange(0, 8)[None, :, None] * 4 + tl.arange(0, sets)[None, None, :] * 32
    return stored, spot


@part
def _multiplied(
    rows: tl.tensor,
    inside: tl.tensor,
    stored: tl.tensor,
    two_scales: tl.tensor,
    two_seconds: tl.tensor,
    inner: tl.tensor,
    LINES: tl.constexpr,
    GROUP: tl.constexpr,
    FP4: tl.constexpr,
    SECOND: tl.constexpr,
    MAGIC: tl.constexpr,
    ZERO: tl.constexpr,
    LESS: tl.constexpr,
    CODE_0: tl.constexpr,
    CODE_1: tl.constexpr,
    CODE_2: tl.constexpr,
    CODE_3: tl.constexpr,
    WAITS: tl.constexpr,
    dtype: tl.constexpr,
    kind: tl.constexpr,
) -> Any:
    """[lines, rows], from pointers to the first word, scale and number of each."""
    sets: tl.constexpr = 64 // GROUP if GROUP < 64 else 1  # groups to 64 columns
    shape: tl.constexpr = (LINES // 16, 8, 4, sets, 4 // sets)
    scale, second = tl.load(two_scales), tl.load(two_seconds if SECOND != 0 else two_scales)
    acc, at = tl.zeros([LINES, rows.shape[0]], tl.float32), tl.arange(0, 64)
    for base in range(0, inner, 64):
        # Those of the next step: they come too late for this one.
        later = tl.minimum(base + 64, inner - 64) // GROUP * 32
        next_scale = tl.load(two_scales + later)
        next_second = tl.load(two_seconds + later) if SECOND != 0 else next_scale
        words = tl.reshape(tl.load(stored + base * 8), shape)
        mine = tl.load(rows[None, :] + (base + at)[:, None], mask=inside[None, :], other=0.0)
        by_word = tl.broadcast_to(scale[:, :, None, :, None], shape)
        more = tl.broadcast_to(second[:, :, None, :, None], shape)
        a = _pair(words, by_word, more, 0, CODE_0, dtype, kind, FP4, SECOND, MAGIC, ZERO, LESS)
        b = _pair(words, by_word, more, 2, CODE_2, dtype, kind, FP4, SECOND, MAGIC, ZERO, LESS)
        c = _pair(words, by_word, more, 1, CODE_1, dtype, kind, FP4, SECOND, MAGIC, ZERO, LESS)
        d = _pair(words, by_word, more, 3, CODE_3, dtype, kind, FP4, SECOND, MAGIC, ZERO, LESS)
        # Tile, g, t, 16 columns; and of a word the second of two columns, 8 columns behind, 8 lines
        # behind.
        w = tl.join(tl.join(a, b), tl.join(c, d))
        w = tl.reshape(w, (LINES // 16, 8, 4, 4, 2, 2, 2))
        w = tl.reshape(tl.permute(w, (0, 6, 1, 3, 5, 2, 4)), (LINES, 64))
        acc = tl.dot(w, mine, acc)
        if WAITS:
            acc = tl.inline_asm_elementwise("// waited", "=f,0", [acc], tl.float32, True, 1)
        scale, second = next_scale, next_second
    return acc


@kernel()
def multiply_coded_experts(
    x: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    seconds: tl.tensor,
    biases: tl.tensor,
    counts: tl.tensor,
    ordered: tl.tensor,
    out: tl.tensor,
    inner: tl.tensor,
    PER_ROW: tl.constexpr,
    INNER: tl.constexpr,
    OUTER: tl.constexpr,
    EXPERTS: tl.constexpr,
    LANES: tl.constexpr,
    GROUP: tl.constexpr,
    FP4: tl.constexpr,
    SECOND: tl.constexpr,
    MAGIC: tl.constexpr,
    ZERO: tl.constexpr,
    LESS: tl.constexpr,
    CODE_0: tl.constexpr,
    CODE_1: tl.constexpr,
    CODE_2: tl.constexpr,
    CODE_3: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    LINES: tl.constexpr,
    WAITS: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """multiply_experts of experts_kernels.py with codes of 4 bits in the order of
    quantised/fragments.py, made plain in registers, where tensor cores take them from as they are.
    Of all experts, one below the other, there are blocks of 64 lines by 64 columns, each with words
    of two scales. SECOND: 0, nothing; 1, `seconds` are - (MAGIC + zero point); 2, they are minima.
    `inner` is INNER, but no constant, so that steps are not unrolled.

    WAITS: each step waits for its product. Triton 3.6 would let products run on into the next step,
    which overwrites the registers that they still read: results were then wrong with 8 warps."""
    per_tile: tl.constexpr = (OUTER + LINES - 1) // LINES
    tile, strip = tl.program_id(0) // per_tile, tl.program_id(0) % per_tile
    if OVERLAPS:
        gdc_wait()
    expert, first, count = expert_of(counts, tile, EXPERTS, LANES, ROWS)
    if expert >= EXPERTS:
        return
    inside = (tile - first) * ROWS + tl.arange(0, ROWS) < count
    pair = tl.load(ordered + tile * ROWS + tl.arange(0, ROWS), mask=inside, other=0)
    stored, spot = _places(expert, strip, INNER, OUTER, LINES, GROUP)
    acc = _multiplied(
        *(x + (pair // PER_ROW).to(tl.int64) * INNER, inside, codes + stored),
        *(
            scales.to(tl.pointer_type(tl.int32)) + spot,
            seconds.to(tl.pointer_type(tl.int32)) + spot,
        ),
        *(inner, LINES, GROUP, FP4, SECOND, MAGIC, ZERO, LESS, CODE_0, CODE_1, CODE_2, CODE_3),
        *(WAITS, x.dtype.element_ty, scales.dtype.element_ty),
    )
    line = strip * LINES + tl.arange(0, LINES)
    if HAS_BIAS:
        bias = tl.load(biases + expert.to(tl.int64) * OUTER + line, mask=line < OUTER, other=0.0)
        acc += bias.to(tl.float32)[:, None]
    place = out + pair.to(tl.int64)[:, None] * OUTER + line[None, :]
    made = tl.trans(acc).to(out.dtype.element_ty)
    tl.store(place, made, mask=inside[:, None] & (line < OUTER)[None, :])
