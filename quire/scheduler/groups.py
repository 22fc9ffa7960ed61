"""Which decode rows share the beginning of their block tables.

Decode attention reads the blocks of a group once for all its members. Each row is in at most
one group: the rows that share a first block, with as many blocks as all of them share. Only
groups of layers that see everything are grouped: those with a window release such blocks.
"""

from __future__ import annotations

import numpy as np

from quire.cache.pool import BlockPool
from quire.request import Ints
from quire.scheduler.rows import Rows
from quire.step import PrefixGroup

# Smaller groups save less than it costs to merge two partial results.
LEAST_MEMBERS, LEAST_BLOCKS = 4, 4
# The fewest tokens for a row to be a group by itself.
LEAST_ALONE = 512


def prefix_groups(
    rows: Rows, decode: Ints, block_size: int, num_full: int = 1
) -> tuple[PrefixGroup, ...]:
    """The groups among the decode rows, of which the first `num_full` tables see everything.

    Tables [3 4 9], [3 4 7], [3 4], [5] -> blocks [3 4] for the first three (were they enough).
    A group never holds a block that a member still writes into.
    """
    members = decode[np.argsort(rows.blocks[0, decode, 0], kind="stable")]
    first = rows.blocks[0, members, 0]
    starts = np.flatnonzero(np.diff(first, prepend=first[0] - 1))
    sizes = np.diff(starts, append=len(members))
    whole = np.minimum.reduceat(rows.computed[members] // block_size, starts)
    worth = (sizes >= LEAST_MEMBERS) & (whole >= LEAST_BLOCKS)
    if not worth.any():
        return ()
    most, leads = whole[worth].max(), np.repeat(members[starts], sizes)
    # Rows that have a block of one group of layers in common have it of all.
    differs = rows.blocks[0, members, :most] != rows.blocks[0, leads, :most]
    agreed = np.where(differs.any(axis=1), differs.argmax(axis=1), most)
    shared = np.minimum(np.minimum.reduceat(agreed, starts), whole)
    worth &= shared >= LEAST_BLOCKS
    found = zip(starts[worth], sizes[worth], shared[worth], strict=True)
    return tuple(
        PrefixGroup(
            rows.blocks[:num_full, members[start], :count].reshape(-1),
            rows=members[start : start + size],
        )
        for start, size, count in found
    )


class PrefixGroups:
    """The groups of the last decode rows asked about; mostly the same rows are asked about next."""

    def __init__(self, rows: Rows, pool: BlockPool, *, sought: bool = True) -> None:
        """Without `sought` no groups are made."""
        self._rows, self._block_size = rows, pool.block_size
        self._num_full = pool.num_full if sought else 0
        self._key = b""
        self._found: tuple[PrefixGroup, ...] = ()

    def among(self, at: Ints, *, guess: bool = False) -> tuple[PrefixGroup, ...]:
        """The groups among the decode rows `at`, as they were when these rows first ran together.

        Beams that move within these rows keep their common blocks, so the groups stay correct.
        `guess`: each row feeds several tokens a pass, and so is a group by itself, too.
        """
        if not len(at) or not self._num_full:
            return ()
        return (*self._among(at), *self._alone(at)) if guess else self._among(at)

    def _alone(self, at: Ints) -> list[PrefixGroup]:
        rows, size = self._rows, self._block_size
        whole = rows.computed[at] // size
        return [
            PrefixGroup(rows.blocks[: self._num_full, row, :count].reshape(-1), rows=at[i : i + 1])
            for i, (row, count) in enumerate(zip(at.tolist(), whole.tolist(), strict=True))
            if count * size >= LEAST_ALONE
        ]

    def _among(self, at: Ints) -> tuple[PrefixGroup, ...]:
        key = self._rows.placement[at].tobytes()
        if self._key != key:
            found = prefix_groups(self._rows, at, self._block_size, self._num_full)
            self._key, self._found = key, found
        return self._found
