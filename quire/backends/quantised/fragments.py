"""A 4-bit GroupedMatrix in the order in which tensor cores read it (mma.m16n8k16).

In each block of 64 lines by 64 columns, thread 4 g + t of 32 has 16 bytes for each 16 lines: one
32-bit word for each 16 columns, with columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of lines g and g +
8. The codes are in pairs as the product takes them: pair i (line g + 8 (i % 2), columns from 2 t +
8 (i // 2) on) is in bits 4 i and 16 + 4 i. Scales are ordered by g.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quire.backends.quantised import SMALL_GROUPS, WIDE_GROUP
from quire.backends.quantised.grouped import FP4, GroupedMatrix, taken_apart

BLOCK = 64  # lines, and columns


@dataclass(frozen=True, slots=True)
class FragmentMatrix:
    """See above. Lines are padded to whole blocks with codes and scales of 0."""

    shape: tuple[int, int]
    group: int
    codes: Tensor  # int32 [blocks, columns / 64, 4, 32, 4]
    scales: Tensor  # 16-bit floats [blocks, groups, 8, 8]
    zero: int
    zeros: Tensor | None  # like scales, in the activations' dtype: - (MAGIC + zero point)
    minima: Tensor | None  # like scales
    order: Tensor | None
    is_fp4: bool = False  # codes are floats of 4 bits

    def dequantised(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """[N, K], each weight computed in float32 and rounded once; its columns are in the order of
        the codes."""
        (lines, columns), wide = self.shape, _codes(self.codes).float()
        if self.is_fp4:
            wide = torch.tensor(FP4, device=wide.device)[wide.int()]
        wide = wide.view(len(wide), -1, self.group)
        if self.zeros is not None:
            wide = wide + (_by_line(self.zeros).float() + MAGIC[self.zeros.dtype])[..., None]
        else:
            wide = wide - self.zero
        wide = wide * _by_line(self.scales).float()[..., None]
        if self.minima is not None:
            wide = wide + _by_line(self.minima).float()[..., None]
        return wide.view(-1, columns)[:lines].to(dtype)

    def blocks(self, first: int, last: int) -> FragmentMatrix:
        """Only the lines of these blocks."""
        parts = {
            name: part[first:last]
            for name in ("codes", "scales", "zeros", "minima")
            if (part := getattr(self, name)) is not None
        }
        return replace(self, shape=((last - first) * BLOCK, self.shape[1]), **parts)

    def tensors(self) -> tuple[Tensor, ...]:
        parts = (self.codes, self.scales, self.zeros, self.minima, self.order)
        return tuple(part for part in parts if part is not None)


MAGIC = {torch.bfloat16: 128, torch.float16: 1024}  # a code becomes the last bits of this


def has_fragments(matrix: GroupedMatrix, dtype: torch.dtype) -> bool:
    """Whether a weight can be stored in this order, for activations of this dtype."""
    if matrix.bits != 4 or dtype not in MAGIC:
        return False
    if matrix.table is not None and not matrix.is_fp4:
        return False
    if matrix.zeros is not None and matrix.minima is not None:
        return False
    columns, group = matrix.shape[1], matrix.group
    alike = {part.dtype for part in (matrix.scales, matrix.minima) if part is not None}
    known = group in SMALL_GROUPS or group % WIDE_GROUP == 0 or group == columns
    return known and columns % BLOCK == 0 and alike in ({torch.float16}, {torch.bfloat16})


def fragments(matrix: GroupedMatrix, dtype: torch.dtype) -> FragmentMatrix:
    """The matrix in this order, for activations of this dtype. It must have passed `has_fragments`
    and be narrowed."""
    zeros, scales = None, matrix.scales
    if matrix.table is not None:
        scales = scales * matrix.table[2].to(scales.dtype)
    if matrix.zeros is not None:
        zeros = _by_thread(-(matrix.zeros.float() + MAGIC[dtype]).to(dtype))
    return FragmentMatrix(
        matrix.shape,
        matrix.group,
        _words(matrix),
        _by_thread(scales),
        matrix.zero,
        zeros,
        None if matrix.minima is None else _by_thread(matrix.minima),
        matrix.order,
        matrix.table is not None,
    )


def _words(matrix: GroupedMatrix) -> Tensor:
    lines, columns = matrix.shape
    made = matrix.codes.new_empty(
        (-(-lines // BLOCK), columns // BLOCK, 4, 32, 4), dtype=torch.int32
    )
    most = max(1, (1 << 26) // (BLOCK * columns))  # blocks at once, so that little memory is used
    for first in range(0, len(made), most):
        part = matrix.codes[first * BLOCK : (first + most) * BLOCK]
        codes = _filled(taken_apart(part, 4))
        #            block, tile, half, g, k64, k16, half, t, pair
        wide = codes.view(-1, 4, 2, 8, columns // BLOCK, 4, 2, 4, 2)
        words = torch.zeros_like(made[first : first + most])
        for half, behind, second in ((h, b, s) for h in (0, 1) for b in (0, 1) for s in (0, 1)):
            one = wide[:, :, half, :, :, :, behind, :, second].to(torch.int32)
            ordered = one.permute(0, 3, 1, 2, 5, 4).reshape(words.shape)
            words |= ordered << (4 * (half + 2 * behind) + 16 * second)
        made[first : first + most] = words
    return made


def _codes(words: Tensor) -> Tensor:
    """The codes [lines, columns] of `_words`."""
    blocks, steps = words.shape[:2]
    made = torch.empty((blocks, 4, 2, 8, steps, 4, 2, 4, 2), dtype=torch.uint8, device=words.device)
    for half, behind, second in ((h, b, s) for h in (0, 1) for b in (0, 1) for s in (0, 1)):
        one = (words >> (4 * (half + 2 * behind) + 16 * second)) & 15
        ordered = one.view(blocks, steps, 4, 8, 4, 4).permute(0, 2, 3, 1, 5, 4)
        made[:, :, half, :, :, :, behind, :, second] = ordered.to(torch.uint8)
    return made.view(blocks * BLOCK, steps * BLOCK)


def _by_line(numbers: Tensor) -> Tensor:
    """[lines, groups] of `_by_thread`."""
    return numbers.permute(0, 3, 2, 1).reshape(-1, numbers.shape[1])


def _by_thread(numbers: Tensor) -> Tensor:
    """[lines, groups] -> [blocks, groups, g, tile and half]"""
    filled = _filled(numbers)
    parts = filled.view(-1, 8, 8, filled.shape[1])  # block, tile and half, g, group
    return parts.permute(0, 3, 2, 1).contiguous()


def _filled(numbers: Tensor) -> Tensor:
    """Padded to a whole block of lines."""
    short = -len(numbers) % BLOCK
    return torch.nn.functional.pad(numbers, (0, 0, 0, short)) if short else numbers
