"""From requests to a Plan: in which order to run them, which to skip, and what the run will take.

Prefix groups stay together, so that their shared blocks are computed once and not evicted in
between. Groups and single requests go by the longest expected output first: a long answer begun
last would run alone. Requests with a lower priority number go before all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from quire.cache.groups import ONE_GROUP, Windows, most_tokens
from quire.config import EngineConfig
from quire.plan.duplicates import find_duplicates
from quire.plan.footprint import Counted
from quire.plan.lengths import OutputLengths, is_certain
from quire.plan.plan import MediaCounts, Percentiles, Plan, RunEstimate
from quire.plan.prefixes import PrefixTree, SharedPrefix
from quire.plan.simulation import Simulation
from quire.plan.times import Doubles, StepTimes
from quire.request import Ints, Request


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """In which order requests run, by index, and what it was made from; see Plan."""

    order: Ints
    duplicates: dict[int, int]
    groups: tuple[SharedPrefix, ...]
    tree: PrefixTree  # of those that run
    expected: Doubles  # output tokens of one sample of each


class Planner:
    """Plans windows of requests for one engine; learns nothing itself."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        num_blocks: int,
        times: StepTimes,
        lengths: OutputLengths,
        windows: Windows = ONE_GROUP,
    ) -> None:
        """`windows` of the groups of layers that the blocks are for."""
        self.config, self.num_blocks = config, num_blocks
        self.windows = windows
        self.times, self.lengths = times, lengths

    def order(self, requests: Sequence[Request]) -> Order:
        """All that is needed to run these requests. The same ones give the same order, as long as
        nothing new was learned."""
        tree = PrefixTree.of(
            [r.prompt_ids for r in requests],
            block_size=self.config.block_size,
            salts=[r.cache_salt for r in requests],
        )
        duplicates = find_duplicates(requests, tree.first_equal())
        runs = np.ones(len(requests), np.bool_)
        runs[list(duplicates)] = False
        tree = tree.keep(runs)
        groups = tree.groups() if self.config.enable_prefix_caching else ()
        expected = np.array([self.lengths.expected(r) for r in requests], np.float64)
        order = _order(requests, np.flatnonzero(runs), expected + _read_lengths(requests), groups)
        return Order(order, duplicates, groups, tree, expected)

    def plan(self, requests: Sequence[Request], *, cached: Sequence[int] = ()) -> Plan:
        """The order of these requests, and what can be said about the run.

        `cached`, where given, counts the prompt tokens of each request that earlier calls left
        in the prefix cache.
        """
        ordered = self.order(requests)
        order, duplicates, groups = ordered.order, ordered.duplicates, ordered.groups
        expected = ordered.expected
        found = self._cached_tokens(requests, ordered.tree, order, cached)
        for repeat, first in duplicates.items():
            found[repeat] = found[first]
        samples = np.array([r.params.n for r in requests], np.int64)
        running = [requests[i] for i in order.tolist()]
        return Plan(
            order=tuple(order.tolist()),
            duplicates=duplicates,
            groups=groups,
            cached_tokens=found,
            prompt_lengths=Percentiles.of([r.num_prompt for r in requests]),
            output_limits=Percentiles.of([r.max_tokens for r in requests]),
            num_samples=int(samples.sum()),
            num_prompt_tokens=sum(r.num_prompt for r in requests),
            num_run_tokens=sum(r.num_prompt for r in running),
            num_cached_tokens=int(found[order].sum()),
            max_output_tokens=sum(r.max_tokens * r.params.n for r in requests),
            expected_output_tokens=round(float((expected * samples).sum())),
            block_size=self.config.block_size,
            prefix_caching=self.config.enable_prefix_caching,
            foretell=partial(self._estimate, requests, order, found, expected, groups),
            notes=self._notes(running, order),
            media=MediaCounts.of(running),
        )

    def _cached_tokens(
        self, requests: Sequence[Request], tree: PrefixTree, order: Ints, before: Sequence[int]
    ) -> Ints:
        """Cached tokens of each request: from prompts of this plan, or from before it."""
        if not self.config.enable_prefix_caching:
            return np.zeros(len(requests), np.int32)
        # The scores of a request that names tokens are of no use to others.
        wanted = [None if r.named is not None else r.params.prompt_logprobs for r in requests]
        scored = np.array([each is not None for each in wanted], np.bool_)
        skip = np.array([r.params.skip_reading_prefix_cache for r in requests], np.bool_)
        found = tree.cached_tokens(order, no_read=frozenset(np.flatnonzero(scored | skip).tolist()))
        if len(before):
            readers = ~(scored | skip)
            found = np.where(readers, np.maximum(found, np.asarray(before, np.int32)), found)
        for num_top in {each for each in wanted if each is not None}:
            # A position whose logprob is wanted must be computed, unless an earlier request wanted
            # as many there. Then all blocks but the last are read.
            enough = np.array([each is not None and _has(each, num_top) for each in wanted])
            theirs = tree.keep(enough).cached_tokens(order[enough[order]])
            mine = ~skip & np.array([each == num_top for each in wanted])
            found = np.where(mine, np.maximum(theirs - self.config.block_size, 0), found)
        for index, named in enumerate(r.named for r in requests):
            if named is not None:
                whole = named.first // self.config.block_size * self.config.block_size
                found[index] = min(found[index], whole)
        return found.astype(np.int32)

    def _estimate(
        self,
        requests: Sequence[Request],
        order: Ints,
        cached: Ints,
        expected: Doubles,
        groups: tuple[SharedPrefix, ...],
    ) -> RunEstimate:
        """The run, predicted from counts of tokens; blocks that a group shares count once."""
        place = np.full(len(requests), -1, np.int64)
        place[order] = np.arange(len(order))
        counted = [
            Counted(
                prompt=requests[i].num_prompt,
                cached=int(cached[i]),
                outputs=min(requests[i].max_tokens, max(1, round(expected[i]))),
                samples=requests[i].params.n,
            )
            for i in order.tolist()
        ]
        run = Simulation(self.config, self.num_blocks, self.windows)
        run.play(
            counted, [replace(g, members=tuple(place[list(g.members)].tolist())) for g in groups]
        )
        cost = {"tokens": run.tokens, "sampled": run.sampled, "context": run.attended}
        return RunEstimate(
            steps=run.steps,
            seconds=self.times.cost.seconds(steps=run.steps, **cost),
            peak_blocks=min(run.peak, self.num_blocks),
            num_blocks=self.num_blocks,
            peak_rows=run.peak_rows,
            computed_tokens=run.tokens,
            sampled_tokens=run.sampled,
            context=run.attended,
            not_fitting=run.not_fitting,
            preemptions_likely=run.peak > self.num_blocks,
            times=self.times.describe(),
        )

    def _notes(self, running: Sequence[Request], order: Ints) -> tuple[str, ...]:
        """What may make the run differ from the plan."""
        notes = []
        uncertain = sum(not is_certain(request) for request in running)
        if uncertain:
            notes.append(
                f"{uncertain:,} requests may stop before max_tokens: steps, blocks and time are "
                "expectations"
            )
        size = self.config.block_size
        longest = max(self.num_blocks * size, *(request.num_prompt for request in running), 0)
        most = most_tokens(self.windows, size, self.num_blocks, longest)
        too_long = order[[request.num_prompt > most for request in running]].tolist()
        if too_long:
            notes.append(
                f"{len(too_long):,} prompts are longer than the whole KV pool of {most:,} tokens "
                f"(the first is prompt {too_long[0]}) and will fail alone"
            )
        return tuple(notes)


