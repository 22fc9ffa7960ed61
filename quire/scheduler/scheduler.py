"""Decides the next step, and digests what came back.

One rule: let `computed` catch up with `planned`, within a budget of tokens. Prefill, chunked
prefill, prefix hits, decode and resuming after preemption are all that sentence. Plain data in
and out; knows neither torch nor text.

Plans run in the order they are made. So blocks may be freed and prompt blocks published while
planning: whoever takes or finds them comes later. Results may come home after their row went
to someone else (its sequence ended, or was preempted): the number of the stay tells, and they
are dropped. A preempted sequence draws the dropped tokens again, from the same noise.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.cache.pool import BlockPool
from quire.errors import DoesNotFit, InvalidLogits, QuireError
from quire.request import Ints, Request
from quire.scheduler.admission import Admission
from quire.scheduler.groups import prefix_groups
from quire.scheduler.rows import Rows
from quire.scheduler.stays import Draft, Stays
from quire.scheduler.stopping import ending, judge, num_kept
from quire.scheduler.waiting import Waiting
from quire.sequence import Guide, Sequence
from quire.step import DecodeRows, Masks, PrefixGroup, Slice, StepPlan, StepResult

MOST_PREEMPTIONS = 3  # after so many, a sequence is left in peace while others run
MOST_WASTE = 0.02  # of the tokens of a plan that repeats


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one step may take, and how long one may wait."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_repeat: int = 1
    max_wait: float = 60.0
    prefix_groups: bool = True


@dataclass(frozen=True, slots=True)
class _Flight:
    """A plan on its way, and whose stays its results belong to."""

    plan: StepPlan
    rows: Ints
    stays: npt.NDArray[np.int64]
    slice_stays: tuple[int, ...]


MakeMasks = Callable[[Ints, Many[Guide]], Masks]


def _failure(sequence: Sequence) -> tuple[Sequence, QuireError]:
    """Why a row could draw no token: its grammar's reason, or bad logits."""
    if sequence.guide is not None and sequence.guide.error is not None:
        return sequence, sequence.guide.error
    return sequence, InvalidLogits(
        "the model gave NaN or infinite logits for this row, or its constraints left no token, "
        "so none could be drawn; the other rows went on. Loosen the constraints, try "
        "dtype='float32', or check the weights."
    )


