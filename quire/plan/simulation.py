"""A run played with counts instead of tokens, by the scheduler's rule.

The rule: in each step every row that is writing takes one token of the budget; the rest goes
to prompts, in order and in chunks; the next request comes in when a row is free and the blocks
will last until the expected ends. Between two events (an end, an admission) all steps are
alike, so they are taken in one stride. Knows nothing of tokens, parameters or seconds.

Blocks are counted in all groups of layers together (cache/groups.py): where a group has a window,
a row stops growing in it when that is full.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from quire.cache.groups import ONE_GROUP, Windows, window_groups
from quire.plan.prefixes import SharedPrefix

LOOKS = 10_000


@dataclass(slots=True)
class Job:
    """A request as counts, and where it stands. Its blocks: those it shares with its groups
    (as many as `shared`, from the beginning), and its own."""

    prompt: int
    cached: int
    outputs: int
    samples: int = 1
    shared: int = 0
    groups: tuple[int, ...] = ()
    number: int = 0  # of its stay
    start: int = 0  # the step it was admitted at
    computed: int = 0
    own: int = 0

    @property
    def last_length(self) -> int:
        """Tokens in the cache at the end: the last one drawn is never fed."""
        return self.prompt + self.outputs - 1


class Run:
    """`step` is the clock; `steps` counts those that computed something."""

    def __init__(
        self,
        *,
        block_size: int,
        num_blocks: int,
        num_rows: int,
        budget: int,
        lag: int = 0,
        caching: bool = True,
        windows: Windows = ONE_GROUP,
    ) -> None:
        self.block_size, self.num_blocks, self.budget = block_size, num_blocks, budget
        self.lag, self.caching = lag, caching
        self.footprint = _Footprint(windows, block_size)
        self.step = self.steps = self.tokens = self.sampled = self.attended = 0
        self.used = self.peak = self.peak_rows = self.not_fitting = 0
        self.num_rows = self.free_rows = num_rows
        self.claimed = 0  # rows that samples of prompts in progress will take
        self.writing = 0  # rows that write, one token a step
        self.context = 0  # positions they attend to in the next step
        # Rows by where they stand in a block: those at -step % block_size begin a new one.
        self.phases = [0] * block_size
        # The same for each kind of window, of the rows whose window is not full; and when it is.
        self.growing = [[0] * block_size for _ in self.footprint.limits]
        self.fillings: list[tuple[int, int, int, int]] = []  # heap: step, kind, phase, rows
        self.waiting: deque[Job] = deque()
        self.prefilling: deque[Job] = deque()
        self.ends: list[tuple[int, int, Job]] = []  # heap: the first step it no longer writes
        self.frees: deque[tuple[int, Job]] = deque()  # a lag later its row and blocks are free
        self.blocked_until = 0  # no room for the next one at the last look; when to look again
        self.retry = 1
        self.group_blocks: list[int] = []
        self.holders: list[int] = []
        self.made: set[int] = set()  # groups whose blocks were computed
        self.outlook: _Outlook | None = None  # where any rows fit at any time there is no need
        self.num_admitted = 0

    def play(self, jobs: Sequence[Job], groups: Sequence[SharedPrefix] = ()) -> None:
        """Run the jobs in their order; `groups` name them by place."""
        self._share(jobs, groups)
        blocks = [self.footprint.of(-(-j.last_length // self.block_size)) for j in jobs]
        self.waiting.extend(j for j, b in zip(jobs, blocks, strict=True) if b <= self.num_blocks)
        self.not_fitting = len(jobs) - len(self.waiting)
        by_row = sorted(b for j, b in zip(jobs, blocks, strict=True) for _ in range(j.samples))
        if sum(by_row[-self.num_rows :]) > self.num_blocks:
            longest = max(j.outputs for j in jobs)
            self.outlook = _Outlook(self.block_size, longest, self.footprint)
        # As rows fill their blocks the foretold peak moves a little, so a blocked request is
        # looked at again; in a very long run not at every step.
        self.retry = 1 + sum(j.outputs for j in self.waiting) // (self.num_rows * LOOKS)
        while self.waiting or self.prefilling or self.ends or self.frees:
            self._end(self.step)
            drawing = self._prefill(self.budget - self.writing)
            if drawing is not None:
                self._advance(1)
                for job in drawing:
                    self._start_writing(job)
            elif self.writing:
                self._advance(self._steps_to_next_event())
            elif self.frees:
                # Nothing to compute before a result comes back, so the oldest is waited for.
                self._end(self.frees[0][0])

    def _share(self, jobs: Sequence[Job], groups: Sequence[SharedPrefix]) -> None:
        """Give the blocks that a group begins with, or the samples of a prompt, to the group."""
        for group in groups:
            outer = groups[group.parent].num_blocks if group.parent is not None else 0
            self._add_group([jobs[m] for m in group.members], group.num_blocks - outer)
        for job in jobs:
            if job.samples > 1:
                self._add_group([job], job.prompt // self.block_size - job.shared)

    def _add_group(self, members: list[Job], num_blocks: int) -> None:
        for job in members:
            job.groups = (*job.groups, len(self.group_blocks))
            job.shared += num_blocks
        self.group_blocks.append(self.footprint.of(num_blocks))
        self.holders.append(0)

    def _end(self, free_until: int) -> None:
        while self.fillings and self.fillings[0][0] <= self.step:
            _, kind, phase, count = heapq.heappop(self.fillings)
            self.growing[kind][phase] -= count
        while self.ends and self.ends[0][0] <= self.step:
            at, _, job = heapq.heappop(self.ends)
            self.writing -= job.samples
            self.context -= job.samples * (job.last_length + 1)
            self.phases[(job.last_length - at) % self.block_size] -= job.samples
            self.frees.append((at + self.lag, job))
        while self.frees and self.frees[0][0] <= free_until:
            _, job = self.frees.popleft()
            self.blocked_until = self.step
            self.free_rows += job.samples
            self.used -= job.own
            for group in job.groups:
                self.holders[group] -= 1
                if not self.holders[group]:
                    self.used -= self.group_blocks[group]

    def _prefill(self, left: int) -> list[Job] | None:
        """Spend `left` tokens on prompts; returns those that came to their end, None if nothing
        was computed."""
        drawing: list[Job] = []
        start = left
        while left > 0 and (self.prefilling or self._admit(left)):
            job = self.prefilling[0]
            before, after = job.computed, min(job.prompt, job.computed + left)
            self.attended += (after * (after + 1) - before * (before + 1)) // 2
            self._hold(job, after)
            left -= after - before
            if after == job.prompt:
                self.prefilling.popleft()
                self._fork(job)
                drawing.append(job)
        self.tokens += start - left
        return drawing if left < start else None

    def _hold(self, job: Job, length: int) -> None:
        own = self.footprint.of(max(0, -(-length // self.block_size) - job.shared))
        self.used += own - job.own
        job.own, job.computed = own, length

    def _admit(self, left: int) -> bool:
        """Let the next one in, if there is a row and the blocks will last."""
        if not self.waiting or self.free_rows - self.claimed < 1 or self.step < self.blocked_until:
            return False
        job = self.waiting[0]
        if not self._has_room(job, left):
            self.blocked_until = self.step + self.retry
            return False
        self.waiting.popleft()
        self.free_rows -= 1
        self.claimed += job.samples - 1
        if job.groups and job.groups[-1] in self.made:
            # What others made but it does not read (the last token never is) it makes again.
            job.shared = min(job.shared, job.cached // self.block_size)
        for group in job.groups:
            if not self.holders[group]:
                self.used += self.group_blocks[group]
            self.holders[group] += 1
        self.made.update(job.groups)
        self._hold(job, job.cached)
        if self.outlook is not None:
            self.outlook.add(job, self.step)
        job.start, job.number = self.step, self.num_admitted
        self.num_admitted += 1
        self.prefilling.append(job)
        return True

    def _has_room(self, job: Job, left: int) -> bool:
        """Blocks for the first chunk now, and for everyone's growth until the expected ends."""
        if self.outlook is None or self.free_rows == self.num_rows:
            return True
        woken = sum(self.group_blocks[g] for g in job.groups if not self.holders[g])
        lacking = self._prompt_blocks(job)
        chunk = self.footprint.of(-(-min(left, job.prompt - job.cached) // self.block_size))
        if self.used + min(woken + lacking, chunk) > self.num_blocks:
            return False
        unfilled = sum(self._prompt_blocks(j) - j.own for j in self.prefilling)
        peak = self.outlook.peak_with(job, self.step, self.used + unfilled, woken + lacking)
        return peak <= self.num_blocks

    def _prompt_blocks(self, job: Job) -> int:
        """Those of its own that its prompt needs."""
        return self.footprint.of(-(-job.prompt // self.block_size) - job.shared)

    def _fork(self, job: Job) -> None:
        """The samples take rows; those that find none queue by themselves, as prompts."""
        self.claimed -= job.samples - 1
        forked = min(job.samples - 1, self.free_rows)
        cached = (job.prompt - 1) // self.block_size * self.block_size if self.caching else 0
        for _ in range(job.samples - 1 - forked):
            alone = replace(job, samples=1, cached=cached, computed=0, own=0)
            if not self.caching:
                alone.groups, alone.shared = (), 0
            self.waiting.appendleft(alone)
        job.samples = 1 + forked
        self.free_rows -= forked
        self.peak_rows = max(self.peak_rows, self.num_rows - self.free_rows)

    def _advance(self, steps: int) -> None:
        """Every writing row writes `steps` tokens, and nothing else happens meanwhile."""
        rows = self.writing
        self.steps += steps
        self.tokens += rows * steps
        self.sampled += rows * steps
        self.attended += self.context * steps + rows * steps * (steps - 1) // 2
        self.context += rows * steps
        rounds, rest = divmod(steps, self.block_size)
        for num_groups, phases in self._growths():
            self.used += num_groups * rounds * sum(phases)
            for step in range(self.step, self.step + rest):
                self.used += num_groups * phases[-step % self.block_size]
        self.step += steps
        self.peak = max(self.peak, self.used)

    def _growths(self) -> Iterator[tuple[int, list[int]]]:
        """How many groups of layers grow with which phases."""
        if self.footprint.num_full:
            yield self.footprint.num_full, self.phases
        for (num_groups, _), phases in zip(self.footprint.limits, self.growing, strict=True):
            yield num_groups, phases

    def _begin_filling(self, job: Job, end: int) -> None:
        """The job grows in groups with a window until that is full, or it ends."""
        size, phase = self.block_size, (job.prompt - self.step) % self.block_size
        have = max(0, -(-job.prompt // size) - job.shared)
        for kind, (_, most) in enumerate(self.footprint.limits):
            if most > have:
                full = self.step + -job.prompt % size + (most - have - 1) * size + 1
                self.growing[kind][phase] += job.samples
                heapq.heappush(self.fillings, (min(full, end), kind, phase, job.samples))

    def _start_writing(self, job: Job) -> None:
        """Its prompt was computed in the step just taken, and each sample drew a token."""
        self.sampled += job.samples
        self.writing += job.samples
        self.context += job.samples * (job.prompt + 1)
        self.phases[(job.prompt - self.step) % self.block_size] += job.samples
        end = self.step + job.outputs - 1
        heapq.heappush(self.ends, (end, job.number, job))
        self._begin_filling(job, end)
        if self.outlook is not None and job.start != self.step - 1:
            self.outlook.add(job, job.start, sign=-1)
            self.outlook.add(job, self.step - 1)
        if job.outputs > 1:
            if job.prompt % self.block_size:
                # All samples but one copy the partly filled block that they write into.
                self.used += (job.samples - 1) * self.footprint.of(1)
            last = -(-job.last_length // self.block_size)
            job.own = job.samples * self.footprint.of(last - job.shared)  # comes back at the end

    def _steps_to_next_event(self) -> int:
        event = self.ends[0][0]
        if self.frees:
            event = min(event, self.frees[0][0])
        if self.waiting and self.blocked_until > self.step:
            event = min(event, self.blocked_until)
        if self.fillings:
            event = min(event, self.fillings[0][0])
        return event - self.step


class _Footprint:
    """What blocks of one group that sees everything mean in all groups together."""

    def __init__(self, windows: Windows, block_size: int) -> None:
        self.num_full = windows.count(None)
        # How many groups have a window, and the most blocks that a row has in one of them.
        self.limits = [(g.count, g.most_held(block_size) + 1) for g in window_groups(windows)]

    def of(self, blocks: int) -> int:
        limited = sum(num_groups * min(blocks, most) for num_groups, most in self.limits)
        return self.num_full * blocks + limited

    def of_each(self, blocks: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        total = self.num_full * blocks
        for num_groups, most in self.limits:
            total = total + num_groups * np.minimum(blocks, most)
        return total


class _Outlook:
    """Blocks that the running ones will hold at each coming step, as far as they are their own.

    A row of 6 tokens, none cached, with 3 to come, block_size 4, from step 10 on:
        blocks[10:13] += [6/4, 7/4, 8/4]
    """

    def __init__(self, block_size: int, longest: int, footprint: _Footprint) -> None:
        self.block_size, self.footprint = block_size, footprint
        self.blocks = np.zeros(2 * longest + 1024, np.float64)
        self.ramp = np.arange(longest + 1) / block_size

    def add(self, job: Job, step: int, sign: int = 1) -> None:
        """`job` begins to write at `step`; or, with sign -1, does not."""
        end = step + job.outputs
        if end > len(self.blocks):
            self.blocks = np.concatenate([self.blocks, np.zeros(end, np.float64)])
        self.blocks[step:end] += sign * self._growth(job)

    def peak_with(self, job: Job, step: int, used: int, lacking: int) -> float:
        """The most blocks in use while `job` runs, of which `used` are in use now."""
        coming = self.blocks[step : step + job.outputs]
        have = -(-job.prompt // self.block_size) - job.shared
        growth = job.samples * self._grown(have, len(coming))
        return used - float(self.blocks[step]) + lacking + float((coming + growth).max(initial=0.0))

    def _growth(self, job: Job) -> npt.NDArray[np.float64]:
        own = -(-job.prompt // self.block_size) - job.cached // self.block_size
        return self.footprint.of(own) + job.samples * self._grown(own, job.outputs)

    def _grown(self, have: int, count: int) -> npt.NDArray[np.float64]:
        """What a row that has so many blocks takes more, token by token."""
        ramp = self.ramp[:count]
        if not self.footprint.limits:
            return self.footprint.num_full * ramp
        return self.footprint.of_each(have + ramp) - self.footprint.of(have)
