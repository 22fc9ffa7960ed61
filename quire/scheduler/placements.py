"""Sequences in rows, and rows over blocks: how a placement begins, grows, forks and ends.

A block with more than one holder is never written. Forked sequences share every block of
their common past, the partly filled last one too; the first to write into it takes a fresh
block, and the plan carries the copy. The last holder writes in place.

A group of layers with a window never reads blocks behind it again. Those blocks are given back
when every token that still sees them was computed and is known, so that a row that is preempted,
or whose guesses were wrong, still has all blocks it needs to go on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.cache.pool import BlockPool, Cached
from quire.cache.prefix import Past
from quire.request import Ints
from quire.scheduler.draft import Draft
from quire.scheduler.row_starts import RowStarts
from quire.scheduler.rows import NOT_STALE, Rows, counted_out
from quire.scheduler.sequence import Sequence

ALL_PUBLISHED = np.iinfo(np.int32).max  # as `num_published`: none is published any more


@dataclass(frozen=True, slots=True)
class SavedRow:
    """What a beam that left its row for another beam had there. Its blocks [groups, count] stay
    held, except where they are -1."""

    output_ids: Ints
    blocks: Ints
    num_computed: int
    num_published: int
    past: Past


class Placements:
    """The rows and the pool, changed only together."""

    def __init__(self, pool: BlockPool, rows: Rows) -> None:
        self.pool, self.rows = pool, rows
        self.ended: list[int] = []  # rows that ended since the last plan
        self._row_starts = RowStarts(rows)

    def begin(self, sequence: Sequence, cached: Cached, expected: float, draft: Draft) -> int:
        """Put `sequence` into a row, over the cached blocks that begin it."""
        row = self.enter(sequence, expected, draft)
        self.share_prefix(row, cached, draft)
        sequence.hidden.clear()  # of a placement that ended early
        return row

    def share_prefix(self, row: int, cached: Cached, draft: Draft) -> None:
        """Make published blocks the beginning of the tables of a row that has none."""
        rows = self.rows
        self._share(row, cached.blocks, draft)
        rows.num_published[row] = len(cached)
        if len(cached):
            rows.pasts[row] = cached.past

    def share_unpublished(self, row: int, blocks: Ints, draft: Draft) -> None:
        """Do the same with blocks of another row, which need not be published. The row then
        publishes nothing, because it does not know the serial before its first own block."""
        self._share(row, blocks, draft)
        self.rows.num_published[row] = ALL_PUBLISHED

    def _share(self, row: int, blocks: Ints, draft: Draft) -> None:
        self.pool.share(blocks)
        self._append(row, blocks, draft)
        count = blocks.shape[1]
        self.rows.computed[row] = count * self.pool.block_size
        self.rows.num_shared[row] = count

    def fork(self, lead: int, sibling: Sequence, expected: float, draft: Draft) -> int:
        """Put `sibling` into a row that shares all of the lead's blocks."""
        rows = self.rows
        row = self.enter(sibling, expected, draft)
        blocks = rows.block_ids(lead).copy()
        self.pool.share(blocks)
        self._append(row, blocks, draft)
        rows.computed[row] = rows.computed[lead]
        rows.num_published[row], rows.pasts[row] = rows.num_published[lead], rows.pasts[lead]
        rows.num_shared[row] = blocks.shape[1]
        rows.forked[row] = rows.forked[lead] = True
        sibling.num_cached = rows.sequence(lead).num_cached
        return row

    def copy_from(self, row: int, parent: int) -> None:
        """Let the row go on where `parent` is, over the same blocks; its own are released.

        The device gets its new table when the row is next fed (`resend_table`).
        """
        rows = self.rows
        old, new = rows.block_ids(row).copy(), rows.block_ids(parent).copy()
        length = min(old.shape[1], new.shape[1])
        differs = np.flatnonzero((old[:, :length] != new[:, :length]).any(axis=0))
        same = int(differs[0]) if len(differs) else length
        self.pool.share(new[:, same:])
        self.pool.release(old[:, same:])
        rows.blocks[:, row, same : old.shape[1]] = -1
        rows.blocks[:, row, same : new.shape[1]] = new[:, same:]
        rows.num_blocks[row] = rows.num_shared[row] = new.shape[1]
        rows.given_back[:, row] = rows.given_back[:, parent]
        rows.stale[row] = min(int(rows.stale[row]), same)
        rows.num_published[row], rows.pasts[row] = rows.num_published[parent], rows.pasts[parent]
        rows.copy_progress(row, parent)
        rows.forked[row] = rows.forked[parent] = True

    def vacate(self, row: int) -> None:
        """Release the row's blocks, and park it."""
        rows = self.rows
        if rows.planned[row]:
            self.pool.release(rows.block_ids(row).copy())
            self._clear(row)

    def _clear(self, row: int) -> None:
        """Empty the row's tables and park it; who holds the blocks does not change."""
        self.rows.clear_blocks(row)
        self.rows.stale[row] = 0
        self.rows.park(row)

    def as_saved(self, row: int) -> SavedRow:
        """What a beam in this row would save. The blocks get no new holder here, but may get one
        later, so the row's last block counts as shared from now on."""
        rows = self.rows
        rows.forked[row] = True
        return SavedRow(
            output_ids=rows.output_ids(row),
            blocks=rows.block_ids(row).copy(),
            num_computed=int(rows.computed[row]),
            num_published=int(rows.num_published[row]),
            past=rows.pasts[row],
        )

    def save(self, row: int) -> SavedRow:
        """Take a beam whose tokens are all known out of its row, which is parked; its blocks
        stay held."""
        saved = self.as_saved(row)
        self._clear(row)
        return saved

    def restore(self, row: int, saved: SavedRow) -> None:
        """Let a parked row go on as a saved beam. The device keeps the row, and gets its table and
        its last token when the row is next fed."""
        rows = self.rows
        self._lay(row, saved.blocks)
        rows.num_shared[row] = saved.blocks.shape[1]
        rows.num_published[row], rows.pasts[row] = saved.num_published, saved.past
        rows.forked[row], rows.stale[row] = True, 0
        rows.unpark_as(row, saved.output_ids, saved.num_computed)

    def resend_table(self, at: Ints, draft: Draft) -> None:
        """Send the device the tables of decode rows that changed since the rows were fed."""
        rows = self.rows
        for row in at[rows.stale[at] < rows.num_blocks[at]].tolist():
            first = int(rows.stale[row])
            draft.assign(row, first, rows.block_ids(row)[:, first:].copy())
        rows.stale[at] = NOT_STALE

    def enter(self, sequence: Sequence, expected: float, draft: Draft) -> int:
        """Put `sequence` into a row that has no blocks."""
        row = self.rows.enter(sequence, expected)
        draft.starts.append(self._row_starts.of(row, sequence))
        return row

    def force(self, row: int, tokens: list[int]) -> None:
        """Give the row tokens that were not drawn; the device gets them in the slice for them."""
        self.rows.append_forced(row, tokens)
        if not self.rows.renewed[row]:
            self.rows.renewed[row] = True
            self.ended.append(row)

    def restart(self, row: int, draft: Draft) -> None:
        """Start the row again on the device, which ended it, with its tokens and blocks."""
        self.rows.renewed[row] = False
        draft.starts.append(self._row_starts.of(row, self.rows.sequence(row)))
        draft.assign(row, 0, self.rows.block_ids(row).copy())

    def _append(self, row: int, blocks: Ints, draft: Draft) -> None:
        if blocks.shape[1]:
            draft.assign(row, self._lay(row, blocks), blocks)

    def _lay(self, row: int, blocks: Ints) -> int:
        """Put blocks [groups, count] at the end of a row's tables; the first of them may be -1, for
        blocks that were given back. Returns the place of the first."""
        first = self.rows.append_blocks(row, blocks)
        if self.pool.windowed and not first:
            self.rows.given_back[:, row] = (blocks < 0).sum(axis=1)
        return first

    def grow_to(self, row: int, num_tokens: int, draft: Draft) -> None:
        """Take blocks so that the row has those of its first `num_tokens` tokens."""
        need = -(-num_tokens // self.pool.block_size) - int(self.rows.num_blocks[row])
        if need > 0:
            self._append(row, self.pool.take_columns(need), draft)

    def lacking(self, at: Ints, steps: int | Ints) -> Ints:
        """How many blocks of every group each decode row lacks for its next `steps` tokens."""
        rows = self.rows
        more = np.minimum(steps, rows.limit[at] - rows.planned[at])
        last = rows.computed[at] + more - 1
        need: Ints = np.maximum(last // self.pool.block_size + 1 - rows.num_blocks[at], 0)
        return need

    def grow(self, at: Ints, lacking: Ints, draft: Draft) -> None:
        """Give each decode row the blocks it lacks."""
        at, lacking = at[lacking > 0], lacking[lacking > 0]
        if not len(at):
            return
        rows = self.rows
        # Rows [4 7] that lack [2 1] -> rows [4 4 7], indices [n4 n4+1 n7].
        repeated = np.repeat(at, lacking)
        indices = rows.num_blocks[repeated] + counted_out(lacking)
        blocks = self.pool.take_columns(len(repeated))
        rows.widen_blocks(int(indices.max()) + 1)
        rows.blocks[:, repeated, indices] = blocks
        rows.num_blocks[at] += lacking
        draft.assign_each(repeated, indices, blocks)

    def shared_tails(self, at: Ints) -> npt.NDArray[np.bool_]:
        """Which decode rows would write into a block that others hold too."""
        rows = self.rows
        index = rows.computed[at] // self.pool.block_size
        inside = rows.forked[at] & (index < rows.num_blocks[at])
        # All groups share the block that is written into alike, so one group shows it.
        tails = rows.blocks[0, at, np.where(inside, index, 0)]
        shared: npt.NDArray[np.bool_] = inside & (self.pool.holders[tails] > 1)
        return shared

    def num_shared_tails(self, row: int) -> int:
        """1 if the row is about to write into blocks that others hold too."""
        rows = self.rows
        if not rows.forked[row]:
            return 0
        index = int(rows.computed[row]) // self.pool.block_size
        inside = index < rows.num_blocks[row]
        return int(inside and self.pool.holders[rows.blocks[0, row, index]] > 1)

    def copy_tail(self, row: int, draft: Draft) -> None:
        """Replace the shared blocks that the row is about to write into by copies of its own.

        Asked again here: when the other holders have copies, the last holder needs none.
        """
        rows = self.rows
        index = int(rows.computed[row]) // self.pool.block_size
        old = rows.blocks[:, row, index : index + 1].copy()
        if self.pool.holders[old[0, 0]] == 1:
            return
        new = self.pool.take_columns(1)
        self.pool.release(old)
        rows.blocks[:, row, index] = new[:, 0]
        draft.copies += zip(old[:, 0].tolist(), new[:, 0].tolist(), strict=True)
        draft.assign(row, index, new)

    def publish(self, row: int, token_ids: Ints, num_computed: int) -> None:
        """Let others find the row's blocks that hold nothing but known, computed tokens."""
        rows, size = self.rows, self.pool.block_size
        first, last = int(rows.num_published[row]), num_computed // size
        if not self.pool.caching or first >= last:
            return
        rows.pasts[row] = self.pool.publish(
            rows.blocks[:, row, first:last], rows.pasts[row], token_ids[first * size : last * size]
        )
        rows.num_published[row] = last

    def end(self, row: int) -> Sequence:
        """Take the sequence out of its row: keep its tokens, publish whole blocks, release all."""
        return self.end_all([row])[0]

    def end_all(self, some: list[int]) -> list[Sequence]:
        """Do the same with several rows, in this order."""
        rows, at = self.rows, np.array(some, np.int32)
        sequences = self._bring_home(at)
        tables = rows.blocks[:, at, : rows.num_blocks[at].max(initial=0)]
        self.ended += at[~rows.renewed[at]].tolist()
        rows.leave(at)
        self.pool.release_each(tables)
        return sequences

    def _bring_home(self, at: Ints) -> list[Sequence]:
        """The sequences of rows, with their tokens; their whole blocks are published."""
        rows, size = self.rows, self.pool.block_size
        known, written = rows.known[at], (rows.known - rows.num_prompt)[at]
        # A stop id freezes a row on the device. A plan in flight that was to feed the last token
        # then does not, so only the tokens before it are certainly computed.
        computed = np.minimum(known - (written > 0), rows.computed[at])
        has_more = computed // size > rows.num_published[at]
        columns = (column.tolist() for column in (at, written, computed, has_more))
        sequences = []
        for row, num_outputs, num_computed, publishes in zip(*columns, strict=True):
            sequence = rows.sequence(row)
            sequence.output_ids = rows.outputs[row, :num_outputs].copy()
            if publishes:
                self.publish(row, sequence.token_ids, num_computed)
            sequences.append(sequence)
        return sequences
