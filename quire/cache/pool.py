"""Blocks of KV as ids with a count of holders. The bytes are the executor's.

A block is held (by one sequence or several), or free. Free = never used, or published with no
holder: such a block can still be found and shared again until someone takes it for new tokens,
the longest unused first.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from quire.cache.prefix import Past, PrefixIndex
from quire.cache.scores import ScoreShelf
from quire.request import Ints


class OutOfBlocks(Exception):
    """More blocks were asked for than are free; ask `num_free` first."""


class BlockPool:
    """Takes, shares, publishes and releases blocks; never copies or moves one."""

    def __init__(self, num_blocks: int, *, block_size: int, caching: bool = True) -> None:
        self.num_blocks, self.block_size, self.caching = num_blocks, block_size, caching
        self.holders = np.zeros(num_blocks, np.int32)
        self.peak_used = 0
        self._empty = list(range(num_blocks - 1, -1, -1))  # popped from the end: low ids first
        self._idle: OrderedDict[int, None] = OrderedDict()  # published, no holder, oldest first
        self._index = PrefixIndex()
        self.scores = ScoreShelf()  # of the tokens in published blocks

    @property
    def num_free(self) -> int:
        return len(self._empty) + len(self._idle)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def take(self, count: int) -> Ints:
        """`count` blocks, each with one holder. Content that nobody holds is evicted for it."""
        if count > self.num_free:
            raise OutOfBlocks(f"{count} blocks asked for, {self.num_free} free")
        while len(self._empty) < count:
            block, _ = self._idle.popitem(last=False)
            self._index.forget(block)
            self.scores.drop(block)
            self._empty.append(block)
        taken = np.array(self._empty[len(self._empty) - count :][::-1], np.int32)
        del self._empty[len(self._empty) - count :]
        self.holders[taken] = 1
        self.peak_used = max(self.peak_used, self.num_used)
        return taken

    def share(self, blocks: Ints) -> None:
        """One more holder for each of `blocks`."""
        for block in blocks[self.holders[blocks] == 0].tolist():
            del self._idle[block]
        self.holders[blocks] += 1
        self.peak_used = max(self.peak_used, self.num_used)

    def release(self, blocks: Ints) -> None:
        """One holder fewer for each of `blocks`, given in the order of their tokens."""
        self.holders[blocks] -= 1
        # The end of a sequence goes first into the queue for eviction: what is left of it then
        # still begins at its beginning, where others can use it.
        for block in blocks[self.holders[blocks] == 0][::-1].tolist():
            if block in self._index:
                self._idle[block] = None
            else:
                self._empty.append(block)

    def match(self, token_ids: Ints, *, salt: str = "", most: int | None = None) -> Ints:
        """The published blocks that begin these tokens, at most `most`. Shares nothing.

        Never covers the last token: the model needs one to compute a distribution from.
        """
        whole = (len(token_ids) - 1) // self.block_size
        if not self.caching or not self._index:
            return np.empty(0, np.int32)
        found = self._index.match(
            token_ids.tobytes(),
            salt,
            block_bytes=4 * self.block_size,
            most=whole if most is None else min(whole, most),
        )
        return np.array(found, np.int32)

    def num_idle_in(self, blocks: Ints) -> int:
        """How many of `blocks` sharing would take out of the free ones."""
        return int((self.holders[blocks] == 0).sum())

    def serial(self, block: int) -> Past:
        return self._index.serial(block)

    def publish(self, blocks: Ints, past: Past, token_ids: Ints) -> Past:
        """Let others find `blocks`, which hold `token_ids` after `past`; see PrefixIndex."""
        return self._index.publish(blocks.tolist(), past, token_ids.tobytes())

    def forget_cache(self) -> bool:
        """Forget all published content. False, and nothing done, while a block is held."""
        if self.num_used:
            return False
        self._index = PrefixIndex()
        self.scores.clear()
        self._empty.extend(self._idle)
        self._idle.clear()
        return True
