"""How many decode steps one plan asks for."""

from __future__ import annotations

import numpy as np

from quire.request import Ints
from quire.scheduler.draft import Draft
from quire.scheduler.placements import Placements
from quire.scheduler.trials import Trials

MOST_WASTE = 0.02  # of the tokens of a plan that repeats
# The same where resting is free: nobody waits for a row, and a step of so few rows takes what
# reading the weights takes, however many of them rest.
MOST_REST, FEW_ROWS = 0.5, 128
# Rows that draw a token and wait for the host: so many of all may rest for the rest of a plan, of
# so many steps, while others queue. If there are more, or nobody would take over when the others
# are done before them, all rows go step by step.
MOST_PAUSING, PAUSING_STEPS = 0.02, 4


def plan_repeat(
    placements: Placements, trials: Trials, at: Ints, most: int, draft: Draft, *, awaited: bool
) -> int:
    """How many decode steps of rows `at` to ask for: as many as waste little, and have room.

    At most `most`; the rows get the blocks for them. `awaited`: somebody waits for a row.
    """
    rows, repeat = placements.rows, most
    pausing = rows.pauses[at]
    if repeat == 1 or bool((rows.stepwise[at] & ~pausing & ~rows.tries[at]).any()):
        return 1
    if num_pausing := int(rows.pauses[rows.running].sum()):  # in this plan, or waiting for a token
        if not awaited or num_pausing > MOST_PAUSING * len(rows.running):
            return 1
        repeat, at = min(repeat, PAUSING_STEPS), at[~pausing]
    if len(trials.running()) > MOST_PAUSING * len(rows.running):
        repeat = min(repeat, trials.most_steps())
    growing, at = at, at[~rows.tries[at]] if not rows.tries[at].all() else at
    left = rows.limit[at] - rows.planned[at]
    # Whoever stops by a token wastes half a plan on average, once in its life; of one that may not
    # stop yet only what comes after that counts.
    may_stop = rows.may_stop[at]
    held = np.maximum(rows.least[at] - 1 - rows.planned[at], 0)
    life = np.maximum(rows.expected[at] - rows.num_prompt[at], 1)
    # Whoever is full rests for the rest of a plan. Where that is free, the plan still must not
    # outlast everybody.
    most_rest = MOST_REST if not awaited and len(at) <= FEW_ROWS else MOST_WASTE
    repeat = min(repeat, int(left.max(initial=1)))
    while repeat > 1:
        steps = repeat * len(at)
        free = np.maximum(repeat - held, 0)
        wasted = float(np.where(may_stop, free * free / 2 / life, 0).sum())
        rests = wasted + float(np.maximum(repeat - left, 0).sum())
        fits = wasted <= MOST_WASTE * steps and rests <= most_rest * steps
        lacking = placements.lacking(growing, trials.steps(growing, repeat))
        if fits and placements.pool.fits(int(lacking.sum())):
            placements.grow(growing, lacking, draft)
            return repeat
        repeat //= 2
    return 1
