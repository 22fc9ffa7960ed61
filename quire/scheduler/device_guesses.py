"""Guesses that a device looks up by itself in every pass: for which rows, and when it pays.

While few rows decode and no sequence waits, a plan may say that its rows guess (step.Guessing):
each feeds its last token and some guesses in every pass, and keeps the right ones. How far the rows
get is known when the plan's result arrives, so they are not planned again before that.

Whether to guess does not depend on measured times, so the same run makes the same plans. It depends
on how many tokens a pass brings a row. For a row that guessed this number is known. For one that
did not, it is estimated from its own text: guesses are looked up as if before some of its last
tokens, and compared with them. So no guesses are fed for a text that does not repeat itself.
"""

from __future__ import annotations

import numpy as np

from quire.config import Speculation
from quire.request import Ints
from quire.scheduler.draft import Draft
from quire.scheduler.guesses import (
    LAST,
    Guesses,
    HostGuesses,
    can_guess,
    continuation,
    look_up,
)
from quire.scheduler.pass_times import PassTimes
from quire.scheduler.placements import Placements
from quire.scheduler.waiting import Waiting
from quire.step import (
    MOST_GUESSES,
    MOST_HISTORY,
    Guessing,
    StepPlan,
    StepResult,
    no_ints,
)

MOST_ROWS = 16
FEW_GUESSES = 3  # of a row in a pass, where more lines cost time
NEEDED = 1.6  # tokens that a pass must bring each row: a pass with guesses takes longer
# A row is judged again after JUDGED_AFTER new tokens, at NUM_JUDGED places of its text, by guesses
# at JUDGED_TOKENS tokens each.
JUDGED_AFTER, NUM_JUDGED, JUDGED_TOKENS = 16, 8, 3
# Passes of a plan while a row is not judged yet, and of the first plan with guesses.
FIRST_PASSES = 8
# Tokens for which a row does not guess after guesses that were not worth it; doubled each time.
LEFT_ALONE, MOST_ALONE = 64, 1024


def tokens_a_pass(tokens: Ints, first: int, asked: Speculation) -> float:
    """How many tokens a pass with a few guesses would have brought at the end of `tokens`, on
    average. The row wrote the tokens from `first` on; those before are its prompt."""
    count = min(asked.num_tokens, JUDGED_TOKENS)
    found = []
    for end in range(len(tokens) - count, first, -count - 1)[:NUM_JUDGED]:
        begin, agreed = look_up(tokens[:end], asked.shortest, asked.longest)
        right = 0
        if agreed:
            same = continuation(tokens[:end], begin, count) == tokens[end : end + count]
            right = count if same.all() else int(same.argmin())
        found.append(1 + right)
    return float(np.mean(found)) if found else 1.0


