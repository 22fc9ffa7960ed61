"""Blocks of KV as ids with a count of holders. The bytes are the executor's.

A block holds the KV of `block_size` tokens for one group of layers. Every group's blocks are of
one size and come from one pool, so whatever one group gives back any other can take.

A block is held (by one sequence or several), or free. Free = never used, or published with no
holder: such a block can still be found and shared again until it is taken for new tokens. The
block that was released longest ago is taken first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from quire.cache.groups import ONE_GROUP, STATE_WINDOW, Windows, window_groups
from quire.cache.prefix import Found, Past, PrefixIndex
from quire.cache.scores import ScoreShelf
from quire.request import Ints


class OutOfBlocks(Exception):
    """More blocks were asked for than are free; check `num_free` first."""


class Cached(msgspec.Struct, frozen=True, gc=False):
    """Published blocks that begin some tokens: blocks [groups, count], -1 where a group needs
    none because its window is past it; `past` is the serial of the last."""

    blocks: Ints
    past: Past = ""

    def __len__(self) -> int:
        return int(self.blocks.shape[1])


class BlockPool:
    """Takes, shares, publishes and releases blocks; never copies or moves one."""

    def __init__(
        self,
        num_blocks: int,
        *,
        block_size: int,
        caching: bool = True,
        windows: Windows = ONE_GROUP,
    ) -> None:
        """`windows` of the groups of layers, as in groups.py."""
        self.num_blocks, self.block_size, self.caching = num_blocks, block_size, caching
        self.windows, self.num_groups = windows, len(windows)
        self.num_full = windows.count(None)
        self.windowed = window_groups(windows)
        self._holders = np.zeros(num_blocks, np.int32)
        self._place = np.empty(num_blocks, np.int32)  # of some blocks in an array, for a moment
        # The array last passed to `share` (None after a release), its blocks without the -1, and
        # how often it was shared and not counted yet: rows with one prefix come one after another.
        self._shared: Ints | None = None
        self._shared_blocks = np.empty(0, np.int32)
        self._times_shared = 0
        self.peak_used = 0
        # The first `_num_empty` hold nothing. Taken from the end: low ids first.
        self._empty, self._num_empty = np.arange(num_blocks)[::-1].copy(), num_blocks
        self._idle: OrderedDict[int, None] = OrderedDict()  # published, no holder, oldest first
        self._index = PrefixIndex(num_blocks, windows)
        # A device computes all rows of a plan side by side. Keys and values are stored before any
        # row reads them, but a state is there only when its row has computed all tokens before it:
        # another row can begin with it in the next plan.
        self._keeps_states = STATE_WINDOW in windows
        self._of_this_plan: set[Past] = set()  # serials of nodes that were published in it
        self.scores = ScoreShelf()  # of the tokens in published blocks, by their nodes' serials

    def begin_plan(self) -> None:
        """Called before each plan is made."""
        self._of_this_plan.clear()

    def fresh(self) -> BlockPool:
        """An empty pool with the same settings."""
        return BlockPool(
            self.num_blocks,
            block_size=self.block_size,
            caching=self.caching,
            windows=self.windows,
        )

    @property
    def holders(self) -> Ints:
        """The number of holders of each block."""
        if self._times_shared:
            self._holders[self._shared_blocks] += self._times_shared
            self._times_shared = 0
        return self._holders

    @property
    def num_free(self) -> int:
        return self._num_empty + len(self._idle)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def take(self, count: int) -> Ints:
        """`count` blocks, each with one holder. Evicts published blocks without holders for it."""
        if count > self.num_free:
            raise OutOfBlocks(f"{count} blocks asked for, {self.num_free} free")
        while self._num_empty < count:
            block, _ = self._idle.popitem(last=False)
            self._lose(self._index.forget(block))
            self._add_empty([block])
        self._num_empty -= count
        taken = self._empty[self._num_empty : self._num_empty + count][::-1]
        self._holders[taken] = 1
        self.peak_used = max(self.peak_used, self.num_used)
        return taken.astype(np.int32)

    def fits(self, count: int) -> bool:
        """Whether so many blocks are free for every group."""
        return count * self.num_groups <= self.num_free

    def take_columns(self, count: int) -> Ints:
        """`count` blocks for every group: [groups, count]."""
        return self.take(count * self.num_groups).reshape(self.num_groups, count)

    def _add_empty(self, blocks: Ints | list[int]) -> None:
        before, self._num_empty = self._num_empty, self._num_empty + len(blocks)
        self._empty[before : self._num_empty] = blocks

    def forget_token(self, token_id: int) -> None:
        """Published blocks that contain this token are not found again; their holders keep
        them."""
        self._lose(self._index.forget_token(token_id))

    def _lose(self, nodes: Sequence[tuple[int, list[int]]]) -> None:
        for serial, blocks in nodes:
            self.scores.drop(serial)
            for other in blocks:
                if other in self._idle:  # it can no longer be found
                    del self._idle[other]
                    self._add_empty([other])

    def share(self, blocks: Ints) -> None:
        """One more holder for each of `blocks`; -1 is none."""
        if not blocks.size:  # most prompts have no cached blocks
            return
        if blocks is not self._shared:
            holders, real = self.holders, self._real(blocks)
            if self._idle:
                for block in real[holders[real] == 0].tolist():
                    del self._idle[block]
                self.peak_used = max(self.peak_used, self.num_used)
            self._shared, self._shared_blocks = blocks, real
        self._times_shared += 1

    def release(self, blocks: Ints) -> None:
        """One holder fewer for each of `blocks` [count] or [groups, count], given in the order of
        their tokens; -1 is none."""
        self._release(self._real(blocks.ravel(order="F")), 1)

    def release_all(self, blocks: Ints) -> None:
        """`release` for several rows at once, which may have the same blocks."""
        self._release(*np.unique(blocks, return_counts=True))

    def release_each(self, tables: Ints) -> None:
        """`release` for the tables of several rows [groups, rows, count], one after another."""
        # Row by row, each from its end: what is left is then still a prefix, which others can use.
        held = tables.transpose(1, 2, 0)[:, ::-1, ::-1].reshape(-1)
        held = held[held >= 0]
        times = np.bincount(held)
        self.holders[: len(times)] -= times.astype(np.int32)
        self._shared = None
        free = held[self._holders[held] == 0]
        # A shared block comes with the last row that has it: of equal indices the last one counts.
        place = np.arange(len(free), dtype=np.int32)
        self._place[free] = place
        self._let_go(free[self._place[free] == place])

    def _release(self, blocks: Ints, times: int | npt.NDArray[np.intp]) -> None:
        left = (self.holders[blocks] - times).astype(np.int32)
        self._holders[blocks], self._shared = left, None
        self._let_go(blocks[left == 0][::-1])

    def _let_go(self, blocks: Ints) -> None:
        """Blocks lost their last holder, in this order."""
        published = self._index.holds(blocks)
        for block in blocks[published].tolist():  # many times faster than `update`
            self._idle[block] = None
        self._add_empty(blocks[~published])

    def match(self, token_ids: Ints, *, salt: str = "", most: int | None = None) -> Cached:
        """The published blocks that begin these tokens, at most `most`. Shares nothing.

        Never covers the last token: the model needs one to compute a distribution from.
        """
        found = self._find(token_ids, salt, most)
        blocks, count = found.blocks, len(found.serials)
        if self._of_this_plan:
            serials = enumerate(found.serials.tolist())
            count = next((i for i, serial in serials if serial in self._of_this_plan), count)
        if self.windowed:
            count = self._index.longest_hit(blocks[:, :count], self.block_size)
            blocks = blocks[:, :count].copy()
        for groups in self.windowed:
            unseen = groups.first_seen(count, self.block_size)
            blocks[groups.first : groups.last, :unseen] = -1
        return Cached(blocks, found.serials.item(count - 1) if count else salt)

    def covers(self, given_back: Ints, count: int) -> bool:
        """Whether a row that gave back given_back[g] blocks of each group g still has all blocks
        that the token after its first `count` blocks sees."""
        return all(
            given_back[groups.first] <= groups.first_seen(count, self.block_size)
            for groups in self.windowed
        )

    def serials(self, token_ids: Ints, *, salt: str = "", most: int | None = None) -> list[int]:
        """The serials of the published blocks that begin these tokens, even where a group lacks a
        block that a hit would need."""
        return [*map(int, self._find(token_ids, salt, most).serials)]

    def _find(self, token_ids: Ints, salt: str, most: int | None) -> Found:
        whole = (len(token_ids) - 1) // self.block_size if self.caching else 0
        return self._index.find(
            token_ids.tobytes(),
            salt,
            block_bytes=4 * self.block_size,
            most=whole if most is None else min(whole, most),
        )

    def num_idle_in(self, cached: Cached) -> int:
        """How many of these blocks are free now, and would not be if they were shared."""
        if not self._idle or not len(cached) or cached.blocks is self._shared:
            return 0
        return int(np.count_nonzero(self.holders[self._real(cached.blocks)] == 0))

    def _real(self, blocks: Ints) -> Ints:
        """The blocks that are not -1. Only groups with a window have any -1."""
        return blocks[blocks >= 0] if self.windowed else blocks

    def publish(self, blocks: Ints, past: Past, token_ids: Ints) -> Past:
        """Let others find `blocks` [groups, count], which hold `token_ids` after `past`; see
        PrefixIndex."""
        last = self._index.publish(blocks, past, token_ids.tobytes())
        if self._keeps_states:
            self._of_this_plan |= self._index.serials_behind(past, last)
        return last

    def forget_cache(self) -> bool:
        """Forget all published content. False, and nothing done, while a block is held."""
        if self.num_used:
            return False
        self._index = PrefixIndex(self.num_blocks, self.windows)
        self.scores.clear()
        self._add_empty([*self._idle])
        self._idle.clear()
        return True
