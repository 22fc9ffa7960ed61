"""A run simulated with counts instead of tokens, by the scheduler's rule.

The rule: in each step every row that is writing takes one token of the budget; the rest goes
to prompts, in order and in chunks; the next request comes in when a row is free and the blocks
will last until the expected ends. Between two events (an end, an admission) all steps are
alike, so they are computed at once. It does not know tokens, parameters or seconds.

Blocks are counted in all groups of layers together (cache/groups.py): where a group has a window,
a row stops growing in it when that is full.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from quire.cache.groups import Windows
from quire.config import EngineConfig
from quire.plan.footprint import Counted, Footprint, Outlook
from quire.plan.prefixes import SharedPrefix

LOOKS = 10_000


class Simulation:
    """`step` is the clock; `steps` counts those that computed something."""

    def __init__(self, config: EngineConfig, num_blocks: int, windows: Windows) -> None:
        self.block_size = block_size = config.block_size
        self.num_blocks, self.budget = num_blocks, config.max_num_batched_tokens
        self.caching = config.enable_prefix_caching
        self.lag = config.depth - 1  # steps until the row of a request that ended is free
        self.footprint = Footprint(windows, block_size)
        self.step = self.steps = self.tokens = self.sampled = self.attended = 0
        self.used = self.peak = self.peak_rows = self.not_fitting = 0
        self.num_rows = self.free_rows = min(config.max_num_seqs, self.budget)
        self.claimed = 0  # rows that samples of prompts in progress will take
        self.writing = 0  # rows that write, one token a step
        self.context = 0  # positions that these rows attend to in the next step
        # Rows by their place in a block: phases[-step % block_size] rows begin a new block.
        self.phases = [0] * block_size
        # The same for each kind of window, of rows whose window is not full; and when it will be.
        self.growing = [[0] * block_size for _ in self.footprint.limits]
        self.fillings: list[tuple[int, int, int, int]] = []  # heap: step, kind, phase, rows
        self.waiting: deque[Counted] = deque()
        self.prefilling: deque[Counted] = deque()
        self.ends: list[tuple[int, int, Counted]] = []  # heap: the first step it no longer writes
        self.frees: deque[tuple[int, Counted]] = deque()  # `lag` steps after its end
        self.blocked_until = 0  # the step to look again whether there is room for the next request
        self.retry = 1
        self.group_blocks: list[int] = []
        self.holders: list[int] = []
        self.made: set[int] = set()  # groups whose blocks were computed
        self.outlook: Outlook | None = None  # None if all rows always fit
        self.num_admitted = 0

    def play(self, requests: Sequence[Counted], groups: Sequence[SharedPrefix]) -> None:
        """Run the requests in their order; `groups` name them by place."""
        self._share(requests, groups)
        self._queue(requests)
        while self.waiting or self.prefilling or self.ends or self.frees:
            self._end(self.step)
            drawing = self._prefill(self.budget - self.writing)
            if drawing is not None:
                self._advance(1)
                for request in drawing:
                    self._start_writing(request)
            elif self.writing:
                self._advance(self._steps_to_next_event())
            elif self.frees:
                # There is nothing to compute until a result comes back: wait for the oldest.
                self._end(self.frees[0][0])

    def _queue(self, requests: Sequence[Counted]) -> None:
        """Queue all requests but those that the whole pool cannot hold."""
        blocks = [self.footprint.of(-(-r.last_length // self.block_size)) for r in requests]
        sized = list(zip(requests, blocks, strict=True))
        self.waiting.extend(r for r, b in sized if b <= self.num_blocks)
        self.not_fitting = len(requests) - len(self.waiting)
        by_row = sorted(b for r, b in sized for _ in range(r.samples))
        if sum(by_row[-self.num_rows :]) > self.num_blocks:
            longest = max(r.outputs for r in requests)
            self.outlook = Outlook(self.block_size, longest, self.footprint)
        # As rows fill their blocks the predicted peak moves a little, so a blocked request is tried
        # again; in a very long run not at every step.
        self.retry = 1 + sum(r.outputs for r in self.waiting) // (self.num_rows * LOOKS)

    def _share(self, requests: Sequence[Counted], groups: Sequence[SharedPrefix]) -> None:
        """Give blocks that a group, or the samples of a prompt, begin with to the group."""
        for group in groups:
            outer = groups[group.parent].num_blocks if group.parent is not None else 0
            self._add_group([requests[m] for m in group.members], group.num_blocks - outer)
        for request in requests:
            if request.samples > 1:
                self._add_group([request], request.prompt // self.block_size - request.shared)

    def _add_group(self, members: list[Counted], num_blocks: int) -> None:
        for request in members:
            request.groups = (*request.groups, len(self.group_blocks))
            request.shared += num_blocks
        self.group_blocks.append(self.footprint.of(num_blocks))
        self.holders.append(0)

    def _end(self, free_until: int) -> None:
        while self.fillings and self.fillings[0][0] <= self.step:
            _, kind, phase, count = heapq.heappop(self.fillings)
            self.growing[kind][phase] -= count
        while self.ends and self.ends[0][0] <= self.step:
            at, _, request = heapq.heappop(self.ends)
            self.writing -= request.samples
            self.context -= request.samples * (request.last_length + 1)
            self.phases[(request.last_length - at) % self.block_size] -= request.samples
            self.frees.append((at + self.lag, request))
        while self.frees and self.frees[0][0] <= free_until:
            _, request = self.frees.popleft()
            self.blocked_until = self.step
            self.free_rows += request.samples
            self.used -= request.own
            for group in request.groups:
                self.holders[group] -= 1
                if not self.holders[group]:
                    self.used -= self.group_blocks[group]

    def _prefill(self, left: int) -> list[Counted] | None:
        """Spend `left` tokens on prompts; returns the prompts that were finished, None if nothing
        was computed."""
        drawing: list[Counted] = []
        start = left
        while left > 0 and (self.prefilling or self._admit(left)):
            request = self.prefilling[0]
            before, after = request.computed, min(request.prompt, request.computed + left)
            self.attended += (after * (after + 1) - before * (before + 1)) // 2
            self._hold(request, after)
            left -= after - before
            if after == request.prompt:
                self.prefilling.popleft()
                self._fork(request)
                drawing.append(request)
        self.tokens += start - left
        return drawing if left < start else None

    def _hold(self, request: Counted, length: int) -> None:
        own = self.footprint.of(max(0, -(-length // self.block_size) - request.shared))
        self.used += own - request.own
        request.own, request.computed = own, length

    def _admit(self, left: int) -> bool:
        """Admit the next request, if there is a row and the blocks will last."""
        if not self.waiting or self.free_rows - self.claimed < 1 or self.step < self.blocked_until:
            return False
        request = self.waiting[0]
        if not self._has_room(request, left):
            self.blocked_until = self.step + self.retry
            return False
        self.waiting.popleft()
        self.free_rows -= 1
        self.claimed += request.samples - 1
        if request.groups and request.groups[-1] in self.made:
            # Blocks that exist but that it does not read (never the last token) are made again.
            request.shared = min(request.shared, request.cached // self.block_size)
        for group in request.groups:
            if not self.holders[group]:
                self.used += self.group_blocks[group]
            self.holders[group] += 1
        self.made.update(request.groups)
        self._hold(request, request.cached)
        if self.outlook is not None:
            self.outlook.add(request, self.step)
        request.start, request.number = self.step, self.num_admitted
        self.num_admitted += 1
        self.prefilling.append(request)
        return True

    def _has_room(self, request: Counted, left: int) -> bool:
        """Whether there are blocks for the first chunk, and for all growth until expected ends."""
        if self.outlook is None or self.free_rows == self.num_rows:
            return True
        woken = sum(self.group_blocks[g] for g in request.groups if not self.holders[g])
        lacking = self._prompt_blocks(request)
        chunk = self.footprint.of(-(-min(left, request.prompt - request.cached) // self.block_size))
        if self.used + min(woken + lacking, chunk) > self.num_blocks:
            return False
        unfilled = sum(self._prompt_blocks(j) - j.own for j in self.prefilling)
        peak = self.outlook.peak_with(request, self.step, self.used + unfilled, woken + lacking)
        return peak <= self.num_blocks

    def _prompt_blocks(self, request: Counted) -> int:
        """Blocks of its own that the request's prompt needs."""
        return self.footprint.of(-(-request.prompt // self.block_size) - request.shared)

    def _fork(self, request: Counted) -> None:
        """The samples take rows; samples that find none queue by themselves, as prompts."""
        self.claimed -= request.samples - 1
        forked = min(request.samples - 1, self.free_rows)
        cached = (request.prompt - 1) // self.block_size * self.block_size if self.caching else 0
        for _ in range(request.samples - 1 - forked):
            alone = replace(request, samples=1, cached=cached, computed=0, own=0)
            if not self.caching:
                alone.groups, alone.shared = (), 0
            self.waiting.appendleft(alone)
        request.samples = 1 + forked
        self.free_rows -= forked
        self.peak_rows = max(self.peak_rows, self.num_rows - self.free_rows)

    def _advance(self, steps: int) -> None:
        """Every writing row writes `steps` tokens; nothing else happens in these steps."""
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
        """(number of groups, phases) for each kind of group."""
        if self.footprint.num_full:
            yield self.footprint.num_full, self.phases
        for (num_groups, _), phases in zip(self.footprint.limits, self.growing, strict=True):
            yield num_groups, phases

    def _begin_filling(self, request: Counted, end: int) -> None:
        """Let the request grow in groups with a window until the window is full, or it ends."""
        size, phase = self.block_size, (request.prompt - self.step) % self.block_size
        have = max(0, -(-request.prompt // size) - request.shared)
        for kind, (_, most) in enumerate(self.footprint.limits):
            if most > have:
                full = self.step + -request.prompt % size + (most - have - 1) * size + 1
                self.growing[kind][phase] += request.samples
                heapq.heappush(self.fillings, (min(full, end), kind, phase, request.samples))

    def _start_writing(self, request: Counted) -> None:
        """Its prompt was computed in the step just taken, and each sample drew a token."""
        self.sampled += request.samples
        self.writing += request.samples
        self.context += request.samples * (request.prompt + 1)
        self.phases[(request.prompt - self.step) % self.block_size] += request.samples
        end = self.step + request.outputs - 1
        heapq.heappush(self.ends, (end, request.number, request))
        self._begin_filling(request, end)
        if self.outlook is not None and request.start != self.step - 1:
            self.outlook.add(request, request.start, sign=-1)
            self.outlook.add(request, self.step - 1)
        if request.outputs > 1:
            if request.prompt % self.block_size:
                # All samples but one copy the partly filled block, because they write into it.
                self.used += (request.samples - 1) * self.footprint.of(1)
            # The blocks that are released at its end.
            own = -(-request.last_length // self.block_size) - request.shared
            request.own = request.samples * self.footprint.of(own)

    def _steps_to_next_event(self) -> int:
        event = self.ends[0][0]
        if self.frees:
            event = min(event, self.frees[0][0])
        if self.waiting and self.blocked_until > self.step:
            event = min(event, self.blocked_until)
        if self.fillings:
            event = min(event, self.fillings[0][0])
        return event - self.step
