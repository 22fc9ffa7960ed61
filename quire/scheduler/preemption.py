"""Which sequence gives up its row and blocks when the pool is full: never the first admitted.

Nor is a tenant kept waiting by the long answers of another: one row a second changes hands, from
the tenant that has the most to one that waits and has fewer.

A preempted sequence queues again with its tokens, and finds its whole blocks in the cache. An
aborted one does not come back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Many

from quire.cache.groups import most_tokens
from quire.cache.pool import BlockPool
from quire.errors import DoesNotFit, MediumFailed
from quire.scheduler.admission import Admission
from quire.scheduler.beams import Beams
from quire.scheduler.lanes import Lanes
from quire.scheduler.media import MediaPlans
from quire.scheduler.placements import Placements
from quire.scheduler.reports import Reports
from quire.scheduler.sequence import Sequence
from quire.scheduler.waiting import Waiting

PATIENCE = 1.0  # seconds that a tenant waits before one with more rows gives one up for it
MOST_PREEMPTIONS = 3  # after so many, a sequence is preempted only if all others had as many


def does_not_fit(pool: BlockPool, num_tokens: int, width: int = 1) -> DoesNotFit:
    """The error of a row, or of a search of `width` beams, that the whole pool cannot hold."""
    most = max(num_tokens, pool.num_blocks * pool.block_size)
    capacity = most_tokens(pool.windows, pool.block_size, pool.num_blocks, most)
    who = f"each of {width} beams has" if width > 1 else "this row has"
    lower = "beam_width or max_tokens" if width > 1 else "max_tokens"
    return DoesNotFit(
        f"{who} {num_tokens} tokens and wants more, but the whole KV pool holds "
        f"{capacity} ({pool.num_blocks} blocks of {pool.block_size}). Lower "
        f"{lower}, shorten the prompt, or raise kv_cache_memory_bytes."
    )


class Preemption:
    """Takes sequences out of their rows before they end by themselves."""

    def __init__(
        self,
        placements: Placements,
        beams: Beams,
        waiting: Waiting,
        media: MediaPlans,
        reports: Reports,
    ) -> None:
        self.count = 0
        self._looked = 0.0  # when it was looked who has too few rows
        self._placements, self._beams = placements, beams
        self._waiting, self._media, self._reports = waiting, media, reports

    def make_room(self) -> None:
        """Preempt one running sequence, or all the beams of a search; if nothing else runs, the
        pool is too small for it."""
        rows = self._placements.rows
        running = self._first_rows()
        if len(running) == 1:
            num_tokens = int(rows.planned[rows.running].max())
            group = rows.sequence(running[0]).group
            width = 1 if group is None else group.width
            error = does_not_fit(self._placements.pool, num_tokens, width)
            self._reports.fail(self._beams.take_out(running[0]), error)
            return

        def reluctance(place: int) -> tuple[bool, bool, int, int]:
            victim = _lead(rows.sequence(running[place]))
            had_enough = victim.num_preemptions >= MOST_PREEMPTIONS
            return (not victim.request.background, had_enough, -victim.request.priority, -place)

        # Never the first admitted, so that at least one gets to its end.
        self._preempt(running[min(range(1, len(running)), key=reluctance)])

    def make_way(self, lanes: Lanes, admission: Admission, budget: int, now: float) -> None:
        """Take rows and blocks for sequences waiting in the foreground, from the background and
        from tenants that have more rows."""
        first = self._waiting.first_in_foreground
        while first is not None and lanes.can_yield:
            if admission.takes(first, self._waiting.num_foreground, budget):
                return
            self._preempt(self._rows_in_lane(background=True)[-1])
        if self._waiting.has_tenants and now >= self._looked + PATIENCE:
            self._looked = now
            self._share_rows(admission, budget, now - PATIENCE)

    def _share_rows(self, admission: Admission, budget: int, since: float) -> None:
        """Take the latest row of the tenant that has the most for the one that has the fewest of
        those that wait `since` then, unless they have about as many."""
        held: defaultdict[str, list[int]] = defaultdict(list)
        for row in self._rows_in_lane(background=False):
            held[self._placements.rows.sequence(row).request.tenant].append(row)
        waited = [s for s in self._waiting.firsts_in_foreground if s.timings.queued <= since]
        if not (waited and held):
            return
        first = min(waited, key=lambda s: len(held[s.request.tenant]))
        most = max(held.values(), key=len)
        if len(most) < len(held[first.request.tenant]) + 2 or admission.takes(first, 1, budget):
            return
        self._waiting.put_back(self._placements.rows.sequence(most[-1]))
        self._preempt(most[-1])

    def _rows_in_lane(self, *, background: bool) -> list[int]:
        """As `_first_rows`, of one lane."""
        rows = self._placements.rows
        return [row for row in self._first_rows() if rows.background[row] == background]

    def _preempt(self, row: int) -> None:
        victim = self._beams.take_out(row)
        victim.num_preemptions += 1
        self.count += 1
        self._waiting.add(victim, again=True)

    def abort(self, sequences: Many[Sequence]) -> None:
        """End these sequences wherever they are, and with one path of a tree all its paths."""
        rows = self._placements.rows
        gone = {id(s) for s in sequences}
        trees = {id(s.tree) for s in sequences if s.tree is not None}

        def is_gone(one: Sequence) -> bool:
            return id(_lead(one)) in gone or id(one.tree) in trees

        # Any path of a tree may wait; otherwise only the named sequences are looked at.
        for sequence in [s for s in (self._waiting if trees else sequences) if is_gone(s)]:
            sequence.siblings = []
            if sequence.waiting:
                self._waiting.remove(sequence)
        for row in rows.running.tolist():
            here = rows.sequences[row]  # None, once its search was taken out
            if here is not None and is_gone(here):
                here.siblings = []
                self._beams.take_out(row)
        self._reports.forget(is_gone)
        for sequence in sequences:
            sequence.finish_reason = sequence.finish_reason or "abort"

    def fail_holders(self, serial: int, why: str) -> None:
        """An item of media could not be encoded: end all sequences that hold it. Blocks that were
        published with it are not found again."""
        rows = self._placements.rows
        for sequence in [s for s in self._waiting if _holds(s, serial)]:
            self._waiting.remove(sequence)
            self._reports.fail(sequence, _not_encoded(sequence, serial, why))
        for row in rows.running.tolist():
            here = rows.sequences[row]  # None, once its search was taken out
            if here is not None and _holds(here, serial):
                error = _not_encoded(here, serial, why)
                self._reports.fail(self._beams.take_out(row), error)
        self._media.lost(serial)
        self._placements.pool.forget_token(-serial)

    def _first_rows(self) -> list[int]:
        """The first row of each running sequence or search, in order of admission."""
        rows = self._placements.rows
        first: dict[int, int] = {}
        for row in rows.running.tolist():
            first.setdefault(id(_lead(rows.sequence(row))), row)
        return list(first.values())


def _lead(sequence: Sequence) -> Sequence:
    return sequence if sequence.group is None else sequence.group.lead


def _holds(sequence: Sequence, serial: int) -> bool:
    return any(item.serial == serial for item in sequence.request.items)


def _not_encoded(sequence: Sequence, serial: int, why: str) -> MediumFailed:
    """The error of a row; it names the item by its number among those of its kind."""
    items = sequence.request.items
    kind = next(item.kind for item in items if item.serial == serial)
    alike = [item.serial for item in items if item.kind == kind]
    place = f"{kind} {alike.index(serial) + 1} of {len(alike)}" if len(alike) > 1 else f"the {kind}"
    return MediumFailed(
        f"the model could not encode {place} of this prompt; rows without it went on. {why}"
    )
