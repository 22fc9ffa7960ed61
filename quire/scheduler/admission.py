"""Whether a waiting sequence may begin: rows, blocks now, and blocks later.

Whether the pool will be large enough if the sequence joins is estimated, not guaranteed.

Every running row grows by a token a step until its expected end, when its own blocks are released.
Use peaks just before such an end, so only those moments are looked at. If rows run longer than
expected, one is preempted, which costs only time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from quire.cache.pool import BlockPool, Cached
from quire.request import Request
from quire.scheduler.rows import Rows
from quire.scheduler.sequence import Sequence

Blocks = npt.NDArray[Any]  # numbers of blocks, whole or expected, one for each row


def peak_blocks(
    used: int,
    own: npt.NDArray[np.float64],
    remaining: npt.NDArray[np.float64],
    count: npt.NDArray[np.float64],
    block_size: int,
    *,
    num_full: int = 1,
    rooms: Many[tuple[int, npt.NDArray[np.float64]]] = (),
) -> float:
    """The most blocks that will be in use at once.

    `used` now. Row i ends after `remaining[i]` more tokens, and then returns `own[i]` blocks; it
    stands for `count[i]` rows that grow alike (a prompt and the samples to be forked off).
    block_size 4, used 5, own [2, 3], remaining [4, 12], one each: after 4 steps 5 + 1 + 1 = 7
    blocks, then row 0 returns 2 + 1; after 12 steps row 1 has grown by 3: 5 - 2 + 3 = 6. Peak 7.

    Rows grow so in `num_full` groups of layers. In the other groups, given by `rooms` as (number of
    groups, tokens left in each row's window), a row stops growing when its window is full.
    """
    if not len(own):
        return float(used)
    longest_first = np.argsort(-remaining)
    left = remaining[longest_first]
    alive = np.cumsum(count[longest_first])
    returned = own.sum() - np.cumsum(own[longest_first])
    grown = num_full * alive * left
    for num_groups, room in rooms:
        # An upper bound: growth is limited by the sum of the rows' rooms, not row by row.
        grown += num_groups * np.minimum(alive * left, np.cumsum((count * room)[longest_first]))
    return float(np.max(used + grown / block_size - returned))


class _Joining(msgspec.Struct, frozen=True, gc=False):
    """A sequence that wants to begin, in `count` rows. Its known tokens need `whole` more blocks
    of one group; of each kind of window it takes at most `rooms` blocks."""

    count: float
    whole: int
    rooms: list[Blocks]


class Admission:
    """Looks at rows and blocks; changes neither."""

    def __init__(
        self, pool: BlockPool, rows: Rows, expected_output: Callable[[Request], float]
    ) -> None:
        self.pool, self.rows, self._expected_output = pool, rows, expected_output
        self._most = math.inf  # blocks that all running rows may come to use; inf: not counted

    def begin(self) -> None:
        """Called before sequences are admitted one after another, while no row ends."""
        self._most = math.inf

    def num_unclaimed_rows(self) -> int:
        """Free rows, less those that prompts in progress will fork into."""
        return self.rows.num_free - self.rows.num_claimed

    def has_rows(self, sequence: Sequence) -> bool:
        """Whether a row is free; a beam search needs one for every beam, or all that there are."""
        group = sequence.group
        return self.num_unclaimed_rows() >= (group.num_rows(self.rows.capacity) if group else 1)

    def cached_blocks(self, sequence: Sequence, most: int | None = None) -> Cached:
        """Published blocks that begin this sequence, as far as it may read them."""
        if sequence.request.params.skip_reading_prefix_cache and not len(sequence.output_ids):
            most = 0
        return self.pool.match(sequence.token_ids, salt=sequence.request.cache_salt, most=most)

    def takes(self, sequence: Sequence, num_rows: int, budget: int) -> bool:
        """Whether the sequence could begin now, with `num_rows` rows free for it and others."""
        self.begin()
        wanted = min(num_rows, self.rows.capacity)
        has_rows = self.has_rows(sequence) and self.num_unclaimed_rows() >= wanted
        return has_rows and self.has_room(sequence, self.cached_blocks(sequence), budget)

    def has_room(self, sequence: Sequence, cached: Cached, budget: int) -> bool:
        """Whether there are blocks for the first chunk, and, if others run, for all rows later."""
        pool, size = self.pool, self.pool.block_size
        if sequence.request.whole and sequence.num_tokens > budget:
            return False  # not in this pass: the next one has all of its budget
        woken = pool.num_idle_in(cached)
        left = sequence.num_tokens - len(cached) * size
        first = -(-min(left, budget) // size)
        if not len(self.rows.running):
            return woken + min(first, 1) * pool.num_groups <= pool.num_free
        if woken + first * pool.num_groups > pool.num_free:
            return False
        return self._will_last(sequence, self._joining(sequence, cached, -(-left // size)), woken)

    def _joining(self, sequence: Sequence, cached: Cached, whole: int) -> _Joining:
        count = 1.0 + len(sequence.siblings)
        if sequence.group is not None:
            count = float(sequence.group.width)
            # After a preemption the other beams, too, have outputs to compute again.
            outputs = len(sequence.output_ids) * (sequence.group.num_beams - 1)
            whole += outputs // self.pool.block_size
        held = [(cached.blocks[kind.first] >= 0).sum() for kind in self.pool.windowed]
        return _Joining(count, whole, self._rooms(held))

    def _will_last(self, sequence: Sequence, joining: _Joining, woken: int) -> bool:
        """Whether the blocks are expected to last until every row has ended."""
        longest = joining.whole - (-sequence.request.max_tokens // self.pool.block_size) + 2
        if self._is_plenty(joining.count * float(self._in_all(longest, joining.rooms)) + woken):
            return True
        self._most = math.inf  # it does not count the sequence that joins now
        expected = self._expected_output(sequence.request) - len(sequence.output_ids)
        return self._peak_with(joining, max(expected, 1.0), woken) <= self.pool.num_blocks

    def _peak_with(self, joining: _Joining, expected: float, woken: int) -> float:
        """The most blocks in use until every row has ended, if the sequence joins."""
        rows, pool, size = self.rows, self.pool, self.pool.block_size
        at = rows.running
        have, shared = rows.num_blocks[at], rows.num_shared[at]
        rooms = self._rooms([have - rows.given_back[k.first, at] for k in pool.windowed])
        unfilled = np.maximum(-(-(rows.planned[at] - have * size) // size), 0)
        own = pool.num_full * (have - shared)
        for kind in pool.windowed:
            given_back = rows.given_back[kind.first, at]
            own = own + kind.count * (have - np.maximum(shared, given_back))
        mine = self._in_all(joining.whole, joining.rooms)
        left = [
            (
                kind.count,
                size * np.append(_beyond(room, unfilled), _beyond(own_room, joining.whole)),
            )
            for kind, room, own_room in zip(pool.windowed, rooms, joining.rooms, strict=True)
        ]
        return peak_blocks(
            pool.num_used + woken + int(mine) + int(self._in_all(unfilled, rooms).sum()),
            np.append(own, mine).astype(np.float64),
            np.append(rows.remaining(at), expected),
            np.append(1.0 + rows.num_siblings[at], joining.count),
            size,
            num_full=pool.num_full,
            rooms=left,
        )

    def _rooms(self, held: Many[Blocks]) -> list[Blocks]:
        """For each kind of window: how many more blocks rows that hold `held` can take before
        their window is full, and one more for the tokens that are being computed."""
        pool = self.pool
        return [
            np.maximum(kind.most_held(pool.block_size) + 1 - blocks, 0)
            for kind, blocks in zip(pool.windowed, held, strict=True)
        ]

    def _in_all(self, blocks: Blocks | int, rooms: Many[Blocks]) -> Any:
        """Blocks in all groups together if each row takes `blocks` more of each group, and no
        more than its room in groups with a window."""
        total: Any = self.pool.num_full * blocks
        for kind, room in zip(self.pool.windowed, rooms, strict=True):
            total = total + kind.count * np.minimum(blocks, room)
        return total

    def _is_plenty(self, joining: float) -> bool:
        """Whether the pool holds all rows at full length and `joining` blocks more; if so, they are
        counted in. The peak, which takes five times as long to find, is then not needed."""
        if self._most + joining > self.pool.num_blocks:
            self._most = self._most_blocks()
        if self._most + joining > self.pool.num_blocks:
            return False
        self._most += joining
        return True

    def _most_blocks(self) -> float:
        """Blocks that the running rows use at full length, with two to spare for each."""
        rows, pool, at = self.rows, self.pool, self.rows.running
        have = rows.num_blocks[at]
        counts = 1 + rows.num_siblings[at].astype(np.int64)
        growth = np.maximum(rows.limit[at] - have * pool.block_size, 0) / pool.block_size
        rooms = self._rooms([have - rows.given_back[k.first, at] for k in pool.windowed])
        grown = float((self._in_all(growth, rooms) * counts).sum())
        return pool.num_used + grown + pool.num_groups * (2 * int(counts.sum()) + 2)


def _beyond(room: Blocks, taken: Blocks | int) -> Blocks:
    """What is left of `room`."""
    left: Blocks = np.maximum(room - taken, 0)
    return left
