"""Who gives up its row and blocks when the pool runs out: never the first admitted.

A preempted sequence queues again with its tokens, and finds its whole blocks in the cache.
"""

from __future__ import annotations

from quire.cache.pool import BlockPool
from quire.errors import DoesNotFit
from quire.scheduler.beams import Beams
from quire.scheduler.landing import Landing
from quire.scheduler.stays import Stays
from quire.scheduler.waiting import Waiting
from quire.sequence import Sequence

MOST_PREEMPTIONS = 3  # after so many, a sequence is left in peace while others run


def does_not_fit(pool: BlockPool, num_tokens: int, width: int = 1) -> DoesNotFit:
    """The error of a row, or of a search with so many beams, that the whole pool cannot hold."""
    capacity = pool.num_blocks * pool.block_size
    who = f"each of {width} beams has" if width > 1 else "this row has"
    lower = "beam_width or max_tokens" if width > 1 else "max_tokens"
    return DoesNotFit(
        f"{who} {num_tokens} tokens and wants more, but the whole KV pool holds "
        f"{capacity} ({pool.num_blocks} blocks of {pool.block_size}). Lower "
        f"{lower}, shorten the prompt, or raise kv_cache_memory_bytes."
    )


class Preemption:
    """Takes running sequences out of their rows."""

    def __init__(self, stays: Stays, beams: Beams, waiting: Waiting, landing: Landing) -> None:
        self.count = 0
        self._stays, self._beams = stays, beams
        self._waiting, self._landing = waiting, landing

    def make_room(self) -> None:
        """Preempt one running sequence, or all the beams of a search; if nobody else runs, the
        pool is too small for it."""
        rows = self._stays.rows
        running = self._first_rows()
        if len(running) == 1:
            num_tokens = int(rows.planned[rows.running].max())
            group = rows.sequence(running[0]).group
            width = len(rows.running) if group is None else group.width
            error = does_not_fit(self._stays.pool, num_tokens, width)
            self._landing.fail(self._beams.take_out(running[0]), error)
            return

        def reluctance(place: int) -> tuple[bool, int, int]:
            victim = _lead(rows.sequence(running[place]))
            tired = victim.num_preemptions >= MOST_PREEMPTIONS
            return (tired, -victim.request.priority, -place)

        # Never the first admitted: someone must get to the end.
        victim = self._beams.take_out(running[min(range(1, len(running)), key=reluctance)])
        victim.num_preemptions += 1
        self.count += 1
        self._waiting.add(victim, again=True)

    def _first_rows(self) -> list[int]:
        """One row for everyone who runs, in order of admission: of a group the first."""
        rows = self._stays.rows
        first: dict[int, int] = {}
        for row in rows.running.tolist():
            first.setdefault(id(_lead(rows.sequence(row))), row)
        return list(first.values())


def _lead(sequence: Sequence) -> Sequence:
    return sequence if sequence.group is None else sequence.group.lead
