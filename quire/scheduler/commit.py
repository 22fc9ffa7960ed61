"""What happens when a plan comes home: tokens kept, rows ended, reasons given.

A result may come home after its row went to someone else (its sequence ended, or was
preempted): the number of the placement tells, and it is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from quire.errors import GrammarFailed, InvalidLogits, ProcessorFailed, QuireError
from quire.request import Ints
from quire.scheduler.beams import BeamGroup, Beams, no_answer
from quire.scheduler.guesses import Guesses
from quire.scheduler.held import HeldRows
from quire.scheduler.hidden import not_finite
from quire.scheduler.placements import Placements
from quire.scheduler.rows import Rows
from quire.scheduler.scoring import Scoring, invalid
from quire.scheduler.sequence import Sequence
from quire.scheduler.stopping import (
    AcceptAll,
    accept_each,
    ending,
    judge,
    judge_together,
    num_kept,
)
from quire.scheduler.trials import Trials
from quire.scheduler.walking import judge_walks
from quire.step import Candidates, DrawnScores, Scores, StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class SentPlan:
    """A plan on its way, and whose placements its results belong to."""

    plan: StepPlan
    rows: Ints
    placements: npt.NDArray[np.int64]
    slice_placements: tuple[int, ...]

    @staticmethod
    def of(plan: StepPlan, rows: Rows) -> SentPlan:
        sampled, of_slices = plan.sampled_rows(), [s.row for s in plan.prefill]
        slice_placements = tuple(rows.placement[of_slices].tolist())
        return SentPlan(plan, sampled, rows.placement[sampled], slice_placements)


@dataclass(frozen=True, slots=True)
class Grown:
    """A watched sequence that goes on, and all that it has written so far."""

    sequence: Sequence
    output_ids: Ints


@dataclass(frozen=True, slots=True)
class StepReport:
    """What happened in a step: the sequences that ended, and what watched ones wrote that go on."""

    ended: list[Sequence] = field(default_factory=list)
    grown: list[Grown] = field(default_factory=list)


def _by_line(blocks: tuple[DrawnScores, ...]) -> dict[int, tuple[Scores, int]]:
    """Where the scores of each row's tokens begin: {line: the block it is in, and the place}."""
    found: dict[int, tuple[Scores, int]] = {}
    for block in (block for block in blocks if len(block.lines)):
        lines, scores = block.lines, block.scores
        if (lines[1:] < lines[:-1]).any():
            order = np.argsort(lines, kind="stable")
            lines, scores = lines[order], scores.take(order)
        firsts = np.flatnonzero(np.diff(lines, prepend=-1))
        for line, first in zip(lines[firsts].tolist(), firsts.tolist(), strict=True):
            found[line] = scores, first
    return found


def _failure(sequence: Sequence) -> QuireError:
    """Why a row could draw no token: its grammar's reason, or bad logits."""
    if sequence.guide is not None and sequence.guide.error is not None:
        return sequence.guide.error
    return InvalidLogits(
        "the model gave NaN or infinite logits for this row, or its constraints left no token, "
        "so none could be drawn; the other rows went on. Loosen the constraints, try "
        "dtype='float32', or check the weights."
    )


