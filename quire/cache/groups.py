"""Groups of layers by how far back they see, and how many blocks a row needs of each.

`windows` names the groups: one entry for each, None for a group that sees everything, else how
many tokens back a query sees, itself included. Groups that see everything come first, and those
with one window beside each other. Every group has a table of its own per row; blocks come from
one pool.

block_size 4, windows (None, 6), a row of 100 tokens: 25 blocks of the first group, and at most 3
of the second, since the token at position 100 sees from 95 on, which is in block 23.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

Windows = tuple[int | None, ...]
ONE_GROUP: Windows = (None,)
# Of layers that keep a state: a token sees itself and the one before it (layers/kv_groups.py).
STATE_WINDOW = 2


@dataclass(frozen=True, slots=True)
class WindowGroups:
    """Groups first .. last - 1, which all have this window."""

    window: int
    first: int
    last: int

    @property
    def count(self) -> int:
        return self.last - self.first

    def first_seen(self, num_blocks: int, block_size: int) -> int:
        """The first block that the token after `num_blocks` whole ones sees."""
        return max(0, (num_blocks * block_size - self.window + 1) // block_size)

    def most_held(self, block_size: int) -> int:
        """Blocks of such a group that a row keeps, however long it is: those that the token after
        its last whole block sees, and the one that this token is written into."""
        return -(-(self.window - 1) // block_size) + 1


def window_groups(windows: Windows) -> tuple[WindowGroups, ...]:
    """The groups that have a window, those with the same one together."""
    spans = [list(same) for _, same in groupby(range(len(windows)), windows.__getitem__)]
    found = ((windows[span[0]], span[0], span[-1] + 1) for span in spans)
    return tuple(WindowGroups(w, first, last) for w, first, last in found if w is not None)


def blocks_held(windows: Windows, block_size: int, num_tokens: int) -> int:
    """Blocks of all groups that a row of so many tokens keeps."""
    blocks = -(-num_tokens // block_size)
    limited = sum(g.count * min(blocks, g.most_held(block_size)) for g in window_groups(windows))
    return windows.count(None) * blocks + limited


def most_tokens(windows: Windows, block_size: int, num_blocks: int, most: int) -> int:
    """Tokens of the longest row that so many blocks hold, at most `most`."""
    if blocks_held(windows, block_size, most) <= num_blocks:
        return most
    fits, too_long = 0, -(-most // block_size)  # in blocks of one group
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if blocks_held(windows, block_size, middle * block_size) <= num_blocks:
            fits = middle
        else:
            too_long = middle
    return fits * block_size
