"""GroupedMatrix: a weight [N, K] in codes of 4 or 8 bits, with a scale for every group of a row.

Weights of all file formats are converted to this layout, so that one kernel multiplies with all:

    weight = (value - zero) * scale + minimum      of its row and group

where the value is the code itself, or a table's entry for it. Codes are in 16-bit words. In 4 bits,
word i of every sixteen holds columns i, i + 16, i + 32 and i + 48 of 64, the first in its lowest
bits; in 8 bits columns i and i + 16 of 32. A kernel that unpacks two words at a time thus gets runs
of 16 columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quire.errors import NotSupported

RUN = 16  # neighbouring columns are in neighbouring words
SIGNED_ZERO = 128  # the 8-bit code of 0 for signed numbers
# Floats of 4 bits: a sign, 2 bits of exponent, 1 of fraction.
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


@dataclass(frozen=True, slots=True)
class GroupedMatrix:
    """See above. `zeros` are codes. `order`: column i of the codes is column order[i] of the
    weight, for files with scattered groups (GPTQ's desc_act)."""

    bits: int  # 4 or 8
    codes: Tensor  # int16 [N, K * bits / 16]
    scales: Tensor  # floats [N, groups]
    zero: int = 0
    zeros: Tensor | None = None  # uint8 [N, groups]; `zero` is 0 then
    minima: Tensor | None = None  # floats [N, groups]
    table: Tensor | None = None  # float32 [16]
    order: Tensor | None = None  # int64 [K]

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1] * 16 // self.bits

    @property
    def device(self) -> torch.device:
        return self.codes.device

    @property
    def group(self) -> int:
        """Columns that share a scale."""
        return self.shape[1] // self.scales.shape[1]

    @property
    def is_fp4(self) -> bool:
        """Whether codes are floats of 4 bits, or these times a power of two."""
        if self.table is None or not bool(self.table[2] > 0):
            return False
        units = self.table / self.table[2]
        is_power = bool(self.table[2].frexp().mantissa == 0.5)
        return is_power and torch.equal(units, torch.tensor(FP4, device=self.device))

    def tensors(self) -> tuple[Tensor, ...]:
        parts = (self.codes, self.scales, self.zeros, self.minima, self.table, self.order)
        return tuple(part for part in parts if part is not None)

    def dequantised(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """[N, K], each weight computed in float32 and rounded once."""
        rows, columns = self.shape
        values = taken_apart(self.codes, self.bits).view(rows, -1, self.group)
        wide = values.float() if self.table is None else self.table[values.int()]
        if self.zeros is not None:
            wide = wide - self.zeros[..., None].float()
        elif self.zero:
            wide = wide - self.zero
        wide = wide * self.scales[..., None].float()
        if self.minima is not None:
            wide = wide + self.minima[..., None].float()
        made = wide.view(rows, columns).to(dtype)
        if self.order is None:
            return made
        return torch.empty_like(made).index_copy_(1, self.order, made)

    def rows(self, first: int, last: int) -> GroupedMatrix:
        return self._taken(slice(first, last))

    def rows_at(self, index: Tensor) -> GroupedMatrix:
        """The rows with these indices, in their order."""
        return self._taken(index)

    def columns(self, first: int, last: int) -> GroupedMatrix:
        """Columns first .. last. They must begin and end at whole words of codes."""
        if self.order is not None:
            raise NotSupported(
                "columns of a weight whose groups are scattered (desc_act) cannot be cut apart. "
                "Take a checkpoint without desc_act, or one device."
            )
        unit = block_columns(self.bits)
        if first % unit or last % unit:
            raise NotSupported(
                f"columns {first} to {last} of codes of {self.bits} bits, which are cut at "
                f"multiples of {unit}. Use fewer devices, or quantization='none'."
            )
        common = math.gcd(first, last, self.group)
        fine = self if self.shape[1] == self.group else self.regrouped(common)
        cut = slice(0, 1) if fine.scales.shape[1] == 1 else slice(first // common, last // common)
        return replace(
            fine,
            codes=fine.codes[:, first * self.bits // 16 : last * self.bits // 16].contiguous(),
            scales=fine.scales[:, cut].contiguous(),
            zeros=None if fine.zeros is None else fine.zeros[:, cut].contiguous(),
            minima=None if fine.minima is None else fine.minima[:, cut].contiguous(),
        )

    def regrouped(self, group: int) -> GroupedMatrix:
        """The same matrix with smaller groups, whose size divides that of its groups."""
        times = self.group // group
        if times == 1:
            return self
        return replace(
            self,
            scales=self.scales.repeat_interleave(times, 1),
            zeros=None if self.zeros is None else self.zeros.repeat_interleave(times, 1),
            minima=None if self.minima is None else self.minima.repeat_interleave(times, 1),
        )

    def widened(self) -> GroupedMatrix:
        """The same in 8 bits, with the zero point SIGNED_ZERO. A table must have whole numbers."""
        codes = taken_apart(self.codes, self.bits)
        if self.table is not None:
            if not bool((self.table == self.table.round()).all()):
                raise NotSupported("codes of a table with fractions beside others in one weight.")
            codes = (self.table.to(torch.int16) + SIGNED_ZERO).to(torch.uint8)[codes.int()]
        elif self.zeros is None:
            codes = codes + (SIGNED_ZERO - self.zero)
        zero = SIGNED_ZERO if self.zeros is None else 0
        return replace(self, bits=8, codes=put_together(codes, 8), zero=zero, table=None)

    def narrowed(self) -> GroupedMatrix:
        """The same matrix with scales and minima in 16 bits, if that keeps their first 11 bits."""
        scales = _narrow(self.scales)
        minima = None if self.minima is None else _narrow(self.minima)
        return replace(self, scales=scales, minima=minima)

    def to(self, device: torch.device) -> GroupedMatrix:
        moved = {
            name: part.to(device)
            for name in ("codes", "scales", "zeros", "minima", "table", "order")
            if isinstance(part := getattr(self, name), Tensor)
        }
        return replace(self, **moved)  # type: ignore[arg-type]

    def _taken(self, rows: slice | Tensor) -> GroupedMatrix:
        return replace(
            self,
            codes=self.codes[rows].contiguous(),
            scales=self.scales[rows].contiguous(),
            zeros=None if self.zeros is None else self.zeros[rows].contiguous(),
            minima=None if self.minima is None else self.minima[rows].contiguous(),
        )


def stacked(parts: Sequence[GroupedMatrix]) -> GroupedMatrix | None:
    """Matrices with the same number of columns, stacked. None if their columns are in different
    orders, which one product cannot compute."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if any(not _same(part.order, first.order) for part in parts):
        return None
    alike = all(
        (part.bits, part.zero) == (first.bits, first.zero) and _same(part.table, first.table)
        for part in parts
    )
    if not alike:
        parts = [part.widened() for part in parts]
    group = math.gcd(*(part.group for part in parts))
    parts = [part.regrouped(group) for part in parts]
    zeros = minima = None
    if any(part.zeros is not None for part in parts):
        zeros = torch.cat(
            [part.zeros if part.zeros is not None else _zeros(part) for part in parts]
        )
    if any(part.minima is not None for part in parts):
        nothing = [torch.zeros_like(part.scales) for part in parts]
        minima = torch.cat(
            [p.minima if p.minima is not None else n for p, n in zip(parts, nothing, strict=True)]
        )
    return replace(
        parts[0],
        codes=torch.cat([part.codes for part in parts]),
        scales=torch.cat([part.scales for part in parts]),
        zero=0 if zeros is not None else parts[0].zero,
        zeros=zeros,
        minima=minima,
    )


def block_columns(bits: int) -> int:
    """The number of columns whose codes share words, so that they can only be cut together."""
    return RUN * 16 // bits


def put_together(codes: Tensor, bits: int) -> Tensor:
    """Codes uint8 [N, K] -> words int16 [N, K * bits / 16]; K is a multiple of block_columns."""
    parts = codes.view(codes.shape[0], -1, 16 // bits, RUN)
    words = parts[:, :, 0].to(torch.int32)
    for i in range(1, 16 // bits):
        words |= parts[:, :, i].to(torch.int32) << (bits * i)
    return words.to(torch.int16).view(codes.shape[0], -1)


def taken_apart(words: Tensor, bits: int) -> Tensor:
    """Words int16 [N, K * bits / 16] -> codes uint8 [N, K]."""
    wide = words.view(words.shape[0], -1, 1, RUN).to(torch.int32)
    parts = [(wide >> (bits * i)) & ((1 << bits) - 1) for i in range(16 // bits)]
    return torch.cat(parts, 2).to(torch.uint8).view(words.shape[0], -1)


def _zeros(part: GroupedMatrix) -> Tensor:
    return torch.full(part.scales.shape, part.zero, dtype=torch.uint8, device=part.device)


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def _narrow(numbers: Tensor) -> Tensor:
    if numbers.itemsize == 2:
        return numbers
    for dtype in (torch.bfloat16, torch.float16):
        if torch.equal(numbers.to(dtype).float(), numbers.float()):
            return numbers.to(dtype)
    least, most = torch.finfo(torch.float16).smallest_normal, torch.finfo(torch.float16).max
    sizes = numbers.abs()
    normal = (sizes == 0) | ((sizes >= least) & (sizes <= most))
    return numbers.half() if bool(normal.all()) else numbers
