"""How many decode steps one plan asks for."""

from __future__ import annotations

import numpy as np

from quire.request import Ints
from quire.scheduler.draft import Draft
from quire.scheduler.placements import Placements
from quire.scheduler.rows import Rows
from quire.scheduler.trials import Trials

MOST_WASTE = 0.02  # of the tokens of a plan that repeats
# The same share where resting is free: no sequence waits for a row, and a step of so few rows takes
# as long as reading the weights, however many of them rest.
MOST_REST, FEW_ROWS = 0.5, 128
# Rows that draw a token and wait for the host rest for the remaining steps of a plan. While others
# queue, a plan may have RESTING_STEPS steps if at most this share of the running rows rests. With
# more such rows, or when no other row would take their place, all rows go step by step.
MOST_RESTING, RESTING_STEPS = 0.02, 4


def plan_repeat(
    placements: Placements, trials: Trials, at: Ints, most: int, draft: Draft, *, awaited: bool
) -> int:
    """How many decode steps of rows `at` to ask for: as many as waste little and have blocks.

    At most `most`; the rows get the blocks for them. `awaited`: a sequence waits for a row.
    """
    rows = placements.rows
    repeat = _most_steps(rows, trials, at, most, awaited=awaited)
    if repeat == 1:
        return 1
    growing = at[~rows.rests_in_plan[at]]
    # What some rows try beside others costs nothing, so the other rows decide. What rows with masks
    # waste is known from earlier tries, so these decide last.
    counting = growing[~rows.goes_ahead[growing]]
    counting = counting if len(counting) else growing[~rows.guided[growing]]
    counting = counting if len(counting) else growing
    repeat = min(repeat, int((rows.limit[counting] - rows.planned[counting]).max(initial=1)))
    while repeat > 1:
        lacking = placements.lacking(growing, trials.steps(growing, repeat))
        has_room = placements.pool.fits(int(lacking.sum()))
        wastes_little = rows.guided[counting].any() or _wastes_little(
            rows, counting, repeat, awaited=awaited
        )
        if has_room and wastes_little:
            placements.grow(growing, lacking, draft)
            return repeat
        repeat //= 2
    return 1


def _most_steps(rows: Rows, trials: Trials, at: Ints, most: int, *, awaited: bool) -> int:
    """As many steps as the rows that the host draws for allow."""
    if most == 1:
        return 1
    in_long_plans = ~rows.one_token_per_plan[at] | rows.rests_in_plan[at] | rows.goes_ahead[at]
    if not in_long_plans.all():
        return 1
    few = MOST_RESTING * len(rows.running)
    # Those in this plan, or waiting for a token.
    if num_resting := int(rows.rests_in_plan[rows.running].sum()):
        if not awaited or num_resting > few:
            return 1
        most = min(most, RESTING_STEPS)
    if num_guided := int((rows.guided & rows.goes_ahead)[rows.running].sum()):
        rest = RESTING_STEPS if awaited and num_guided <= few else 1
        most = min(most, max(rest, trials.num_ahead))
    return most if len(trials.running()) <= few else min(most, trials.most_steps())


def _wastes_little(rows: Rows, at: Ints, repeat: int, *, awaited: bool) -> bool:
    # A row that stops by a token wastes half a plan on average, once in its life. While it may not
    # stop yet, only the steps after that count.
    held = np.maximum(rows.least[at] - 1 - rows.planned[at], 0)
    life = np.maximum(rows.expected[at] - rows.num_prompt[at], 1)
    free = np.maximum(repeat - held, 0)
    wasted = float(np.where(rows.may_stop[at], free * free / 2 / life, 0).sum())
    # A row that is full rests for the remaining steps of a plan. Even where resting is free, the
    # plan must not be longer than every row needs.
    left = rows.limit[at] - rows.planned[at]
    rests = wasted + float(np.maximum(repeat - left, 0).sum())
    most_rest = MOST_REST if not awaited and len(at) <= FEW_ROWS else MOST_WASTE
    steps = repeat * len(at)
    return wasted <= MOST_WASTE * steps and rests <= most_rest * steps
