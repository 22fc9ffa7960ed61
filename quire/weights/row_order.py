"""In which order the rows of a head stand in a file. No torch.

Kernels turn row i and row i + half of a head as a pair, whatever the file has as pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.layer_plan import Rope


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Of the first `heads` heads, row i of each is the given row order[i]; others are in order."""

    heads: int
    order: tuple[int, ...]

    def after(self, first: RowOrder | None) -> RowOrder:
        """Both of them for the same heads, `first` before this one."""
        if first is None:
            return self
        return RowOrder(self.heads, tuple(first.order[row] for row in self.order))


def deinterleaved(heads: int, size: int, dims: int) -> RowOrder:
    """Pairs that were given side by side, of the first `dims` rows: 0 and 1, 2 and 3, and so on.

    Heads of 8, all turned: the rows 0 2 4 6 1 3 5 7 that were given are 0 to 7."""
    return RowOrder(heads, (*range(0, dims, 2), *range(1, dims, 2), *range(dims, size)))


def ordered_by(rope: Rope | None, heads: int, size: int) -> RowOrder | None:
    """The order in which kernels want rows of Hugging Face; None where they are in it."""
    if rope is None:
        return None
    order = paired(heads, size, rope.dims)
    if not rope.interleaved:
        return order
    apart = deinterleaved(heads, size, rope.dims)
    return apart if order is None else order.after(apart)


def turned_at_the_end(rope: Rope | None, heads: int, size: int) -> RowOrder | None:
    """The same for heads whose last rows alone are turned; the others stay where they are."""
    if rope is None or not rope.interleaved:
        return None
    before, apart = size - rope.dims, deinterleaved(heads, rope.dims, rope.dims).order
    return RowOrder(heads, (*range(before), *(before + row for row in apart)))


def paired(heads: int, size: int, dims: int) -> RowOrder | None:
    """Pairs half a head apart where those that were given are half of `dims` apart, and rows that
    are not turned paired behind them; None where all are turned.

    Heads of 8, 4 of them turned: 0 1 4 5 2 3 6 7."""
    if dims == size:
        return None
    half, rest = dims // 2, dims + (size - dims) // 2
    return RowOrder(
        heads, (*range(half), *range(dims, rest), *range(half, dims), *range(rest, size))
    )
