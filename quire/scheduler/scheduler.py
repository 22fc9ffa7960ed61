"""Decides the next step; what comes back is digested in commit.py.

One rule: let `computed` catch up with `planned`, within a budget of tokens. Prefill, chunked
prefill, prefix hits, decode and resuming after preemption are all that sentence. Plain data in
and out; knows neither torch nor text.

Plans run in the order they are made. So blocks may be freed and prompt blocks published while
planning: whoever takes or finds them comes later. A preempted sequence draws the tokens that
were on their way again, from the same noise.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Many

import numpy as np

from quire.cache.pool import BlockPool
from quire.errors import InvalidRequest
from quire.request import Ints, Request
from quire.scheduler.adapters import AdapterPlaces, Hold
from quire.scheduler.admission import Admission
from quire.scheduler.beams import Beams
from quire.scheduler.commit import Committer, SentPlan, StepReport
from quire.scheduler.device_guesses import guesses_of
from quire.scheduler.draft import Draft
from quire.scheduler.forking import Forking
from quire.scheduler.groups import PrefixGroups
from quire.scheduler.hidden import hidden_of
from quire.scheduler.lanes import Lanes
from quire.scheduler.limits import Limits
from quire.scheduler.masking import MakeMasks, masks_of
from quire.scheduler.media import MediaPlans
from quire.scheduler.pass_times import PassTimes
from quire.scheduler.placements import Placements
from quire.scheduler.preemption import Preemption, does_not_fit
from quire.scheduler.repeats import plan_repeat
from quire.scheduler.rows import Rows
from quire.scheduler.scoring import Scoring, fork_point, targets_of, unfold
from quire.scheduler.sequence import Sequence
from quire.scheduler.stopping import AcceptAll, accept_each
from quire.scheduler.trials import Trials
from quire.scheduler.waiting import Waiting
from quire.scheduler.windows import PastWindows
from quire.step import DecodeRows, Slice, StepPlan, StepResult
from quire.steps.handles import Handles


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
        """`make_masks` begins to fill the masks of rows that follow grammars, `accept_all` has them
        go on; `hold_adapter` has a LoRA adapter in memory; `times` are those of passes."""
        self.pool, self.limits = pool, limits
        capacity = min(limits.max_num_seqs, limits.max_num_batched_tokens)
        self.rows = Rows(capacity, pool.num_groups, limits.pacing)
        self.waiting = Waiting()
        self.lanes = Lanes(self.rows, self.waiting, clock)
        self._placements = Placements(pool, self.rows)
        self._admission = Admission(pool, self.rows, expected_output)
        self._expected_output, self._clock = expected_output, clock
        self._make_masks, self._accept_all = make_masks, accept_all
        self._hold_adapter = hold_adapter
        self._sent: deque[SentPlan] = deque()
        self._scoring = Scoring(pool, self._placements, self.waiting.add_again)
        self._beams = Beams(self._placements, expected_output)
        self.guesses = guesses_of(self._placements, self.waiting, limits.speculation, times)
        self.trials = Trials(self.rows, self.waiting, limits.max_repeat)
        given = (self._placements, self._scoring, self._beams, self.guesses, self.trials)
        self._committer = Committer(*given, clock, accept_all)
        running = (self.rows, self.waiting, limits.max_adapters)
        self._adapters = AdapterPlaces(*running, hold_adapter, self._committer.fail)
        self._preemption = Preemption(self._placements, self._beams, self.waiting, self._committer)
        self._forking = Forking(*given[:2], self.waiting, expected_output, clock)
        self._groups = PrefixGroups(self.rows, pool, sought=limits.prefix_groups)
        self._past_windows = PastWindows(self._placements)
        self.media = MediaPlans(self.rows, limits.shelf_rows, limits.max_num_batched_tokens)

    def fresh(self) -> Scheduler:
        """One like this, with nothing in it."""
        return Scheduler(
            self.pool.fresh(),
            self.limits,
            expected_output=self._expected_output,
            make_masks=self._make_masks,
            accept_all=self._accept_all,
            hold_adapter=self._hold_adapter,
            clock=self._clock,
            times=self.guesses.times,
        )

    def use(self, handles: Handles) -> None:
        """What results name is found here from now on: with the executor that runs the plans."""
        self._committer.held.handles, self.rows.automata = handles, handles.automata

    @property
    def num_running(self) -> int:
        return len(self.rows.running)

    @property
    def num_held(self) -> int:
        """Rows that wait for their logits processors."""
        return len(self._committer.held)

    def wait_for_held(self, seconds: float) -> None:
        """Until one of those rows can go on, at most so long."""
        self._committer.held.wait(seconds)

    @property
    def num_preemptions(self) -> int:
        return self._preemption.count

    @property
    def num_unfinished(self) -> int:
        return self.num_running + len(self.waiting) + len(self._committer.ended)

    def add(self, samples: Many[Sequence]) -> None:
        """Queue the samples of one request: the first is computed, the others fork off it."""
        now = self._clock()
        for sequence in samples:
            sequence.timings.queued = now
        samples[0].siblings = list(samples[1:])
        self.waiting.add(samples[0])

    def abort(self, sequences: Many[Sequence]) -> None:
        """End these now, wherever they are, and with one path of a tree all of them; the caller
        knows, so nothing is handed over."""
        self._preemption.abort(sequences)

    def schedule(self) -> StepPlan | None:
        """The next plan, or None if nothing can be done before a result comes back."""
        budget = self.limits.max_num_batched_tokens
        self._past_windows.give_back()
        self._preemption.make_way(self.lanes, self._admission, budget)
        self.media.begin()
        spare = self.lanes.spare(budget)
        while True:
            draft = Draft(budget, spare)
            before = self.num_preemptions
            decode = self._plan_decode(draft)
            if decode is None:
                return None
            self._plan_prefill(draft)
            if self.num_preemptions == before:
                self._admit(draft)
            released = self._committer.held.release()
            if len(decode) or draft.prefill or len(released):
                return self._take_off(draft, decode, released)
            if self._sent or self.num_held or not self.num_running:
                return None
            if spare < budget:  # nobody of those for whom it was to yield can go on
                spare = budget
                continue
            # Prompts only, none with room for its next chunk.
            self._preemption.make_room()

    def _take_off(self, draft: Draft, decode: DecodeRows, released: Ints) -> StepPlan:
        """Close the draft; count what it will have done, and whose results it will bring."""
        rows, alone = self.rows, not draft.prefill and not len(released)
        decode = self.guesses.plan(decode, draft) if alone else decode
        at, is_long = decode.rows, not draft.prefill and not self.lanes.is_hurried
        most = self.guesses.most_passes(at, self.limits.max_repeat if is_long else 1)
        given, tries = (self._placements, self.trials, at, most, draft), rows.tries[at]
        repeat = plan_repeat(*given, awaited=len(self.waiting) > 0)
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
            masks=masks_of(rows, draft, np.concatenate([at, released]), self._make_masks),
            repeat=repeat,
            released=released,
            chosen=self._beams.chosen(at),
            searched=searched,
            num_candidates=int(rows.num_candidates[searched].max(initial=0)),
            single=at[rows.paced[at] & ~tries],
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

    def _plan_decode(self, draft: Draft) -> DecodeRows | None:
        """Every row whose last token is on the device feeds it; its KV gets a place first. None
        if there is no place before a result comes back."""
        rows, placements = self.rows, self._placements
        while True:
            running = rows.running
            at = running[rows.drawn[running] & (rows.planned[running] < rows.limit[running])]
            at = at[~rows.paced[at] | (rows.known[at] == rows.planned[at])]
            at, spare = self.lanes.within(self.guesses.ready(at), draft.spare)
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

    def _plan_prefill(self, draft: Draft) -> None:
        """Prompts that were begun go on, in order of admission, the background's last."""
        rows = self.rows
        begun = rows.running[~rows.drawn[rows.running]]
        for row in begun[np.argsort(rows.background[begun], kind="stable")].tolist():
            self._plan_chunk(row, draft)

    def _plan_chunk(self, row: int, draft: Draft) -> None:
        """As many of a row's next tokens as there is room for; of a search that comes back, also
        those of its further beams."""
        rows, at = self.rows, row
        if self._scoring.is_waiting(row):
            return self._forking.fork_late(row, draft, self._plan_chunk)
        while True:
            free = self.pool.num_free // self.pool.num_groups
            spare = free - self._placements.num_shared_tails(at)
            room = (int(rows.num_blocks[at]) + spare) * self.pool.block_size
            left = int(rows.planned[at] - rows.computed[at])
            budget = draft.spare if rows.background[at] else draft.budget
            chunk = min(left, budget, room - int(rows.computed[at]))
            if chunk <= 0 or spare < 0 or (chunk := self._with_media(at, chunk)) <= 0:
                return
            self._plan_slice(at, chunk, draft)
            if chunk < left or (following := self._beams.begin_next(at, draft)) is None:
                return
            at = following

    def _with_media(self, row: int, chunk: int) -> int:
        """As many of these tokens as have the media that stand among them."""
        request, start = self.rows.sequence(row).request, int(self.rows.computed[row])
        if not request.media and request.heard is None:
            return chunk
        try:
            return self.media.reach(request, start, start + chunk) - start
        except InvalidRequest as error:
            self._committer.fail(self._beams.take_out(row), error)
            return 0

    def _plan_slice(self, row: int, chunk: int, draft: Draft) -> None:
        """Compute the next `chunk` tokens of a row; at their end it, and its siblings, draw."""
        rows, sequence = self.rows, self.rows.sequence(row)
        start, published = int(rows.computed[row]), int(rows.num_published[row])
        leaving = fork_point(sequence)
        end = start + chunk if leaving is None else min(start + chunk, leaving)
        if rows.renewed[row]:
            self._placements.restart(row, draft)
        if self._placements.num_shared_tails(row):
            self._placements.copy_tail(row, draft)
        rows.forked[row] = False
        self._placements.grow_to(row, end, draft)
        rows.computed[row] = end
        self._placements.publish(row, rows.token_ids[row], end)
        self._scoring.promise(row, published)
        drawing: tuple[int, ...] = ()
        if sequence.tree is not None:
            if end == leaving:
                self._forking.fork_all(row, draft)  # each goes on by itself
        elif end == rows.planned[row] and sequence.request.hidden is None:
            drawing = (row, *self._forking.fork_all(row, draft))
            for one in drawing:
                rows.planned[one], rows.drawn[one] = rows.planned[one] + 1, True
        targets = targets_of(sequence, start, end)
        hidden = hidden_of(sequence.request, start, end)
        fed = rows.fed_ids[row][start:end]
        shown = self.media.shown(sequence.request, start, end)
        draft.prefill.append(Slice(row, start, fed, drawing, targets, 0, hidden, *shown))
        draft.budget -= end - start
        draft.spare = min(draft.spare - (end - start) * int(rows.background[row]), draft.budget)

    def _admit(self, draft: Draft) -> None:
        """Waiting sequences begin, in order, while rows, tokens and blocks allow."""
        max_wait = self._committer.long_wait(self.limits.max_wait)
        self._admission.begin()
        self._adapters.begin(self._clock(), max_wait)
        while draft.budget > 0:
            sequence = self._adapters.next(self._clock(), max_wait, background=draft.spare > 0)
            if sequence is None or not self._admission.has_rows(sequence):
                return
            budget = draft.spare if sequence.request.background else draft.budget
            unfold(sequence)
            cached = self._admission.cached_blocks(sequence)
            readable = self._scoring.readable(sequence, len(cached))
            if readable < len(cached):
                cached = self._admission.cached_blocks(sequence, most=readable)
            first = len(cached) * self.pool.block_size
            if not self.media.can_begin(sequence.request, first, budget):
                return
            if not self._admission.has_room(sequence, cached, budget):
                if not self.num_running and not self._sent:
                    self.waiting.remove(sequence)
                    self._committer.fail(sequence, does_not_fit(self.pool, sequence.num_tokens))
                    continue
                return
            self.waiting.remove(sequence)
            if not sequence.timings.scheduled:
                sequence.timings.scheduled = self._clock()
                sequence.num_cached = first
            expected = self._expected_output(sequence.request)
            row = self._placements.begin(sequence, cached, expected, draft)
            self._scoring.begin(row)
            if sequence.group is not None:
                self._beams.enter(row, draft)
            self._plan_chunk(row, draft)

    def commit(self, result: StepResult, seconds: float = 0.0) -> StepReport:
        """Digest the oldest plan's result, which took so long."""
        sent = self._sent.popleft()
        self.guesses.observe(sent.plan, result, seconds)
        self.lanes.observe(sent.plan, seconds)
        self._committer.commit(sent, result)
        return self._committer.take_report()

    def take_report(self) -> StepReport:
        """What happened since the last result, or since this was last asked for."""
        return self._committer.take_report()
