"""Two lanes: the foreground, whose answers are waited for, and the background, which yields to it.

While a first token of the foreground is awaited, passes are for foreground prompts alone. While
foreground answers are written, background rows join a pass as long as that takes less than twice
the time. The background still gets one pass in ten, and a tenth of the rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from quire.request import Ints
from quire.scheduler.pass_times import MOST_POSITIONS, PassTimes
from quire.scheduler.rows import Rows
from quire.scheduler.waiting import TURNS, Waiting
from quire.step import StepPlan

LONGEST_PASS = 0.25  # seconds of a pass of the background while others may come at any time
QUIET_SECONDS, QUIET_PASS = 60.0, 0.5  # after so long without a request passes may be this long
SHORT_PASS = 0.4  # of the time to a first token: a pass that a new request may wait for
HURRY_SECONDS = 10.0  # after a request came, others are likely to follow: plans stay short
MOST_STRETCH = 2.0  # times what a pass takes without background rows
LEAST_PASS = 256  # tokens that any pass may have where no request waits
MEMORY = 8  # passes; older ones fade
LEAST_SPARE = 16  # tokens of a background prompt in a hurried pass
# Background rows that begin in one pass: each takes the host some tenths of a millisecond, and a
# request that comes meanwhile waits for all of them.
MOST_BEGUN, MOST_BEGUN_IN_A_HURRY = 64, 8


class Lanes:
    """How much of the next pass the background may have."""

    def __init__(self, rows: Rows, waiting: Waiting, clock: Callable[[], float]) -> None:
        self._rows, self._waiting, self._clock = rows, waiting, clock
        self._times = PassTimes()
        self._hurry_until = 0.0
        self._quiet_from = 0.0
        self._token_seconds = 0.0  # of a token of a large pass, fading; 0: none was seen
        self.is_serving = False  # requests may come at any time
        self._first_token = 0.0  # seconds of a pass over a foreground prompt, fading
        self._has_prompt: deque[bool] = deque()  # of each sent plan: a foreground prompt is in it
        self._num_alone = 0  # passes in a row without the background, though it had work

    def attend(self) -> None:
        """A request came whose answer is waited for."""
        now = self._clock()
        self._hurry_until, self._quiet_from = now + HURRY_SECONDS, now + QUIET_SECONDS

    @property
    def is_hurried(self) -> bool:
        """Whether plans are to be short, and one at a time."""
        return self._hurry_until > 0.0 and self._clock() < self._hurry_until

    @property
    def most_begun(self) -> int:
        """Rows of the background that may begin in one pass."""
        if self.is_hurried:
            return MOST_BEGUN_IN_A_HURRY
        return MOST_BEGUN if self.is_serving else self._rows.capacity

    @property
    def num_background(self) -> int:
        """Rows of the background that run."""
        return int(self._rows.background[self._rows.running].sum())

    @property
    def can_yield(self) -> bool:
        """Whether the background has more rows than it keeps in any case."""
        capacity = self._rows.capacity
        return self.num_background > min(max(1, capacity // TURNS), capacity - 1)

    def spare(self, budget: int) -> int:
        """Tokens of the next pass that background rows may have, of `budget` in all."""
        rows, running = self._rows, self._rows.running
        background = rows.background[running]
        if not (background.any() or self._waiting.num_background):
            return budget
        foreground = running[~background]
        drawn = int(rows.drawn[foreground].sum())
        is_awaited = drawn < len(foreground) or self._waiting.num_foreground > 0
        fixed, each = self._times.line()
        if not (is_awaited or drawn or self.is_hurried):
            return self.longest_pass(budget)
        if is_awaited and self._num_alone < TURNS - 1:
            return 0
        if drawn:
            stretch = (MOST_STRETCH - 1) * (fixed + each * drawn) / each
            return min(budget, max(1, int(stretch)))
        decoding = int(rows.drawn[running[background]].sum())
        short = int((SHORT_PASS * self._first_token - fixed) / each)
        return min(budget, max(decoding, short) + LEAST_SPARE)

    def longest_pass(self, budget: int) -> int:
        """Tokens of a pass that others may have to wait for. The time per token is taken from
        large passes where some ran; `each`, from small passes, is less exact."""
        _, each = self._times.line()
        if not self.is_serving or not (self._token_seconds or self._times.is_known):
            return budget
        seconds = LONGEST_PASS if self._clock() < self._quiet_from else QUIET_PASS
        return min(budget, max(int(seconds / (self._token_seconds or each)), LEAST_PASS))

    def within(self, at: Ints, spare: int) -> tuple[Ints, int]:
        """The decode rows of `at` that join the pass, and what is left of `spare`."""
        background = self._rows.background[at]
        count = int(background.sum())
        if count <= spare:
            return at, spare - count
        chosen = ~background | (background.cumsum() <= spare)
        return at[chosen], 0

    def sent(self, plan: StepPlan) -> None:
        """A plan is made: note whether the background, and a foreground prompt, is in it."""
        rows = self._rows
        has_part = rows.background[plan.decode.rows].any() or any(
            rows.background[one.row] for one in plan.prefill
        )
        self._has_prompt.append(any(not rows.background[one.row] for one in plan.prefill))
        is_left = self.num_background > 0 or self._waiting.num_background > 0
        self._num_alone = self._num_alone + 1 if is_left and not has_part else 0

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """A plan took `seconds`. Results come back in the order in which plans were sent."""
        if self._has_prompt and self._has_prompt.popleft():
            before = self._first_token or seconds
            self._first_token = before + (seconds - before) / MEMORY
        if plan.repeat == 1 and plan.num_tokens > MOST_POSITIONS:
            token = seconds / plan.num_tokens
            before = self._token_seconds or token
            self._token_seconds = before + (token - before) / MEMORY
        elif plan.repeat == 1 and all(one.num_guessed for one in plan.prefill):
            # Only positions that draw: those of prompts cost less, and would let in too many rows.
            self._times.observe(plan.num_tokens, seconds)
