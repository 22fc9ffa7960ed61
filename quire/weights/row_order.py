"""The order of the rows of a head in a file. No torch.

Kernels rotate rows i and i + half of a head as a pair, whatever the pairs in the file.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.layer_plan import Rope


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Row i of each of the first `heads` heads is row order[i] of the file; other heads are in
    order."""

    heads: int
    order: tuple[int, ...]

    def after(self, first: RowOrder | None) -> RowOrder:
        """Both orders for the same heads, `first` applied before this one."""
        if first is None:
            return self
        return RowOrder(self.heads, tuple(first.order[row] for row in self.order))

    def back(self) -> RowOrder:
        """The order that undoes this one."""
        return RowOrder(self.heads, tuple(map(self.order.index, range(len(self.order)))))


def deinterleaved(heads: int, size: int, dims: int) -> RowOrder:
    """For interleaved pairs (0 and 1, 2 and 3, ...) in the first `dims` rows of a head.

    Heads of 8, all rotated: the file's rows 0 2 4 6 1 3 5 7 become rows 0 to 7."""
    return RowOrder(heads, (*range(0, dims, 2), *range(1, dims, 2), *range(dims, size)))


def ordered_by(rope: Rope | None, heads: int, size: int) -> RowOrder | None:
    """The order in which kernels want Hugging Face's rows; None if they are in that order."""
    if rope is None:
        return None
    order = paired(heads, size, rope.dims)
    if not rope.interleaved:
        return order
    apart = deinterleaved(heads, size, rope.dims)
    return apart if order is None else order.after(apart)


def turned_at_the_end(rope: Rope | None, heads: int, size: int) -> RowOrder | None:
    """As ordered_by, for heads of which only the last rows are rotated; the others stay in
    place."""
    if rope is None or not rope.interleaved:
        return None
    before, apart = size - rope.dims, deinterleaved(heads, rope.dims, rope.dims).order
    return RowOrder(heads, (*range(before), *(before + row for row in apart)))


def paired(heads: int, size: int, dims: int) -> RowOrder | None:
    """For heads of which only the first `dims` rows are rotated, in pairs half of `dims` apart:
    makes pairs half a head apart, followed by pairs of rows that are not rotated. None if all are
    rotated.

    Heads of 8, 4 rows rotated: 0 1 4 5 2 3 6 7."""
    if dims == size:
        return None
    half, rest = dims // 2, dims + (size - dims) // 2
    return RowOrder(
        heads, (*range(half), *range(dims, rest), *range(half, dims), *range(rest, size))
    )
