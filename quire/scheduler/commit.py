"""What happens when the result of a plan arrives: tokens kept, rows ended, reasons given.

A result may arrive after its row went to another sequence (the sequence ended, or was preempted).
The number of the placement shows that, and the result is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.base.boundary import for_row
from quire.errors import EngineError, InvalidLogits, ProcessorFailed, QuireError
from quire.params.forbidden import no_token_left
from quire.request import Ints
from quire.scheduler.beams import BeamGroup, Beams, no_answer
from quire.scheduler.guesses import Guesses
from quire.scheduler.held import HeldRows
from quire.scheduler.hidden import not_finite
from quire.scheduler.judging import Drawn, judged
from quire.scheduler.jumps import Jumps
from quire.scheduler.placements import Placements
from quire.scheduler.reports import Reports
from quire.scheduler.rows import Rows
from quire.scheduler.scoring import Scoring, invalid
from quire.scheduler.sequence import Sequence
from quire.scheduler.stopping import AcceptAll, fail, is_stop, judge, stop_by_last
from quire.scheduler.trials import Trials
from quire.step import Candidates, DrawnScores, Scores, StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class SentPlan:
    """A plan whose result is awaited, and the placements that its results belong to."""

    plan: StepPlan
    rows: Ints
    placements: npt.NDArray[np.int64]
    slice_placements: tuple[int, ...]

    @staticmethod
    def of(plan: StepPlan, rows: Rows) -> SentPlan:
        sampled, of_slices = plan.sampled_rows(), [s.row for s in plan.prefill]
        slice_placements = tuple(rows.placement[of_slices].tolist())
        return SentPlan(plan, sampled, rows.placement[sampled], slice_placements)

    def live(self, rows: Rows) -> npt.NDArray[np.int64]:
        """The lines of its result whose rows still hold the placement it was made for."""
        here = rows.placement[self.rows] == self.placements
        return np.flatnonzero(here & (self.placements > 0))


class Committer:
    """Digests results."""

    def __init__(
        self,
        placements: Placements,
        scoring: Scoring,
        beams: Beams,
        guesses: Guesses,
        trials: Trials,
        held: HeldRows,
        reports: Reports,
        *,
        clock: Callable[[], float],
        accept_all: AcceptAll,
    ) -> None:
        self._placements, self._rows = placements, placements.rows
        self._scoring, self._beams = scoring, beams
        self._guesses, self._trials = guesses, trials
        self._held, self._reports = held, reports
        self._clock, self._accept_all = clock, accept_all
        self._jumps = Jumps(placements)

    def commit(self, sent: SentPlan, result: StepResult) -> None:
        """Give each row what it drew; a row that ends there is free after this."""
        rows, now = self._rows, self._clock()
        self._keep_scores(sent, result, now)
        self._keep_hidden(sent, result, now)
        live = sent.live(rows)
        failed = [line for line in result.failed if line in live]
        if result.candidates is not None:
            offering = rows.num_candidates[sent.rows[live]] > 0
            lines = np.setdiff1d(live[offering], failed).tolist()
            self._commit_beams(sent, result.candidates, lines, now)
            live = live[~offering]
        at = sent.rows[live]
        self._date_first_tokens(at[result.counts[live] > 0], now)
        drawn = judged(rows, at, live, result, self._accept_all)
        self._keep_logprobs(drawn, result.logprobs)
        rows.append_outputs(at, drawn.tokens, drawn.kept)
        self._guesses.settle(sent.plan, result)
        self._trials.settle(sent.plan, drawn, sent.rows[list(result.held)])
        self._jumps.take(drawn)
        self._look_at_full(drawn)
        for row in drawn.going_on(rows.watched):
            self._reports.grew(rows.sequence(row), rows.output_ids(row))
        self._finish(at[drawn.ended].tolist(), now)
        self._fail(sent, result, failed)
        self._held.add(result.held, sent.rows, sent.placements)

    def _keep_scores(self, sent: SentPlan, result: StepResult, now: float) -> None:
        """Give each slice's row its scores, in order: a later one may rely on an earlier one's."""
        for i, one in enumerate(sent.plan.prefill):
            scores = result.scored.get(i)
            if scores is None:
                continue
            row, placement = one.row, sent.slice_placements[i]
            error = invalid(scores) if one.targets and not one.targets.as_asked else None
            if error is not None and self._rows.placement[row] == placement:
                self._reports.fail(self._placements.end(row), error)
            elif self._scoring.commit(row, placement, scores):
                self._rows.sequence(row).finish_reason = "length"
                self._finish([row], now)

    def _keep_hidden(self, sent: SentPlan, result: StepResult, now: float) -> None:
        """Give each slice's row its hidden states; one whose prompt is computed ends with them."""
        for i, states in result.hidden.items():
            one = sent.plan.prefill[i]
            row, end = one.row, one.start + len(one.token_ids)
            if self._rows.placement[row] != sent.slice_placements[i]:
                continue
            sequence = self._rows.sequence(row)
            sequence.hidden.append(states)
            if (error := not_finite(states)) is not None:
                self._reports.fail(self._placements.end(row), error)
            elif end == sequence.request.num_prompt:
                sequence.finish_reason = "stop"
                sequence.timings.first_token = now
                self._finish([row], now)

    def _commit_beams(
        self, sent: SentPlan, candidates: Candidates, lines: list[int], now: float
    ) -> None:
        """Give each group the offers of its rows; a group with all offers takes its next step."""
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
            except EngineError:
                raise
            except QuireError as error:
                self._reports.fail(self._beams.leave(group), error)
            else:
                if group.search.over:
                    self._finish_group(group, now)

    def _finish_group(self, group: BeamGroup, now: float) -> None:
        lead = self._beams.leave(group)
        if not group.answers:
            self._reports.fail(lead, no_answer())
            return
        best = group.answers[0]
        lead.output_ids, lead.finish_reason = best.output_ids, best.finish_reason
        self._reports.finish(lead, now)

    def _date_first_tokens(self, at: Ints, now: float) -> None:
        rows = self._rows
        for row in at[rows.known[at] == rows.num_prompt[at]].tolist():
            rows.sequence(row).timings.first_token = now

    def _keep_logprobs(self, drawn: Drawn, blocks: tuple[DrawnScores, ...]) -> None:
        """Give rows that want them the logprobs of the tokens that they keep."""
        found = _by_line(blocks)
        for i in np.flatnonzero(self._rows.scored[drawn.rows] & (drawn.kept > 0)).tolist():
            mine = found.get(int(drawn.lines[i]))
            if mine is not None:
                scores, first = mine
                part = scores.part(first, first + int(drawn.kept[i]))
                self._rows.sequence(int(drawn.rows[i])).logprobs.append(part)

    def _look_at_full(self, drawn: Drawn) -> None:
        """Rows that are full, but were to be looked at then, go on unless something else ended
        them."""
        rows, at = self._rows, drawn.rows
        for i in np.flatnonzero(rows.looked_at[at] & (rows.known[at] == rows.limit[at])).tolist():
            row = int(at[i])
            sequence, written = rows.sequence(row), rows.output_ids(row)
            stopped = is_stop(sequence.request, int(written[-1]), len(written))
            if sequence.finish_reason is None and not stopped:
                drawn.ended[i] = self._go_on(row, sequence, written)

    def _go_on(self, row: int, sequence: Sequence, written: Ints) -> bool:
        """Append the tokens that must come next, so that the row goes on; True if it ends."""
        if sequence.thoughts is None:
            return True
        tokens = for_row("its thoughts were followed", sequence.thoughts.forced_after, written)
        if isinstance(tokens, QuireError):
            fail(sequence, tokens)
            return True
        kept = judge(sequence, tokens, len(written), written)
        self._placements.force(row, tokens[:kept])
        self._rows.set_limit(row)
        return sequence.finish_reason is not None

    def _finish(self, some: list[int], now: float) -> None:
        """End these rows, in this order."""
        if not some:
            return
        for sequence in self._placements.end_all(some):
            if sequence.finish_reason is None:
                stop_by_last(sequence)
            self._reports.finish(sequence, now)

    def _fail(self, sent: SentPlan, result: StepResult, lines: list[int]) -> None:
        """These lines of a result could draw no further token."""
        for line in lines:
            row = int(sent.rows[line])
            # It may have ended with its search, or by the tokens that it drew before.
            if self._rows.placement[row] == sent.placements[line]:
                why = result.errors.get(line)
                left_none, given = line in result.left_none, self._rows.output_ids(row)
                sequence = self._rows.sequence(row)
                error = ProcessorFailed(why) if why else _failure(sequence, left_none, len(given))
                self._reports.fail(self._beams.take_out(row), error)


def _by_line(blocks: tuple[DrawnScores, ...]) -> dict[int, tuple[Scores, int]]:
    """Where the scores of each row's tokens begin: {line: (the scores, the first line there)}."""
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


def _failure(sequence: Sequence, left_none: bool, num_outputs: int) -> QuireError:
    """Why a row could draw no token: its grammar's reason, its constraints, or bad logits."""
    if sequence.guide is not None and sequence.guide.error is not None:
        return sequence.guide.error
    if left_none:
        request = sequence.request
        return no_token_left(request.params, num_outputs, processors=bool(request.processors))
    return InvalidLogits(
        "the model gave NaN or infinite logits for this row, so no token could be drawn; the other "
        "rows went on. Try dtype='float32', or check the weights."
    )
