"""Tokens guessed ahead: what followed when a row's last tokens occurred before.

When few rows decode, a pass costs what reading the weights costs, so a few more positions are
nearly free. A row then feeds its last token and, after it, guesses at the next ones. It draws at
each of these positions and keeps what it drew as far as the guesses were right. Noise belongs to a
position, so these are the tokens it would have drawn one by one, greedy or not.

Rows whose next draw depends on earlier tokens by more than the model's logits do not guess:
those with penalties, bad words, grammars or logits processors, and beams.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.config import Speculation
from quire.request import Ints
from quire.scheduler.draft import Draft
from quire.scheduler.pass_times import PassTimes
from quire.scheduler.placements import Placements
from quire.scheduler.rows import Rows
from quire.scheduler.sequence import Sequence
from quire.scheduler.waiting import Waiting
from quire.step import DecodeRows, Guessing, Slice, StepPlan, StepResult

Chances = npt.NDArray[np.float64]

# With more rows than this a pass is bound by arithmetic, and looking for guesses takes its time.
MOST_ROWS = 32
# The chance that a guess is right, by how many tokens before it agree: measured on answers of the
# default model, greedy and drawn. After a right guess one more token agrees.
CHANCES = np.array([0.0, 0.1, 0.3, 0.45, 0.55, 0.6, 0.65, 0.8, 0.9])
MOST_CHANCE = 0.98
# The guesses of a row count from OWN_PRIOR expected ones on more than those of all rows, and those
# of all rows from COMMON_PRIOR on more than the table.
OWN_PRIOR, COMMON_PRIOR = 1.0, 4.0
FADING = 0.99  # of the counts of earlier guesses, in each step
# Chances and times are estimates, and the rows of a pass must gain together: a guess must bring so
# many times what it costs.
DEMAND = 1.5
# When no sequence waits for a row, only the rows that will be left at the end count. A row with
# less than this share of the longest remaining text would only finish before the others.
LAST = 0.95


def look_up(tokens: Ints, shortest: int, longest: int) -> tuple[int, int]:
    """(where the text went on, how many tokens agreed) after the last tokens occurred before.

    As many as possible of the last tokens agree, at most `longest`, and of several such places
    the latest is taken; (0, 0) if fewer than `shortest` agree anywhere.
    [1 2 3 9 2 3 5 1 2 3] -> (3, 3), since [1 2 3] went on with the 9.
    """
    last = len(tokens) - 1
    ends = np.flatnonzero(tokens[:last] == tokens[last])
    agreed = min(len(ends), 1)
    while 0 < agreed < longest:
        further = ends[ends >= agreed]
        further = further[tokens[further - agreed] == tokens[last - agreed]]
        if not len(further):
            break
        ends, agreed = further, agreed + 1
    if agreed < max(shortest, 1):
        return 0, 0
    return int(ends[-1]) + 1, agreed


def continuation(tokens: Ints, begin: int, count: int) -> Ints:
    """`count` tokens from `begin` on. After the last token they start at `begin` again, because a
    text that came twice without a pause is likely to come a third time."""
    return tokens[begin + np.arange(count) % (len(tokens) - begin)]


def allot(
    gains: list[Chances], num_rows: int, num_counting: int, line: tuple[float, float]
) -> Ints:
    """How many tokens to guess for each row, so that the pass makes the most tokens a second.

    gains[i][j] is the chance that row i keeps one more token for its guess j; it falls with j.
    `num_rows` tokens are drawn anyway, `num_counting` of them by rows that may guess. A guess is
    worth it while its gain per cost is well above that of the pass without it. `line` is (seconds
    of a pass, seconds of each position).
    """
    fixed, each = line
    every = np.concatenate(gains)
    owners = np.repeat(np.arange(len(gains)), [len(some) for some in gains])
    order = np.argsort(-every, kind="stable")
    best = every[order]
    tokens = num_counting + np.cumsum(best) - best  # without the guess
    seconds = fixed + each * (num_rows + np.arange(len(best)))
    worth = best * seconds > DEMAND * tokens * each
    num_worth = len(best) if worth.all() else int(worth.argmin())
    return np.bincount(owners[order[:num_worth]], minlength=len(gains)).astype(np.int32)


def can_guess(sequence: Sequence) -> bool:
    """Whether a row's draw depends only on the logits and the position."""
    request, params = sequence.request, sequence.request.params
    remembers = params.presence_penalty or params.frequency_penalty or params.bad_words
    return not (
        remembers
        or params.repetition_penalty != 1.0
        or sequence.guide is not None
        or sequence.group is not None
        or request.processors
        or request.continuations
    )


