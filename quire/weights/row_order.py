"""In which order the rows of a head stand in a file. No torch.

Kernels turn row i and row i + half of a head as a pair, whatever the file has as pairs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Of the first `heads` heads, row i of each is the stored row order[i]; others are in order."""

    heads: int
    order: tuple[int, ...]


def interleaved(heads: int, size: int) -> RowOrder:
    """Stored as pairs side by side: 0 and half, 1 and half + 1, and so on.

    Heads of 8: the stored rows 0 2 4 6 1 3 5 7 are the rows in order."""
    return RowOrder(heads, (*range(0, size, 2), *range(1, size, 2)))
