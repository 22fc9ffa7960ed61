"""Beams in rows: a search is a group of rows, whose beams fork by sharing blocks.

A group has a row for each beam from its admission to its end; which beam is in which row changes.
Each step every beam offers its candidates, and when all offers have come the rule (beam_rule.py)
chooses. The first child of a beam stays in its row; further children take over the rows of beams
that have no child: their blocks are released, and the parent's are shared (the partly filled last
one is copied when it is written). The next plan feeds the chosen tokens.

A group wider than all rows there are takes every row, and its beams take turns in them. A beam
that has made its offer leaves its row to one that has not (`SavedRow`: its tokens, and the blocks
that it goes on holding). All beams are of one length, so a step of the search is the same work in
several plans, and the rule chooses when all offers of all turns have come.

A group waits, is preempted and ends as a whole; its lead stands for it. After a preemption it
begins again with the same beams: they are computed one after the other, each over the whole blocks
it has in common with one before it, so a group never needs more blocks than when it left. A group
that takes every row runs alone and is never preempted, so saved beams need not come back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from quire.errors import NoTokenLeft
from quire.request import Ints, Request
from quire.sampling_params import BeamSearchParams
from quire.scheduler.beam_guides import ask, completes, forked
from quire.scheduler.beam_rule import Answer, BeamSearch, SearchRules, Trail
from quire.scheduler.draft import Draft
from quire.scheduler.placements import Placements, SavedRow
from quire.scheduler.sequence import Guide, Sequence
from quire.scheduler.stopping import UNFINISHED
from quire.step import Chosen, Floats, Scores


class BeamGroup:
    """One search and the rows it has. Written by Beams alone."""

    def __init__(self, rules: SearchRules, request: Request, order: int, *, num_best: int) -> None:
        """`num_best` of the answers are wanted, `rules.width` at most."""
        self.lead = Sequence(request, order=order, group=self)
        self.search = BeamSearch(rules, lambda beam, token: ask(self._ends, beam, token))
        self.answers: list[Sequence] = []  # once it is over, best first
        self.num_best = num_best
        self.places: list[int | SavedRow] = []  # of the beams: a row, or what was saved of one
        self.spare_rows: list[int] = []  # rows that no beam is in
        self.guides: list[Guide | None] = []  # of the beams
        self.offers: dict[int, tuple[Ints, Floats]] = {}  # by beam
        self.num_begun = 0  # beams that were computed, or are being computed
        never, not_first = request.params._suppressed_token_ids
        self._never, self._not_at_first = np.array(never, np.int32), [*never, *not_first]

    @property
    def width(self) -> int:
        return self.search.rules.width

    @property
    def num_beams(self) -> int:
        return len(self.search.beams)

    def num_rows(self, capacity: int) -> int:
        """How many rows it takes: one for each beam, or all that there are."""
        return min(self.width, capacity)

    @property
    def num_candidates(self) -> int:
        """Enough of them, even if all that may not be written are among them."""
        return self.search.rules.num_candidates + len(self._not_at_first)

    def allowed(self, tokens: Ints, logprobs: Floats) -> tuple[Ints, Floats]:
        """A beam's candidates without the tokens that the model never writes, as many as the rule
        looks at. Suppressed tokens still count in the others' probabilities, as in Transformers."""
        never = self._never if self.search.num_tokens else self._not_at_first
        kept = np.flatnonzero(~np.isin(tokens, never))[: self.search.rules.num_candidates]
        return tokens[kept], logprobs[kept]

    @property
    def rows(self) -> list[int]:
        """The rows that the group has, with a beam in them or not."""
        return [place for place in self.places if isinstance(place, int)] + self.spare_rows

    @property
    def is_ready(self) -> bool:
        """Every beam has made its offer."""
        return len(self.offers) == len(self.search.beams)

    def _ends(self, beam: int, token: int) -> bool:
        """Whether a beam ends with this token. An end id in the middle of a grammar does not end
        the beam; in a search without end ids, the end of the grammar does."""
        guide, end_ids = self.guides[beam], self.search.rules.end_ids
        if token in end_ids or guide is None:
            return token in end_ids and (guide is None or guide.is_complete)
        if end_ids:
            return False
        trial = guide.fork()
        return trial.accept(token) and trial.is_stopped


def search_lead(request: Request, search: BeamSearchParams, order: int) -> Sequence:
    """The sequence that stands for a search; its answers are in its group when it ends."""
    rules = SearchRules(
        width=search.beam_width,
        max_tokens=request.max_tokens,
        end_ids=request.eos_ids | request.stop_ids,
        length_penalty=search.length_penalty,
        early_stopping=search.early_stopping,
    )
    return BeamGroup(rules, request, order, num_best=search.n or search.beam_width).lead