def _usual(agreed: int, count: int) -> Chances:
    """The chance of each of `count` guesses to be right if those before it are."""
    return CHANCES[np.minimum(agreed + np.arange(count), len(CHANCES) - 1)]


@dataclass(frozen=True, slots=True)
class _Found:
    """A place in a row's own tokens that may show how it goes on."""

    row: int
    tokens: Ints
    begin: int
    agreed: int
    gains: Chances  # of each guess: the chance that it and all before it are right


class Guesses:
    """Which rows guess, how many tokens, and how right they were. In this class no row does."""

    def __init__(
        self, placements: Placements, waiting: Waiting, times: PassTimes | None = None
    ) -> None:
        self.rows: Rows = placements.rows
        self.times, self.num_guessed, self.num_accepted = times or PassTimes(), 0, 0
        self._placements, self._waiting = placements, waiting

    def ready(self, at: Ints) -> Ints:
        """The decode rows that can be planned now: others wait for tokens that are being drawn."""
        return at

    def plan(self, decode: DecodeRows, draft: Draft) -> DecodeRows:
        """Make slices of the decode rows that guess, with blocks for them; returns the others."""
        return decode

    def most_passes(self, at: Ints, most: int) -> int:
        """How many passes a plan of these decode rows may have, at most `most`."""
        return most

    def in_passes(
        self, at: Ints, repeat: int, draft: Draft, *, alone: bool
    ) -> tuple[int, Guessing | None]:
        """How many passes the plan has, at most `repeat`, and how a device guesses in each."""
        return repeat, None

    def settle(self, plan: StepPlan, result: StepResult) -> None:
        """Set each row that guessed, and is still there, to where its tokens end; its known tokens
        include those that it keeps."""

    def observe(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        """Learn from a pass that took `seconds`."""


class HostGuesses(Guesses):
    """Rows guess what the host finds in their own tokens, where measured times say it pays."""

    def __init__(
        self,
        placements: Placements,
        waiting: Waiting,
        speculation: Speculation,
        times: PassTimes | None,
    ) -> None:
        super().__init__(placements, waiting, times)
        self._speculation = speculation
        capacity = placements.rows.capacity
        self._known = np.zeros(capacity, np.int64)  # the placement that the columns are about
        self._able = np.zeros(capacity, bool)
        self._awaited = np.zeros(capacity, np.int64)  # the placement whose guesses are awaited
        self._agreed = np.zeros(capacity, np.int64)  # tokens that agreed before these guesses
        # How many guesses of the row were right, and how many were expected to be.
        self._right, self._expected = np.zeros(capacity), np.zeros(capacity)
        self._all_right = self._all_expected = 0.0

    def ready(self, at: Ints) -> Ints:
        """A row with guesses waits for their result. And while few rows run, a row that can guess
        waits for its last token, because guesses are made from it."""
        rows = self.rows
        waits = self._awaited[at] == rows.placement[at]
        if len(at) <= MOST_ROWS:
            self._set_up_new(at)
            waits |= self._able[at]
        ready: Ints = at[~waits | (rows.known[at] == rows.planned[at])]
        return ready

    def plan(self, decode: DecodeRows, draft: Draft) -> DecodeRows:
        if not 0 < len(decode) <= MOST_ROWS:
            return decode
        self._set_up_new(decode.rows)
        self._fade(decode.rows)
        counting = np.ones(len(decode), bool)
        if not len(self._waiting):
            remaining = self.rows.remaining(decode.rows)
            counting = remaining >= LAST * remaining.max()
        line, num_counting = self.times.line(), int(counting.sum())
        least = DEMAND * line[1] * num_counting / (line[0] + line[1] * len(decode))
        found = self._find(decode.rows[counting], draft.budget, least)
        if not found:
            return decode
        counts = allot([one.gains for one in found], len(decode), num_counting, line).tolist()
        guessing = [
            one.row
            for one, count in zip(found, counts, strict=True)
            if count and self._plan_slice(one, count, draft)
        ]
        others = ~np.isin(decode.rows, guessing)
        return DecodeRows(decode.rows[others], decode.positions[others])

    def _fade(self, at: Ints) -> None:
        self._expected[at] *= FADING
        self._right[at] *= FADING
        self._all_expected *= FADING
        self._all_right *= FADING

    def _set_up_new(self, at: Ints) -> None:
        """Set up the columns of rows that hold a new placement."""
        placement = self.rows.placement
        for row in at[self._known[at] != placement[at]].tolist():
            self._known[row] = placement[row]
            self._able[row] = can_guess(self.rows.sequence(row))
            self._expected[row] = self._right[row] = 0.0

    def _find(self, at: Ints, budget: int, least: float) -> list[_Found]:
        """What the rows could guess, where the guesses may have at least the chance `least`."""
        rows, asked = self.rows, self._speculation
        common = (COMMON_PRIOR + self._all_right) / (COMMON_PRIOR + self._all_expected)
        luck = (OWN_PRIOR * common + self._right[at]) / (OWN_PRIOR + self._expected[at])
        most = np.minimum(rows.limit[at] - rows.known[at] - 1, min(asked.num_tokens, budget))
        able = self._able[at] & (rows.known[at] == rows.planned[at]) & (most > 0)
        found = []
        for i in np.flatnonzero(able & (luck * CHANCES[-1] > least)).tolist():
            tokens = rows.known_tokens(int(at[i]))
            begin, agreed = look_up(tokens, asked.shortest, asked.longest)
            if agreed:
                each_right = np.minimum(luck[i] * _usual(agreed, int(most[i])), MOST_CHANCE)
                found.append(_Found(int(at[i]), tokens, begin, agreed, np.cumprod(each_right)))
        return found

    def _plan_slice(self, one: _Found, count: int, draft: Draft) -> bool:
        """Feed the row's last token and guesses after it, as many as there are blocks for."""
        rows, pool, row = self.rows, self._placements.pool, one.row
        start = int(rows.computed[row])
        free = pool.num_free // pool.num_groups
        room = (int(rows.num_blocks[row]) + free) * pool.block_size - start - 1
        count = min(count, room, draft.budget)
        if count <= 0:
            return False
        self._placements.grow_to(row, start + 1 + count, draft)
        guessed = continuation(one.tokens, one.begin, count)
        fed = np.concatenate([one.tokens[start:], guessed])
        draft.prefill.append(Slice(row, start, fed, (row,), num_guessed=count))
        draft.budget -= count
        rows.computed[row] += count + 1
        rows.planned[row] += count + 1
        self._awaited[row], self._agreed[row] = rows.placement[row], one.agreed
        return True

    def settle(self, plan: StepPlan, result: StepResult) -> None:
        rows, entry = self.rows, 0
        for one in plan.prefill:
            row, count = one.row, int(result.counts[entry : entry + 1].sum())
            entry += len(one.sample_into)
            if not one.num_guessed or self._awaited[row] != rows.placement[row]:
                continue
            self._awaited[row] = 0
            rows.planned[row], rows.computed[row] = rows.known[row], rows.known[row] - 1
            right = max(count - 1, 0)
            tested = right + (right < one.num_guessed)
            expected = float(_usual(int(self._agreed[row]), tested).sum())
            self._right[row] += right
            self._all_right += right
            self._expected[row] += expected
            self._all_expected += expected
            self.num_guessed += one.num_guessed
            self.num_accepted += right

    def observe(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        if plan.repeat > 1 or result.held or len(plan.released):
            return
        if all(one.num_guessed for one in plan.prefill):
            self.times.observe(plan.num_tokens, seconds)