class Scheduler:
    """Owns every Sequence from `add` to its end."""

    def __init__(
        self,
        pool: BlockPool,
        limits: Limits,
        *,
        expected_output: Callable[[Request], float] = lambda request: request.max_tokens,
        make_masks: MakeMasks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`make_masks` begins to fill the masks of rows that follow a grammar."""
        self.pool, self.limits = pool, limits
        self.rows = Rows(min(limits.max_num_seqs, limits.max_num_batched_tokens))
        self.waiting = Waiting()
        self.num_preemptions = 0
        self._stays = Stays(pool, self.rows)
        self._admission = Admission(pool, self.rows, expected_output)
        self._expected_output, self._clock = expected_output, clock
        self._make_masks = make_masks
        self._flights: deque[_Flight] = deque()
        self._ended: list[Sequence] = []  # while planning; handed over at the next commit
        self._service_times: deque[float] = deque(maxlen=101)
        self._groups: tuple[bytes, tuple[PrefixGroup, ...]] = (b"", ())

    def fresh(self) -> Scheduler:
        """One like this, with nothing in it."""
        pool = BlockPool(
            self.pool.num_blocks, block_size=self.pool.block_size, caching=self.pool.caching
        )
        return Scheduler(
            pool,
            self.limits,
            expected_output=self._expected_output,
            make_masks=self._make_masks,
            clock=self._clock,
        )

    @property
    def num_running(self) -> int:
        return len(self.rows.running)

    @property
    def num_unfinished(self) -> int:
        return self.num_running + len(self.waiting) + len(self._ended)

    def add(self, samples: Many[Sequence]) -> None:
        """Queue the samples of one request: the first is computed, the others fork off it."""
        now = self._clock()
        for sequence in samples:
            sequence.timings.queued = now
        samples[0].siblings = list(samples[1:])
        self.waiting.add(samples[0])

    def abort(self, sequences: Many[Sequence]) -> None:
        """End these now, wherever they are; the caller knows, so nothing is handed over."""
        for sequence in sequences:
            sequence.siblings = []
            if sequence.waiting:
                self.waiting.remove(sequence)
        gone = {id(s) for s in sequences}
        for row in self.rows.running.tolist():
            if id(self.rows.sequence(row)) in gone:
                self._stays.end(row)
        self._ended = [s for s in self._ended if id(s) not in gone]
        for sequence in sequences:
            sequence.finish_reason = sequence.finish_reason or "abort"

    def schedule(self) -> StepPlan | None:
        """The next plan, or None if nothing can be done before a result comes back."""
        while True:
            draft = Draft(self.limits.max_num_batched_tokens)
            before = self.num_preemptions
            decode = self._plan_decode(draft)
            self._plan_prefill(draft)
            if self.num_preemptions == before:
                self._admit(draft)
            if len(decode) or draft.prefill:
                return self._take_off(draft, decode)
            if self._flights or not self.num_running:
                return None
            # Prompts only, none with room for its next chunk.
            self._make_room()

    def _take_off(self, draft: Draft, decode: DecodeRows) -> StepPlan:
        """Close the draft; count what it will have done, and whose results it will bring."""
        rows, at = self.rows, decode.rows
        repeat = 1 if draft.prefill else self._plan_repeat(at, draft)
        plan = StepPlan(
            starts=tuple(draft.starts),
            ends=np.array(self._stays.ended, np.int32),
            assigned=draft.assigned(),
            copies=tuple(draft.copies),
            prefill=tuple(draft.prefill),
            decode=decode,
            groups=self._prefix_groups(at),
            masks=self._masks(draft, at),
            repeat=repeat,
        )
        self._stays.ended.clear()
        steps = np.minimum(repeat, rows.limit[at] - rows.planned[at])
        rows.computed[at] += steps
        rows.planned[at] += steps
        sampled = plan.sampled_rows()
        slice_stays = tuple(int(rows.stay[s.row]) for s in plan.prefill)
        self._flights.append(_Flight(plan, sampled, rows.stay[sampled], slice_stays))
        return plan

    def _plan_decode(self, draft: Draft) -> DecodeRows:
        """Every row whose last token is on the device feeds it; its KV gets a place first."""
        rows, stays = self.rows, self._stays
        while True:
            running = rows.running
            at = running[rows.drawn[running] & (rows.planned[running] < rows.limit[running])]
            # What a grammar allows is known only when the last token is.
            at = at[~rows.guided[at] | (rows.known[at] == rows.planned[at])]
            lacking, shared = stays.lacking(at, 1), stays.shared_tails(at)
            if int(lacking.sum()) + int(shared.sum()) <= self.pool.num_free:
                break
            self._make_room()
        stays.grow(at, lacking, draft)
        for row in at[shared].tolist():
            stays.copy_tail(row, draft)
        rows.forked[at] = False
        draft.budget -= len(at)
        return DecodeRows(at, rows.computed[at])

    def _plan_repeat(self, at: Ints, draft: Draft) -> int:
        """How many decode steps to ask for at once: as many as waste little, and have room."""
        rows, repeat = self.rows, self.limits.max_repeat
        if repeat == 1 or bool(rows.stepwise[at].any()):
            return 1
        left = rows.limit[at] - rows.planned[at]
        # Whoever stops by a token wastes half a plan on average, once in its life.
        may_stop = rows.stop_ids[at, 0] >= 0
        life = np.maximum(rows.expected[at] - rows.num_prompt[at], 1)
        while repeat > 1:
            idle = np.maximum(repeat - left, 0) + np.where(may_stop, repeat * repeat / 2 / life, 0)
            lacking = self._stays.lacking(at, repeat)
            if idle.sum() <= MOST_WASTE * repeat * len(at) and lacking.sum() <= self.pool.num_free:
                self._stays.grow(at, lacking, draft)
                return repeat
            repeat //= 2
        return 1

    def _prefix_groups(self, at: Ints) -> tuple[PrefixGroup, ...]:
        if not self.limits.prefix_groups or not len(at):
            return ()
        key = self.rows.stay[at].tobytes()
        if self._groups[0] != key:
            self._groups = key, prefix_groups(self.rows, at, self.pool.block_size)
        return self._groups[1]

    def _masks(self, draft: Draft, at: Ints) -> Masks | None:
        """The masks of all rows that draw in this plan and follow a grammar."""
        drawing = [row for s in draft.prefill for row in s.sample_into if self.rows.guided[row]]
        drawing += at[self.rows.guided[at]].tolist()
        if not drawing or self._make_masks is None:
            return None
        guides = [self.rows.sequence(row).guide for row in drawing]
        return self._make_masks(np.array(drawing, np.int32), [g for g in guides if g is not None])

    def _plan_prefill(self, draft: Draft) -> None:
        """Prompts that were begun go on, in order of admission."""
        rows = self.rows
        for row in rows.running[~rows.drawn[rows.running]].tolist():
            spare = self.pool.num_free - self._stays.num_shared_tails(row)
            room = (int(rows.num_blocks[row]) + spare) * self.pool.block_size
            left = int(rows.planned[row] - rows.computed[row])
            chunk = min(left, draft.budget, room - int(rows.computed[row]))
            if chunk > 0 and spare >= 0:
                self._plan_slice(row, chunk, draft)

    def _plan_slice(self, row: int, chunk: int, draft: Draft) -> None:
        """Compute the next `chunk` tokens of a row; at their end it, and its siblings, draw."""
        rows, sequence = self.rows, self.rows.sequence(row)
        start = int(rows.computed[row])
        end = start + chunk
        if rows.renewed[row]:
            self._stays.renew(row, draft)
        if self._stays.num_shared_tails(row):
            self._stays.copy_tail(row, draft)
        rows.forked[row] = False
        self._stays.grow_to(row, end, draft)
        known = rows.token_ids[row]
        rows.computed[row] = end
        self._stays.publish(row, known, end)
        drawing: tuple[int, ...] = ()
        if end == rows.planned[row]:
            drawing = (row, *self._fork_siblings(row, draft))
            for r in drawing:
                rows.planned[r] += 1
                rows.drawn[r] = True
        targets = None
        if sequence.wants_prompt_logprobs and start < sequence.request.num_prompt - 1:
            targets = sequence.request.prompt_ids[start + 1 : end + 1]
        draft.prefill.append(Slice(row, start, known[start:end], drawing, targets))
        draft.budget -= chunk

    def _fork_siblings(self, lead: int, draft: Draft) -> list[int]:
        """Rows for the other samples of this prompt; those that find none queue by themselves."""
        sequence = self.rows.sequence(lead)
        siblings, sequence.siblings = sequence.siblings, []
        self.rows.num_siblings[lead] = 0
        forked = []
        for sibling in siblings:
            if self.rows.num_free:
                sibling.timings.scheduled = self._clock()
                expected = self._expected_output(sibling.request)
                forked.append(self._stays.fork(lead, sibling, expected, draft))
            else:
                self.waiting.add(sibling, again=True)
        return forked

    def _admit(self, draft: Draft) -> None:
        """Waiting sequences begin, in order, while rows, tokens and blocks allow."""
        while draft.budget > 0 and self._admission.num_unclaimed_rows() > 0:
            sequence = self.waiting.next(self._clock(), self._max_wait())
            if sequence is None:
                return
            cached = self._admission.cached_blocks(sequence)
            if not self._admission.has_room(sequence, cached, draft.budget):
                if not self.num_running and not self._flights:
                    self._fail_waiting(sequence)
                    continue
                return
            self.waiting.remove(sequence)
            if not sequence.timings.scheduled:
                sequence.timings.scheduled = self._clock()
                sequence.num_cached = len(cached) * self.pool.block_size
            expected = self._expected_output(sequence.request)
            row = self._stays.begin(sequence, cached, expected, draft)
            left = int(self.rows.planned[row] - self.rows.computed[row])
            room = (len(cached) + self.pool.num_free) * self.pool.block_size
            chunk = min(left, draft.budget, room - int(self.rows.computed[row]))
            self._plan_slice(row, chunk, draft)

    def _max_wait(self) -> float:
        """Seconds of waiting after which a sequence goes before all others."""
        if not self._service_times:
            return self.limits.max_wait
        return max(self.limits.max_wait, 4 * float(np.median(self._service_times)))

    def _fail_waiting(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        self._fail(sequence, self._does_not_fit(sequence.num_tokens))

    def _does_not_fit(self, num_tokens: int) -> DoesNotFit:
        capacity = self.pool.num_blocks * self.pool.block_size
        return DoesNotFit(
            f"this row has {num_tokens} tokens and wants more, but the whole KV pool holds "
            f"{capacity} ({self.pool.num_blocks} blocks of {self.pool.block_size}). Lower "
            "max_tokens, shorten the prompt, or raise kv_cache_memory_bytes."
        )

    def _make_room(self) -> None:
        """Preempt one running sequence; if there is but one, the pool is too small for it."""
        running = self.rows.running.tolist()
        if len(running) == 1:
            num_tokens = int(self.rows.planned[running[0]])
            self._fail(self._stays.end(running[0]), self._does_not_fit(num_tokens))
            return

        def reluctance(place: int) -> tuple[bool, int, int]:
            victim = self.rows.sequence(running[place])
            tired = victim.num_preemptions >= MOST_PREEMPTIONS
            return (tired, -victim.request.priority, -place)

        # Never the first admitted: someone must get to the end.
        victim = self._stays.end(running[min(range(1, len(running)), key=reluctance)])
        victim.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.add(victim, again=True)

    def _fail(self, sequence: Sequence, error: QuireError) -> None:
        for one in (sequence, *sequence.siblings):
            one.finish_reason, one.error = "error", error
            self._ended.append(one)
        sequence.siblings = []

    def commit(self, result: StepResult) -> list[Sequence]:
        """Digest the oldest plan's result; returns the sequences that ended."""
        flight, rows = self._flights.popleft(), self.rows
        self._keep_scores(flight, result)
        live = np.flatnonzero((rows.stay[flight.rows] == flight.stays) & (flight.stays > 0))
        failed = [i for i in result.failed if i in live]
        if failed:
            live = np.setdiff1d(live, failed)
        at, tokens = flight.rows[live], result.tokens[live]
        now = self._clock()
        for row in at[rows.known[at] == rows.num_prompt[at]].tolist():
            rows.sequence(row).timings.first_token = now
        kept, ended = num_kept(rows, at, tokens, result.counts[live])
        for i in np.flatnonzero(rows.visited[at]).tolist():
            kept[i], ended[i] = self._visit(int(at[i]), tokens[i], int(live[i]), result)
        rows.append_outputs(at, tokens, kept)
        for row in at[rows.guided[at] & ~ended].tolist():
            if self._jump_ahead(row):
                ended[at == row] = True
        for row in at[ended].tolist():
            self._finish(row, now)
        for i in failed:
            self._fail(*_failure(self._stays.end(int(flight.rows[i]))))
        return self.take_ended()

    def take_ended(self) -> list[Sequence]:
        """The sequences that ended since they were last asked for."""
        ended, self._ended = self._ended, []
        return ended

    def _keep_scores(self, flight: _Flight, result: StepResult) -> None:
        for i, entries in result.scored.items():
            one = flight.plan.prefill[i]
            if self.rows.stay[one.row] == flight.slice_stays[i]:
                sequence = self.rows.sequence(one.row)
                sequence.prompt_logprobs += entries[len(sequence.prompt_logprobs) - one.start :]

    def _visit(self, row: int, tokens: Ints, i: int, result: StepResult) -> tuple[int, bool]:
        """Judge one row's new tokens in Python: text, logprobs, many stop ids."""
        sequence = self.rows.sequence(row)
        num_outputs = int(self.rows.known[row] - self.rows.num_prompt[row])
        kept = judge(sequence, tokens[: result.counts[i]].tolist(), num_outputs)
        if i in result.logprobs:
            sequence.logprobs += result.logprobs[i][:kept]
        return kept, sequence.finish_reason is not None

    def _jump_ahead(self, row: int) -> bool:
        """Append what the grammar forces next, without drawing it; True if that ends the row.

        Rows that want logprobs draw every token, to have one for each.
        """
        rows, sequence = self.rows, self.rows.sequence(row)
        if sequence.guide is None or sequence.request.params.num_logprobs is not None:
            return False
        room = int(rows.limit[row] - rows.known[row])
        forced = sequence.guide.forced()[:room]
        if not forced:
            return False
        kept = judge(sequence, forced, int(rows.known[row] - rows.num_prompt[row]))
        self._stays.force(row, forced[:kept])
        return sequence.finish_reason is not None

    def _finish(self, row: int, now: float) -> None:
        sequence = self._stays.end(row)
        if sequence.finish_reason is None:
            sequence.finish_reason, sequence.stop_reason = ending(sequence)
        sequence.timings.last_token = now
        self._service_times.append(now - sequence.timings.scheduled)
        self._ended.append(sequence)
