"""A 4-bit GroupedMatrix in the order in which tensor cores read it (mma.m16n8k16).

In each block of 64 lines by 64 columns, thread 4 g + t of 32 has 16 bytes for each 16 lines: one
32-bit word for each 16 columns, with columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of lines g and g +
8. The codes are in pairs as the product takes them: pair i (line g + 8 (i % 2), columns from 2 t +
8 (i // 2) on) is in bits 4 i and 16 + 4 i. Scales are ordered by g.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.backends.quantised import SMALL_GROUPS, WIDE_GROUP
from quire.backends.quantised.grouped import GroupedMatrix, taken_apart

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

    def tensors(self) -> tuple[Tensor, ...]:
        parts = (self.codes, self.scales, self.zeros, self.minima, self.order)
        return tuple(part for part in parts if part is not None)


MAGIC = {torch.bfloat16: 128, torch.float16: 1024}  # a code becomes the last bits of this


def has_fragments(matrix: GroupedMatrix, dtype: torch.dtype) -> bool:
    """Whether a weight can be stored in this order, for activations of this dtype."""
    if matrix.bits != 4 or matrix.table is not None or dtype not in MAGIC:
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
    zeros = None
    if matrix.zeros is not None:
        zeros = _by_thread(-(matrix.zeros.float() + MAGIC[dtype]).to(dtype))
    return FragmentMatrix(
        matrix.shape,
        matrix.group,
        _words(matrix),
        _by_thread(matrix.scales),
        matrix.zero,
        zeros,
        None if matrix.minima is None else _by_thread(matrix.minima),
        matrix.order,
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


def _by_thread(numbers: Tensor) -> Tensor:
    """[lines, groups] -> [blocks, groups, g, tile and half]"""
    filled = _filled(numbers)
    parts = filled.view(-1, 8, 8, filled.shape[1])  # block, tile and half, g, group
    return parts.permute(0, 3, 2, 1).contiguous()


def _filled(numbers: Tensor) -> Tensor:
    """Padded to a whole block of lines."""
    short = -len(numbers) % BLOCK
    return torch.nn.functional.pad(numbers, (0, 0, 0, short)) if short else numbers