class Beams:
    """Moves the beams of groups through rows."""

    def __init__(
        self,
        placements: Placements,
        expected_output: Callable[[Request], float],
    ) -> None:
        self._placements, self._rows = placements, placements.rows
        self._expected_output = expected_output

    def enter(self, lead_row: int, draft: Draft) -> None:
        """The lead began in its row: take the group's other rows, for the other beams."""
        group = _group(self._rows.sequence(lead_row))
        rows, group.num_begun = [lead_row], 1
        group.guides = group.guides or [group.lead.guide]
        expected = self._expected_output(group.lead.request)
        for i in range(1, group.num_rows(self._rows.capacity)):
            seat = Sequence(group.lead.request, i, group.lead.order, group=group)
            if i < len(group.search.beams):
                seat.output_ids = group.search.beams[i].token_ids()
                seat.guide = group.guides[i]
            row = self._placements.enter(seat, expected, draft)
            self._rows.park(row)
            rows.append(row)
        num_beams = len(group.search.beams)
        group.places, group.spare_rows = [*rows[:num_beams]], rows[num_beams:]

    def begin_next(self, row: int, draft: Draft) -> int | None:
        """A row was computed to its end: the row of the beam to compute next, if there is one."""
        sequence = self._rows.sequence(row)
        if sequence.group is None or (group := _group(sequence)).num_begun == group.num_beams:
            return None
        following = group.rows[group.num_begun]  # none is saved: row i is that of beam i
        sequence, pool = self._rows.sequence(following), self._placements.pool
        self._rows.unpark(following)
        shared = self._in_common(group, sequence.token_ids)
        cached = pool.match(sequence.token_ids, salt=sequence.request.cache_salt)
        if shared.shape[1] > len(cached):
            self._placements.share_unpublished(following, shared, draft)
        else:
            self._placements.share_prefix(following, cached, draft)
        group.num_begun += 1
        return following

    def _in_common(self, group: BeamGroup, token_ids: Ints) -> Ints:
        """The most whole blocks that these tokens share with a beam that was begun and still has
        those of them that the token after them sees."""
        rows, size = self._rows, self._placements.pool.block_size
        best: Ints = np.empty((self._placements.pool.num_groups, 0), np.int32)
        for row in group.rows[: group.num_begun]:
            theirs = rows.sequence(row).token_ids
            differs = np.flatnonzero(theirs != token_ids)  # beams are of one length
            common = min(int(differs[0]), int(rows.computed[row]))
            count = common // size
            if count > best.shape[1] and self._placements.pool.covers(
                rows.given_back[:, row], count
            ):
                best = rows.block_ids(row)[:, :count].copy()
        return best

    def searched(self, draft: Draft, at: Ints) -> Ints:
        """The rows of a plan that offer candidates: of its slices, and of its decode rows `at`."""
        drawing = [row for piece in draft.prefill for row in piece.sample_into]
        rows: Ints = np.concatenate([np.array(drawing, np.int32), at])
        return rows[self._rows.num_candidates[rows] > 0]

    def chosen(self, at: Ints) -> Chosen:
        """The last tokens of decode rows where the device has another token: of beams, for which
        the rule chose, and of rows that did not keep all that they drew."""
        rows = self._rows
        some = at[(rows.num_candidates[at] > 0) | rows.taken_back[at]]
        rows.taken_back[some] = False
        return Chosen(some, rows.outputs[some, rows.known[some] - rows.num_prompt[some] - 1])

    def offer(self, row: int, tokens: Ints, logprobs: Floats) -> BeamGroup:
        """A row's candidates have come: the next beam without an offer takes the row, if there is
        one. Returns the group, which may be ready now."""
        group = _group(self._rows.sequence(row))
        beam = group.places.index(row)
        group.offers[beam] = group.allowed(tokens, logprobs)
        for other, place in enumerate(group.places):
            if isinstance(place, SavedRow) and other not in group.offers:
                group.places[beam] = self._placements.save(row)
                self._return(group, other, row)
                break
        return group

    def _return(self, group: BeamGroup, beam: int, row: int) -> None:
        """Put a saved beam into a row that no beam is in."""
        saved = group.places[beam]
        if not isinstance(saved, SavedRow):
            raise RuntimeError("a beam that is in a row cannot take another")
        self._placements.restore(row, saved)
        self._guide(row, group.guides[beam])
        group.places[beam] = row

    def _guide(self, row: int, guide: Guide | None) -> None:
        self._rows.sequence(row).guide = guide
        self._rows.guided[row] = guide is not None

    def decide(self, group: BeamGroup) -> None:
        """Choose among the offers of a group that is ready, and put the next beams into rows.

        Raises the error of a grammar that fails, or of a fault in its code; the group can then
        still leave its rows.
        """
        offers = [group.offers[beam] for beam in range(len(group.search.beams))]
        group.offers = {}
        tokens, logprobs = (np.array(part) for part in zip(*offers, strict=True))
        group.search.advance(tokens, logprobs)
        if group.search.over:
            group.answers = [
                self._answer(group, i, answer)
                for i, answer in enumerate(group.search.answers[: group.num_best])
            ]
        else:
            self._place(group)

    def _place(self, group: BeamGroup) -> None:
        """Put the chosen beams into their parents' rows, or rows of beams without a child. A beam
        that finds no row is saved, with its parent's blocks."""
        parents = [beam.parent for beam in group.search.beams]
        guides = forked(group.guides, parents)  # before any block moves: one may fail
        childless = [place for i, place in enumerate(group.places) if i not in parents]
        self._release_saved(childless)
        spare = [*group.spare_rows, *(place for place in childless if isinstance(place, int))]
        settled: set[int] = set()
        places: list[int | SavedRow] = []
        for parent in parents:
            if parent in settled:
                places.append(self._beside(group.places[parent], spare))
            else:
                settled.add(parent)
                places.append(group.places[parent])
        for row in spare:
            self._placements.vacate(row)
        group.places, group.spare_rows, group.guides = places, spare, guides
        self._append(group, [beam.trail.token for beam in group.search.beams if beam.trail])
        for beam, place in enumerate(group.places):
            if isinstance(place, SavedRow) and group.spare_rows:
                self._return(group, beam, group.spare_rows.pop())

    def _release_saved(self, places: list[int | SavedRow]) -> None:
        """Give back the blocks of beams that are in no row."""
        for place in places:
            if isinstance(place, SavedRow):
                self._placements.pool.release(place.blocks)

    def _beside(self, parent: int | SavedRow, spare: list[int]) -> int | SavedRow:
        """A place for another child of a beam: a spare row, or a saved one, over its blocks."""
        if isinstance(parent, int) and spare:
            row = spare.pop()
            self._placements.copy_from(row, parent)
            return row
        saved = self._placements.as_saved(parent) if isinstance(parent, int) else parent
        self._placements.pool.share(saved.blocks)
        return saved

    def _append(self, group: BeamGroup, tokens: list[int]) -> None:
        """Give each beam the token that was chosen for it."""
        rows = [place for place in group.places if isinstance(place, int)]
        chosen = [t for t, p in zip(tokens, group.places, strict=True) if isinstance(p, int)]
        column = np.array(chosen, np.int32)[:, None]
        self._rows.append_outputs(np.array(rows, np.int32), column, np.ones(len(rows), np.int32))
        for beam, (place, guide) in enumerate(zip(group.places, group.guides, strict=True)):
            token = tokens[beam]
            if isinstance(place, SavedRow):
                group.places[beam] = replace(place, output_ids=np.append(place.output_ids, token))
            else:
                self._guide(place, guide)
            if guide is not None and not ask(guide.accept, token) and guide.error is not None:
                raise guide.error

    def _answer(self, group: BeamGroup, i: int, answer: Answer) -> Sequence:
        lead = group.lead
        steps = answer.beam.trail.steps() if answer.beam.trail else []
        made = Sequence(lead.request, i, lead.order, group=group)
        made.output_ids = answer.beam.token_ids()
        made.logprobs = [_logprobs(step, 2 * group.width) for step in steps]
        made.num_cached, made.timings = lead.num_cached, lead.timings
        made.finish_reason = "length" if answer.by_length else "stop"
        last = int(made.output_ids[-1])
        if not answer.by_length:
            made.stop_reason = last if last in lead.request.stop_ids else None
            return made
        # Only this step can end by length, so the parent's guide is still here.
        guide = group.guides[answer.beam.parent]
        if guide is not None and not ask(completes, guide, last):
            made.stop_reason = UNFINISHED
        return made

    def take_out(self, row: int) -> Sequence:
        """End a row, or the whole group of a beam; returns what waits or ends for it."""
        sequence = self._rows.sequence(row)
        return self._placements.end(row) if sequence.group is None else self.leave(_group(sequence))

    def leave(self, group: BeamGroup) -> Sequence:
        """Take a group out of its rows and keep its beams; returns its lead, which waits or ends
        for all of them."""
        for row in group.rows:
            self._placements.end(row)
        self._release_saved(group.places)
        group.places, group.spare_rows, group.offers, group.num_begun = [], [], {}, 0
        lead = group.lead
        if group.search.beams:
            lead.output_ids, lead.guide = group.search.beams[0].token_ids(), group.guides[0]
        return lead


def _logprobs(step: Trail, most: int) -> Scores:
    """The scores of a step: its token, and at most `most` of the likeliest that were allowed."""
    place = step.place
    count = min(most, int((step.logprobs > -np.inf).sum()))
    return Scores(
        np.array([step.token], np.int32),
        step.logprobs[place : place + 1],
        np.array([place + 1], np.int32),
        step.candidates[None, :count],
        step.logprobs[None, :count],
    )


def _group(sequence: Sequence) -> BeamGroup:
    if not isinstance(sequence.group, BeamGroup):
        raise RuntimeError("a row that offers candidates belongs to no search")
    return sequence.group


def no_answer() -> NoTokenLeft:
    """The error of a search that found nothing."""
    return NoTokenLeft(
        "no beam could be continued to an end: the constraints leave no token. Loosen the "
        "grammar, or raise beam_width."
    )
