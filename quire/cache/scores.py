"""Scores of tokens in published blocks, kept beside the blocks.

A request for prompt logprobs that finds a cached block finds the scores of its tokens here, and
need not compute the block again. An entry is made when the pass that scores it is planned, and
filled when its result arrives; other rows of the same plan can rely on it before that. It is
removed with its block, or when `most_bytes` are used up, the longest unused first.

block_size 4, prompt [7 7 7 7 | 8 8 8 8 | 9 ...]: the entry of the first block has three lines
(nothing comes before the first token), that of the second has four, of which the first was made
at the last position of the block before.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from quire.step import Scores

MOST_BYTES = 64 << 20
# Bytes that an entry takes beside its numbers: five arrays and the objects that hold them.
OVERHEAD = 1024


@dataclass(slots=True, eq=False)
class BlockScores:
    """The scores of one block's tokens, with `num_top` of the likeliest beside each (-1: all).

    `scores` is None until their pass is done; they never come if `lost`, as their row left early.
    """

    num_top: int
    scores: Scores | None = None
    lost: bool = False

    def has(self, num_top: int) -> bool:
        """Whether the entry has, or will have, so many of the likeliest tokens."""
        enough = self.num_top == -1 or 0 <= num_top <= self.num_top
        return enough and not self.lost


class ScoreShelf:
    """Entries by the serial a block was published with; which tokens it holds is not known here."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes, self.num_bytes = most_bytes, 0
        self._entries: OrderedDict[int, BlockScores] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, serial: int, num_top: int) -> BlockScores | None:
        """The entry of a block, if it has or will have enough for `num_top`."""
        entry = self._entries.get(serial)
        if entry is None or not entry.has(num_top):
            return None
        self._entries.move_to_end(serial)
        return entry

    def promise(self, serial: int, num_top: int) -> BlockScores | None:
        """A new entry, to be filled; None if the block has one that is enough."""
        if self.find(serial, num_top) is not None:
            return None
        self.drop(serial)
        entry = self._entries[serial] = BlockScores(num_top)
        return entry

    def fill(self, serial: int, entry: BlockScores, scores: Scores) -> None:
        """Store scores that arrived, as copies: a part of a large array would keep all of it."""
        entry.scores = Scores(*(array.copy() for array in scores.arrays()))
        if self._entries.get(serial) is not entry:
            return  # dropped meanwhile; rows that refer to it can still read it
        self.num_bytes += _size(entry)
        while self.num_bytes > self.most_bytes:
            filled = (b for b, kept in self._entries.items() if kept.scores is not None)
            self.drop(next(filled))

    def lose(self, serial: int, entry: BlockScores) -> None:
        """The scores will not come; rows that relied on them must compute them."""
        entry.lost = True
        if self._entries.get(serial) is entry:
            self.drop(serial)

    def drop(self, serial: int) -> None:
        entry = self._entries.pop(serial, None)
        if entry is not None and entry.scores is not None:
            self.num_bytes -= _size(entry)

    def clear(self) -> None:
        self._entries.clear()
        self.num_bytes = 0


def _size(entry: BlockScores) -> int:
    return OVERHEAD + (entry.scores.nbytes if entry.scores is not None else 0)