class DeviceGuesses(Guesses):
    """Which plans have guesses, and what came of them."""

    def __init__(
        self,
        placements: Placements,
        waiting: Waiting,
        speculation: Speculation,
        times: PassTimes | None,
    ) -> None:
        super().__init__(placements, waiting, times)
        self._asked = speculation
        capacity = placements.rows.capacity
        self._known = np.zeros(capacity, np.int64)  # the placement that the columns are about
        self._able = np.zeros(capacity, bool)
        self._awaited = np.zeros(capacity, np.int64)  # the placement whose result is awaited
        self._alone = np.zeros(capacity, bool)  # a plan with this row in it has no guesses
        self._per_pass = np.ones(capacity)  # tokens that a pass with guesses brings it
        self._judge_at = np.zeros(capacity, np.int64)  # the length at which it is judged next
        self._wait = np.zeros(capacity, np.int64)  # tokens until then, after guesses that failed
        self._has_guessed = np.zeros(capacity, bool)

    def ready(self, at: Ints) -> Ints:
        """The decode rows that can be planned now. Before rows guess, all tokens that they draw
        must have arrived, and before they go on, the results of their guesses."""
        rows = self.rows
        at = at[self._awaited[at] != rows.placement[at]]
        if (rows.known[at] != rows.planned[at]).any() and self._is_worth_it(at):
            return at[:0]
        return at

    def most_passes(self, at: Ints, most: int) -> int:
        """Few passes while rows are new, so that their text is judged soon."""
        if not 0 < len(at) <= MOST_ROWS:
            return most
        self._set_up_new(at)
        new = self._able[at] & (self.rows.known[at] < self._judge_at[at])
        new &= ~self._has_guessed[at] & (self._wait[at] == 0)
        return min(most, FIRST_PASSES) if new.any() else most

    def in_passes(
        self, at: Ints, repeat: int, draft: Draft, *, alone: bool
    ) -> tuple[int, Guessing | None]:
        """How many passes a plan of these rows has, at most `repeat`, and how it guesses; the rows
        get the blocks for all that may come. (repeat, None) if the plan does not guess."""
        rows, pool = self.rows, self._placements.pool
        at_home = alone and not draft.prefill and bool((rows.known[at] == rows.planned[at]).all())
        if not at_home or not self._is_worth_it(at):
            return repeat, None
        count = self._num_guesses(len(at))
        left = rows.limit[at] - rows.planned[at]
        passes = min(repeat, int(np.ceil(left / self._per_pass[at]).max()))
        if not self._has_guessed[at].any():
            passes = min(passes, FIRST_PASSES)
        while passes:
            lacking = self._placements.lacking(at, passes * (1 + count))
            if pool.fits(2 * int(lacking.sum())):  # others may want some before this plan lands
                break
            passes //= 2
        if not passes:
            return repeat, None
        self._placements.grow(at, lacking, draft)
        self._awaited[at] = rows.placement[at]
        return passes, self._guessing(at, count)

    def _guessing(self, at: Ints, count: int) -> Guessing:
        histories = [
            self.rows.known_tokens(row)[-MOST_HISTORY:] if self._able[row] else no_ints()
            for row in at.tolist()
        ]
        lengths = np.array([len(one) for one in histories], np.int32)
        tokens = np.zeros((len(at), int(lengths.max())), np.int32)
        for line, one in zip(tokens, histories, strict=True):
            line[: len(one)] = one
        return Guessing(count, self._asked.shortest, self._asked.longest, tokens, lengths)

    def _num_guesses(self, num_rows: int) -> int:
        """Guesses of each row in a pass: as many as are nearly free, and a few in any case."""
        places = 1 << (num_rows - 1).bit_length()
        count = max(FEW_GUESSES, self._asked.device_lines // places - 1)
        return min(count, MOST_GUESSES, self._asked.num_tokens)

    def _set_up_new(self, at: Ints) -> None:
        placement = self.rows.placement
        for row in at[self._known[at] != placement[at]].tolist():
            sequence = self.rows.sequence(row)
            request = sequence.request
            self._known[row], self._able[row] = placement[row], can_guess(sequence)
            guided = sequence.guide is not None
            self._alone[row] = bool(
                self.rows.waits_for_host[row] or guided or request.adapter_number or request.heard
            )
            self._per_pass[row], self._wait[row], self._has_guessed[row] = 1.0, 0, False
            self._judge_at[row] = self.rows.num_prompt[row] + JUDGED_AFTER // 2

    def _is_worth_it(self, at: Ints) -> bool:
        """Whether guesses bring enough tokens to the rows that count: where no sequence waits for
        a row, these are the rows that will be left at the end."""
        rows = self.rows
        few = 0 < len(at) <= MOST_ROWS and not len(self._waiting)
        if not few or not rows.drawn[rows.running].all():
            return False
        self._set_up_new(at)
        if self._alone[at].any():
            return False
        self._judge(at)
        remaining = rows.remaining(at)
        counting = remaining >= LAST * remaining.max()
        return bool(np.mean(self._per_pass[at][counting]) >= NEEDED)

    def _judge(self, at: Ints) -> None:
        """Estimate from the text of rows that were not judged for a while what guesses bring."""
        rows = self.rows
        for row in at[self._able[at] & (rows.known[at] >= self._judge_at[at])].tolist():
            tokens = rows.known_tokens(row)[-MOST_HISTORY:]
            written = int(rows.known[row] - rows.num_prompt[row])
            self._per_pass[row] = tokens_a_pass(tokens, len(tokens) - written, self._asked)
            self._judge_at[row] = rows.known[row] + JUDGED_AFTER

    def settle(self, plan: StepPlan, result: StepResult) -> None:
        """Set each row that could guess, and is still there, to where its tokens end."""
        if plan.guessing is None:
            return
        rows, counts = self.rows, result.counts
        passes = result.passes if len(result.passes) else counts
        self.num_guessed += int(result.guessed.sum())
        self.num_accepted += int((counts - passes).sum())
        for i, row in enumerate(plan.decode.rows.tolist()):
            if self._awaited[row] != rows.placement[row]:
                continue
            self._awaited[row] = 0
            rows.planned[row], rows.computed[row] = rows.known[row], rows.known[row] - 1
            if self._able[row] and passes[i]:
                self._learn(row, int(counts[i]) / int(passes[i]))

    def _learn(self, row: int, per_pass: float) -> None:
        """Note what guesses brought a row. Where that is too little it does not guess for a while,
        longer each time."""
        self._per_pass[row], self._has_guessed[row] = per_pass, True
        if per_pass >= NEEDED:
            self._wait[row], pause = 0, JUDGED_AFTER
        else:
            pause = int(np.clip(2 * self._wait[row], LEFT_ALONE, MOST_ALONE))
            self._wait[row], self._has_guessed[row] = pause, False
        self._judge_at[row] = self.rows.known[row] + pause


def guesses_of(
    placements: Placements,
    waiting: Waiting,
    speculation: Speculation | None,
    times: PassTimes | None,
) -> Guesses:
    """The device's guesses where it guesses by itself, else the host's; neither if none asked."""
    if speculation is None:
        return Guesses(placements, waiting, times)
    kind = DeviceGuesses if speculation.device_lines else HostGuesses
    return kind(placements, waiting, speculation, times)
