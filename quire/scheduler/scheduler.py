"""Decides the next step; commit.py handles the results.

One rule: let `computed` catch up with `planned`, within a budget of tokens. Prefill, chunked
prefill, prefix hits, decode and resuming after preemption are all that sentence. Plain data in
and out; knows neither torch nor text.

Plans run in the order they are made. So blocks may be freed and prompt blocks published while
planning: only later plans take or find them. A preempted sequence draws the tokens that were in
flight again, with the same noise.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Many

import numpy as np

from quire.cache.pool import BlockPool, Cached
from quire.request import Ints, Request
from quire.scheduler.adapters import AdapterPlaces, Hold
from quire.scheduler.admission import Admission
from quire.scheduler.beams import Beams
from quire.scheduler.chunks import Chunks
from quire.scheduler.commit import Committer, SentPlan
from quire.scheduler.device_guesses import guesses_of
from quire.scheduler.draft import Draft
from quire.scheduler.forking import Forking
from quire.scheduler.groups import PrefixGroups
from quire.scheduler.held import HeldRows
from quire.scheduler.lanes import Lanes
from quire.scheduler.limits import Limits
from quire.scheduler.media import MediaPlans
from quire.scheduler.pass_times import PassTimes
from quire.scheduler.placements import Placements
from quire.scheduler.preemption import Preemption, does_not_fit
from quire.scheduler.repeats import plan_repeat
from quire.scheduler.reports import Reports, StepReport
from quire.scheduler.rows import Rows
from quire.scheduler.scoring import Scoring, unfold
from quire.scheduler.sequence import Guide, Sequence
from quire.scheduler.shares import Shares
from quire.scheduler.stopping import AcceptAll, accept_each
from quire.scheduler.trials import Trials
from quire.scheduler.turns import Turns
from quire.scheduler.waiting import Waiting
from quire.scheduler.windows import PastWindows
from quire.step import DecodeRows, Masks, StepPlan, StepResult
from quire.steps.handles import Handles

MakeMasks = Callable[[Ints, Many[Guide]], Masks]


class Scheduler:
    """Owns every Sequence from `add` to its end."""

    def __init__(
        self,
        pool: BlockPool,
        limits: Limits,
        *,
        expected_output: Callable[[Request], float] = lambda request: request.max_tokens,
        make_masks: MakeMasks | None = None,
        accept_all: AcceptAll = accept_each,
        hold_adapter: Hold | None = None,
        clock: Callable[[], float] = time.monotonic,
        times: PassTimes | None = None,
    ) -> None:
        """`make_masks` begins to fill the masks of rows that follow grammars, and `accept_all`
        gives their guides the drawn tokens; `hold_adapter` loads a LoRA adapter; see PassTimes."""
        self.pool, self.limits = pool, limits
        self._expected_output, self._clock = expected_output, clock
        self._make_masks, self._accept_all = make_masks, accept_all
        self._hold_adapter = hold_adapter
        capacity = min(limits.max_num_seqs, limits.max_num_batched_tokens)
        self.rows = rows = Rows(capacity, pool.num_groups, limits.pacing)
        self.waiting = waiting = Waiting()
        self.lanes = Lanes(rows, waiting, clock)
        self.media = MediaPlans(rows, limits.shelf_rows, limits.max_num_batched_tokens)
        self.turns = Turns(rows, overlap=limits.overlap)
        self.trials = Trials(rows, waiting, self.turns, limits.max_repeat)
        self.held = HeldRows(rows)
        self._groups = PrefixGroups(rows, pool, sought=limits.prefix_groups)
        self._admission = Admission(pool, rows, expected_output)
        self._reports = Reports()
        self._adapters = AdapterPlaces(
            rows, waiting, limits.max_adapters, hold_adapter, self._reports.fail
        )
        self._placements = placements = Placements(pool, rows)
        self.guesses = guesses_of(placements, waiting, limits.speculation, times)
        self._past_windows = PastWindows(placements)
        self._beams = Beams(placements, expected_output)
        self._scoring = Scoring(placements, waiting)
        self._forking = Forking(placements, self._scoring, waiting, expected_output, clock)
        self._chunks = Chunks(
            placements, self._scoring, self._beams, self._forking, self.media, self._reports
        )
        self._shares = Shares(rows, self.lanes, waiting, self._admission, self._chunks)
        self._preemption = Preemption(placements, self._beams, waiting, self.media, self._reports)
        self._committer = Committer(
            placements,
            self._scoring,
            self._beams,
            self.guesses,
            self.trials,
            self.held,
            self._reports,
            clock=clock,
            accept_all=accept_all,
        )
        self._sent: deque[SentPlan] = deque()
        self._committed: float | None = None  # when the last result was committed, while rows run

    def fresh(self) -> Scheduler:
        """An empty scheduler with the same settings."""
        made = Scheduler(
            self.pool.fresh(),
            self.limits,
            expected_output=self._expected_output,
            make_masks=self._make_masks,
            accept_all=self._accept_all,
            hold_adapter=self._hold_adapter,
            clock=self._clock,
            times=self.guesses.times,
        )
        made.lanes.is_serving = self.lanes.is_serving
        return made

    def use(self, handles: Handles) -> None:
        """Look up what results name in the handles of the executor that runs the plans."""
        self.held.handles, self.rows.automata = handles, handles.automata

    @property
    def num_running(self) -> int:
        return len(self.rows.running)

    @property
    def num_held(self) -> int:
        """Rows that wait for their logits processors."""
        return len(self.held)

    @property
    def num_preemptions(self) -> int:
        return self._preemption.count

    @property
    def num_unfinished(self) -> int:
        return self.num_running + len(self.waiting) + self._reports.num_ended

    def add(self, samples: Many[Sequence]) -> None:
        """Queue the samples of one request: the first is computed, the others fork off it."""
        now = self._clock()
        for sequence in samples:
            sequence.timings.queued = now
        samples[0].siblings = list(samples[1:])
        self.waiting.add(samples[0])

    def abort(self, sequences: Many[Sequence]) -> None:
        """End these sequences now, wherever they are, and with one path of a tree all its paths.
        They are not reported: the caller knows of them."""
        self._preemption.abort(sequences)

    def schedule(self) -> StepPlan | None:
        """The next plan, or None if nothing can be done before a result comes back."""
        budget = self.limits.max_num_batched_tokens
        self.pool.begin_plan()
        self._past_windows.give_back()
        self._preemption.make_way(self.lanes, self._admission, budget, self._clock())
        self.media.begin()
        spare = self.lanes.spare(budget)
        while True:
            draft = Draft(budget, spare)
            before = self.num_preemptions
            decode = self._plan_decode(draft)
            if decode is None:
                return None
            self._shares.plan(draft)
            if self.num_preemptions == before:
                self._admit(draft)
            released = self.held.release()
            if len(decode) or draft.prefill or len(released):
                return self._take_off(draft, decode, released)
            if self._sent or self.num_held or not self.num_running:
                return None
            if spare < budget:  # none of the foreground rows that it yields to can go on
                spare = budget
                continue
            # Only prompts run, and none has room for its next chunk.
            self._preemption.make_room()

    def _take_off(self, draft: Draft, decode: DecodeRows, released: Ints) -> StepPlan:
        """Make the plan, count its tokens as computed, and note whose results it will bring."""
        rows, alone = self.rows, not draft.prefill and not len(released)
        decode = self.guesses.plan(decode, draft) if alone else decode
        at, tries = decode.rows, rows.goes_ahead[decode.rows]
        most = 1 if draft.prefill or self.lanes.is_hurried else self.limits.max_repeat
        most, awaited = self.guesses.most_passes(at, most), len(self.waiting) > 0
        repeat = plan_repeat(self._placements, self.trials, at, most, draft, awaited=awaited)
        repeat, guessing = self.guesses.in_passes(at, repeat, draft, alone=alone)
        searched = self._beams.searched(draft, at)
        forgotten, encode = self.media.take()
        plan = StepPlan(
            starts=tuple(draft.starts),
            ends=np.array(self._placements.ended, np.int32),
            assigned=draft.assigned(),
            copies=tuple(draft.copies),
            prefill=tuple(draft.prefill),
            decode=decode,
            groups=self._groups.among(at, guess=guessing is not None),
            masks=self._masks(draft, np.concatenate([at, released])),
            repeat=repeat,
            released=released,
            chosen=self._beams.chosen(at),
            searched=searched,
            num_candidates=int(rows.num_candidates[searched].max(initial=0)),
            single=at[rows.waits_for_host[at] & ~tries],
            tried=at[tries],
            num_tried=self.trials.steps(at, repeat)[tries],
            forgotten=forgotten,
            encode=encode,
            guessing=guessing,
        )
        self.lanes.sent(plan)
        self._placements.ended.clear()
        steps = self.trials.steps(at, plan.most_drawn)
        rows.computed[at] += steps
        rows.planned[at] += steps
        self._sent.append(SentPlan.of(plan, rows))
        return plan

    def _masks(self, draft: Draft, at: Ints) -> Masks | None:
        """The masks of all rows that draw in this plan and follow a grammar: rows of its slices,
        and the rows `at`."""
        of_slices = [row for s in draft.prefill for row in s.sample_into]
        drawing = np.concatenate([np.array(of_slices, np.int32), at])
        drawing = drawing[self.rows.guided[drawing]]
        if not len(drawing) or self._make_masks is None:
            return None
        return self._make_masks(drawing, self.rows.guides(drawing))

    def _plan_decode(self, draft: Draft) -> DecodeRows | None:
        """The rows whose last token is on the device, with blocks for its KV: they feed it. None if
        there is no block, or it is not their turn, until a result arrives."""
        rows, placements = self.rows, self._placements
        while True:
            running = rows.running
            at = running[rows.drawn[running] & (rows.planned[running] < rows.limit[running])]
            at = at[~rows.waits_for_host[at] | (rows.known[at] == rows.planned[at])]
            turn = self._turn_of(self.guesses.ready(at))
            if turn is None:
                return None
            at, spare = self.lanes.within(turn, draft.spare)
            lacking, shared = placements.lacking(at, 1), placements.shared_tails(at)
            if self.pool.fits(int(lacking.sum()) + int(shared.sum())):
                break
            if self._sent and self._past_windows.are_pending():
                return None
            self._preemption.make_room()
        placements.grow(at, lacking, draft)
        for row in at[shared].tolist():
            placements.copy_tail(row, draft)
        placements.resend_table(at, draft)
        rows.forked[at] = False
        draft.budget -= len(at)
        draft.spare = min(spare, draft.budget)
        return DecodeRows(at, rows.computed[at])

    def _turn_of(self, ready: Ints) -> Ints | None:
        """Those of the rows ready for a step whose turn it is."""
        if self.lanes.is_hurried:  # then plans do not overlap
            return ready
        return self.turns.among(ready, awaited=any(len(sent.plan.decode) for sent in self._sent))

    def _admit(self, draft: Draft) -> None:
        """Admit waiting sequences, in order, while rows, tokens and blocks allow."""
        max_wait = self._reports.long_wait(self.limits.max_wait)
        self._admission.begin()
        self._adapters.begin(self._clock(), max_wait)
        left = self.lanes.most_begun
        while draft.budget > 0:
            background = draft.spare > 0 and left > 0
            sequence = self._adapters.next(self._clock(), max_wait, background=background)
            if sequence is None or not self._admission.has_rows(sequence):
                return
            budget = draft.spare if sequence.request.background else draft.budget
            unfold(sequence)
            cached = self._readable_blocks(sequence)
            first = len(cached) * self.pool.block_size
            if not self.media.can_begin(sequence.request, first, budget):
                return
            if self._admission.has_room(sequence, cached, budget):
                self._begin(sequence, cached, draft)
                left -= sequence.request.background
            elif self.num_running or self._sent:
                return
            else:
                self.waiting.remove(sequence)
                self._reports.fail(sequence, does_not_fit(self.pool, sequence.num_tokens))

    def _readable_blocks(self, sequence: Sequence) -> Cached:
        """Published blocks that begin a sequence, up to the first position it has to score."""
        cached = self._admission.cached_blocks(sequence)
        readable = self._scoring.readable(sequence, len(cached))
        if readable < len(cached):
            return self._admission.cached_blocks(sequence, most=readable)
        return cached

    def _begin(self, sequence: Sequence, cached: Cached, draft: Draft) -> None:
        """Put a waiting sequence into a row, and its first tokens into the plan."""
        self.waiting.admit(sequence)
        if not sequence.timings.scheduled:
            sequence.timings.scheduled = self._clock()
            sequence.num_cached = len(cached) * self.pool.block_size
        expected = self._expected_output(sequence.request)
        row = self._placements.begin(sequence, cached, expected, draft)
        self._scoring.begin(row)
        if sequence.group is not None:
            self._beams.enter(row, draft)
        self._shares.begin(row, draft)

    def commit(self, result: StepResult, seconds: float = 0.0) -> StepReport:
        """Handle the oldest plan's result, which took `seconds`; returns what happened."""
        sent = self._sent.popleft()
        self.guesses.observe(sent.plan, result, seconds)
        self.lanes.observe(sent.plan, seconds)
        for serial, why in result.unencoded.items():
            self._preemption.fail_holders(serial, why)
        self._committer.commit(sent, result)
        self._time(sent.plan)
        return self._reports.take()

    def _time(self, plan: StepPlan) -> None:
        """Time a plan: how long its result came after the last one, if rows ran all the time."""
        now, before = self._clock(), self._committed
        self._committed = now if self.num_running else None
        if before is None:
            return
        is_alike = plan.masks is not None and plan.repeat == plan.num_tried.max(initial=0)
        if is_alike and not (self.turns.by_turns or plan.prefill):
            self.trials.ahead.took(plan.repeat, now - before, len(plan.decode))
        if plan.repeat == 1:  # rows that go ahead of their masks all go together
            self.turns.observe(plan, now - before)

    def take_report(self) -> StepReport:
        """What happened since the last result, or since the last call."""
        return self._reports.take()
