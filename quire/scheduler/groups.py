"""Which decode rows share the beginning of their block tables.

Decode attention reads the blocks of a group once for all its members. Each row is in at most
one group: the rows that share a first block, with as many blocks as all of them share.
"""

from __future__ import annotations

import numpy as np

from quire.request import Ints
from quire.scheduler.rows import Rows
from quire.step import PrefixGroup

# Below this a group saves less than it costs to merge two partial results.
LEAST_MEMBERS, LEAST_BLOCKS = 4, 4


def prefix_groups(rows: Rows, decode: Ints, block_size: int) -> tuple[PrefixGroup, ...]:
    """The groups among the decode rows.

    Tables [3 4 9], [3 4 7], [3 4], [5] -> blocks [3 4] for the first three (were they enough).
    A group never holds a block that a member still writes into.
    """
    first = rows.blocks[decode, 0]
    _, group_of, sizes = np.unique(first, return_inverse=True, return_counts=True)
    groups = []
    for g in np.flatnonzero(sizes >= LEAST_MEMBERS):
        members = decode[group_of == g]
        whole = int((rows.computed[members] // block_size).min())
        if whole < LEAST_BLOCKS:
            continue
        tables = rows.blocks[members, :whole]
        same = (tables == tables[0]).all(axis=0)
        shared = whole if same.all() else int(same.argmin())
        if shared >= LEAST_BLOCKS:
            groups.append(PrefixGroup(blocks=tables[0, :shared].copy(), rows=members))
    return tuple(groups)


class PrefixGroups:
    """The groups of the last decode rows asked about, which are mostly asked about again."""

    def __init__(self, rows: Rows, block_size: int) -> None:
        self._rows, self._block_size = rows, block_size
        self._key = b""
        self._found: tuple[PrefixGroup, ...] = ()

    def among(self, at: Ints) -> tuple[PrefixGroup, ...]:
        """The groups among the decode rows `at`, as they were when these first ran together.

        Beams that move within these rows keep what they had in common, so that stays true.
        """
        if not len(at):
            return ()
        key = self._rows.placement[at].tobytes()
        if self._key != key:
            self._key, self._found = key, prefix_groups(self._rows, at, self._block_size)
        return self._found