class Committer:
    """Digests results, and keeps what happened until it is asked for."""

    def __init__(
        self,
        placements: Placements,
        scoring: Scoring,
        beams: Beams,
        guesses: Guesses,
        trials: Trials,
        clock: Callable[[], float],
        accept_all: AcceptAll = accept_each,
    ) -> None:
        self.rows: Rows = placements.rows
        self._accept_all = accept_all
        self.held = HeldRows(placements.rows)
        self.ended: list[Sequence] = []
        self.grown: list[Grown] = []
        self.service_times: deque[float] = deque(maxlen=101)
        self._placements, self._scoring, self._clock = placements, scoring, clock
        self._beams, self._guesses, self._trials = beams, guesses, trials

    def take_report(self) -> StepReport:
        """What happened since this was last asked for."""
        report = StepReport(self.ended, self.grown)
        self.ended, self.grown = [], []
        return report

    def forget(self, is_gone: Callable[[Sequence], bool]) -> None:
        """Report nothing of these sequences."""
        self.ended = [s for s in self.ended if not is_gone(s)]
        self.grown = [g for g in self.grown if not is_gone(g.sequence)]

    def long_wait(self, least: float) -> float:
        """Seconds of waiting after which a sequence goes before all others: `least`, or four
        times what others take."""
        return max(least, 4 * float(np.median(self.service_times))) if self.service_times else least

    def fail(self, sequence: Sequence, error: QuireError) -> None:
        """End a sequence that is in no row, and the samples that were to fork off it."""
        for one in (sequence, *sequence.siblings):
            one.finish_reason, one.error = "error", error
            self.ended.append(one)
        sequence.siblings = []

    def commit(self, sent: SentPlan, result: StepResult) -> None:
        """Give each row what it drew; whoever ends there has left its row after this."""
        rows, now = self.rows, self._clock()
        self._keep_scores(sent, result, now)
        self._keep_hidden(sent, result, now)
        live = np.flatnonzero(
            (rows.placement[sent.rows] == sent.placements) & (sent.placements > 0)
        )
        failed = [i for i in result.failed if i in live]
        if result.candidates is not None:
            beams = rows.num_candidates[sent.rows[live]] > 0
            searching = np.setdiff1d(live[beams], failed)
            self._commit_beams(sent, result.candidates, searching.tolist(), now)
            live = live[~beams]
        at, tokens = sent.rows[live], result.tokens[live]
        is_first = (rows.known[at] == rows.num_prompt[at]) & (result.counts[live] > 0)
        for row in at[is_first].tolist():
            rows.sequence(row).timings.first_token = now
        kept, ended = num_kept(rows, at, tokens, result.counts[live])
        walking = np.flatnonzero(rows.automaton[at])
        if len(walking) and rows.automata is not None:
            drawn_there = (at[walking], tokens[walking], result.counts[live[walking]])
            kept[walking], ended[walking] = judge_walks(rows, rows.automata, *drawn_there)
        scores = _by_line(result.logprobs)
        visited = np.flatnonzero(rows.visited[at])
        together = rows.follows[at[visited]] & (result.counts[live[visited]] == 1)
        self._visit_together(visited[together], at, tokens, kept, ended)
        for i in visited[~together].tolist():
            line = int(live[i])
            drawn = tokens[i, : result.counts[line]].tolist()
            kept[i], ended[i] = self._visit(int(at[i]), drawn)
        for i in np.flatnonzero(rows.scored[at]).tolist():
            mine = scores.get(int(live[i]))
            if mine is not None and kept[i]:
                block, first = mine
                part = block.part(first, first + int(kept[i]))
                rows.sequence(int(at[i])).logprobs.append(part)
        rows.append_outputs(at, tokens, kept)
        self._guesses.settle(sent.plan, result)
        self._trials.settle(sent.plan, at, kept, sent.rows[list(result.held)])
        for row in at[rows.jumps[at] & ~ended & (kept > 0)].tolist():
            if self._jump_ahead(row):
                ended[at == row] = True
        for row in at[rows.watched[at] & ~ended & (kept > 0)].tolist():
            self.grown.append(Grown(rows.sequence(row), rows.output_ids(row)))
        self._finish(at[ended].tolist(), now)
        for i in failed:
            row = int(sent.rows[i])
            # It may have gone with its search, or ended by what it drew before.
            if rows.placement[row] == sent.placements[i]:
                why = result.errors.get(i)
                error = ProcessorFailed(why) if why else _failure(rows.sequence(row))
                self.fail(self._beams.take_out(row), error)
        self.held.add(result.held, sent.rows, sent.placements)

    def _commit_beams(
        self, sent: SentPlan, candidates: Candidates, lines: list[int], now: float
    ) -> None:
        """Give each group what its rows offer; one that has all of it takes its next step."""
        offers = {line: i for i, line in enumerate(candidates.lines.tolist())}
        for line in lines:
            row, i = int(sent.rows[line]), offers[line]
            group = self._beams.offer(row, candidates.tokens[i], candidates.logprobs[i])
            timings = group.lead.timings
            timings.first_token = timings.first_token or now
            if not group.is_ready:
                continue
            try:
                self._beams.decide(group)
            except GrammarFailed as error:
                self.fail(self._beams.leave(group), error)
            else:
                if group.search.over:
                    self._finish_group(group, now)

    def _finish_group(self, group: BeamGroup, now: float) -> None:
        lead = self._beams.leave(group)
        if not group.answers:
            self.fail(lead, no_answer())
            return
        best = group.answers[0]
        lead.output_ids, lead.finish_reason = best.output_ids, best.finish_reason
        lead.timings.last_token = now
        self.service_times.append(now - lead.timings.scheduled)
        self.ended.append(lead)

    def _keep_scores(self, sent: SentPlan, result: StepResult, now: float) -> None:
        """Give each slice's row its scores, in order: a later one may rely on an earlier one's."""
        for i, one in enumerate(sent.plan.prefill):
            scores = result.scored.get(i)
            if scores is None:
                continue
            row, placement = one.row, sent.slice_placements[i]
            error = invalid(scores) if one.targets and not one.targets.as_asked else None
            if error is not None and self.rows.placement[row] == placement:
                self.fail(self._placements.end(row), error)
            elif self._scoring.commit(row, placement, scores):
                self.rows.sequence(row).finish_reason = "length"
                self._finish([row], now)

    def _keep_hidden(self, sent: SentPlan, result: StepResult, now: float) -> None:
        """Give each slice's row its hidden states; one whose prompt is computed ends with them."""
        for i, states in result.hidden.items():
            one = sent.plan.prefill[i]
            row, end = one.row, one.start + len(one.token_ids)
            if self.rows.placement[row] != sent.slice_placements[i]:
                continue
            sequence = self.rows.sequence(row)
            sequence.hidden.append(states)
            if (error := not_finite(states)) is not None:
                self.fail(self._placements.end(row), error)
            elif end == sequence.request.num_prompt:
                sequence.finish_reason = "stop"
                sequence.timings.first_token = now
                self._finish([row], now)

    def _visit(self, row: int, tokens: list[int]) -> tuple[int, bool]:
        """Judge one row's new tokens in Python: text, grammar, many stop ids."""
        sequence = self.rows.sequence(row)
        num_outputs = int(self.rows.known[row] - self.rows.num_prompt[row])
        kept = judge(sequence, tokens, num_outputs)
        return kept, sequence.finish_reason is not None

    def _visit_together(
        self, some: Ints, at: Ints, tokens: Ints, kept: Ints, ended: npt.NDArray[np.bool_]
    ) -> None:
        """Judge those of the rows `at` that drew one token each and follow grammars."""
        if not len(some):
            return
        rows, mine = self.rows, at[some]
        sequences = [rows.sequence(row) for row in mine.tolist()]
        num_outputs = (rows.known[mine] - rows.num_prompt[mine]).tolist()
        judge_together(sequences, tokens[some, 0].tolist(), num_outputs, self._accept_all)
        kept[some] = 1
        ended[some] = [sequence.finish_reason is not None for sequence in sequences]

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
        self._placements.force(row, forced[:kept])
        return sequence.finish_reason is not None

    def _finish(self, some: list[int], now: float) -> None:
        """These rows end, in this order."""
        if not some:
            return
        for sequence in self._placements.end_all(some):
            if sequence.finish_reason is None:
                sequence.finish_reason, sequence.stop_reason = ending(sequence)
            sequence.timings.last_token = now
            self.service_times.append(now - sequence.timings.scheduled)
            self.ended.append(sequence)
