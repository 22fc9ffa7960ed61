"""Whether a waiting sequence may begin: rows, blocks now, and blocks later.

Will the pool be large enough, if this one joins? Predicted, not promised.

Every running row grows by a token a step until its expected end, where its own blocks come
back. Memory peaks just before one of these ends, so it is enough to look there. Rows may run
longer than expected: then someone is preempted, and nothing is lost but time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from quire.cache.pool import BlockPool
from quire.request import Ints, Request
from quire.scheduler.rows import Rows
from quire.scheduler.sequence import Sequence


def peak_blocks(
    used: int,
    own: npt.NDArray[np.float64],
    remaining: npt.NDArray[np.float64],
    count: npt.NDArray[np.float64],
    block_size: int,
) -> float:
    """The most blocks that will be in use at once.

    `used` now; `own[i]` blocks return when row i ends, after `remaining[i]` more tokens;
    it stands for `count[i]` rows that grow alike (a prompt and the samples to be forked off).
    block_size 4, used 5, own [2, 3], remaining [4, 12], one each: after 4 steps 5 + 1 + 1 = 7
    blocks, then row 0 returns 2 + 1; after 12 steps row 1 has grown by 3: 5 - 2 + 3 = 6. Peak 7.
    """
    if not len(own):
        return float(used)
    longest_first = np.argsort(-remaining)
    left = remaining[longest_first]
    alive = np.cumsum(count[longest_first])
    returned = own.sum() - np.cumsum(own[longest_first])
    return float(np.max(used + alive * left / block_size - returned))


class Admission:
    """Looks at rows and blocks; changes neither."""

    def __init__(
        self, pool: BlockPool, rows: Rows, expected_output: Callable[[Request], float]
    ) -> None:
        self.pool, self.rows, self._expected_output = pool, rows, expected_output
        self._most = math.inf  # blocks that everyone who runs may come to use; inf: not counted

    def begin(self) -> None:
        """Sequences are about to be admitted one after the other, and nobody leaves meanwhile."""
        self._most = math.inf

    def num_unclaimed_rows(self) -> int:
        """Free rows, less those that prompts in progress will fork into."""
        rows = self.rows
        return rows.num_free - int(rows.num_siblings[rows.running].sum())

    def has_rows(self, sequence: Sequence) -> bool:
        """A free row for it; for a search, one for every beam, or all that there are."""
        group = sequence.group
        return self.num_unclaimed_rows() >= (group.num_rows(self.rows.capacity) if group else 1)

    def cached_blocks(self, sequence: Sequence) -> Ints:
        """Published blocks that begin this sequence, as far as it may read them."""
        most = None
        if sequence.request.params.skip_reading_prefix_cache and not len(sequence.output_ids):
            most = 0
        return self.pool.match(sequence.token_ids, salt=sequence.request.cache_salt, most=most)

    def takes(self, sequence: Sequence, num_rows: int, budget: int) -> bool:
        """Whether this one could begin now, with so many rows free for it and others."""
        self.begin()
        wanted = min(num_rows, self.rows.capacity)
        has_rows = self.has_rows(sequence) and self.num_unclaimed_rows() >= wanted
        return has_rows and self.has_room(sequence, self.cached_blocks(sequence), budget)

    def has_room(self, sequence: Sequence, cached: Ints, budget: int) -> bool:
        """Blocks for the first chunk now, and, if others run, for everyone's growth later."""
        pool, rows, size = self.pool, self.rows, self.pool.block_size
        if sequence.request.whole and sequence.num_tokens > budget:
            return False  # not in this pass: the next one has all of its budget
        woken = pool.num_idle_in(cached)
        left = sequence.num_tokens - len(cached) * size
        first = -(-min(left, budget) // size)
        if not len(rows.running):
            return woken + min(first, 1) <= pool.num_free
        if woken + first > pool.num_free:
            return False
        whole = -(-left // size)
        at = rows.running
        joining = 1.0 + len(sequence.siblings)
        if sequence.group is not None:
            joining = float(sequence.group.width)
            # Beams that come back have outputs to compute, beside those of the first.
            whole += len(sequence.output_ids) * (sequence.group.num_beams - 1) // size
        at_most = joining * (whole - (-sequence.request.max_tokens // size) + 2) + woken
        if self._is_plenty(at_most):
            return True
        self._most = math.inf  # whoever joins now is not in it
        counts = np.append(1.0 + rows.num_siblings[at], joining)
        expected = self._expected_output(sequence.request) - len(sequence.output_ids)
        remaining = np.append(rows.remaining(at), max(expected, 1))
        own = np.append(rows.num_blocks[at] - rows.num_shared[at], whole).astype(np.float64)
        prompts = rows.planned[at] - rows.num_blocks[at] * size
        unfilled = int(np.maximum(-(-prompts // size), 0).sum())
        used = pool.num_used + woken + whole + unfilled
        return peak_blocks(used, own, remaining, counts, size) <= pool.num_blocks

    def _is_plenty(self, joining: float) -> bool:
        """Whether the pool holds everyone at full length and `joining` blocks more: then nobody
        need ask when who ends, which takes five times as long. Counts them in if so."""
        if self._most + joining > self.pool.num_blocks:
            self._most = self._most_blocks()
        if self._most + joining > self.pool.num_blocks:
            return False
        self._most += joining
        return True

    def _most_blocks(self) -> float:
        """What those who run use at full length, two blocks to spare for each."""
        rows, at = self.rows, self.rows.running
        counts = 1 + rows.num_siblings[at].astype(np.int64)
        growth = np.maximum(rows.limit[at] - rows.num_blocks[at] * self.pool.block_size, 0) * counts
        grown = int(growth.sum()) / self.pool.block_size
        return self.pool.num_used + grown + 2 * int(counts.sum()) + 2