def _read_lengths(requests: Sequence[Request]) -> Doubles:
    """Lengths of texts that are only read, without output: the longest go first, so that texts of
    one pass have nearly the same length."""
    return np.array([r.num_prompt if r.hidden else 0 for r in requests], np.float64)


def _has(num_top: int, wanted: int) -> bool:
    """Whether logprobs of the `num_top` likeliest tokens (-1: all) include `wanted` of them."""
    return num_top == -1 or 0 <= wanted <= num_top


def _order(
    requests: Sequence[Request],
    running: npt.NDArray[np.int64],
    expected: Doubles,
    groups: Sequence[SharedPrefix],
) -> Ints:
    """Indices to run, by priority, group, inner group, and longest first in each.

    A group is as long as its longest member; ties go by the lowest index. A group with several
    priorities is split: members with one priority stay together.
    """
    count = len(requests)
    priority = np.array([r.priority for r in requests], np.int64)
    outer = np.arange(count)
    for group in groups:
        if group.parent is None:
            outer[list(group.members)] = group.members[0]
    inner = np.arange(count)
    for group in groups:
        if group.parent is not None:
            inner[list(group.members)] = group.members[0]
    keys: list[npt.NDArray[np.float64] | npt.NDArray[np.int64]] = [running]
    keys.append(-expected[running])
    _, rank = np.unique(priority[running], return_inverse=True)
    for level in (inner, outer):
        # Within its priority; no two outer groups have an inner one in common.
        _, team = np.unique(rank * count + level[running], return_inverse=True)
        longest = np.zeros(len(running))
        np.maximum.at(longest, team, expected[running])
        first = np.full(len(running), count)
        np.minimum.at(first, team, running)
        keys += [first[team], -longest[team]]
    keys.append(priority[running])
    return running[np.lexsort(keys)].astype(np.int32)
