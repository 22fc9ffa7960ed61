"""Plan: what was decided before running; `explain()` prints it in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from quire.base.durations import duration
from quire.plan.prefixes import SharedPrefix
from quire.request import Ints, Request


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The spread of some counts; all zero if there are none."""

    least: int
    median: int
    p90: int
    p99: int
    most: int

    @staticmethod
    def of(counts: Sequence[int]) -> Percentiles:
        """Each is one of the counts, never something in between."""
        if not counts:
            return Percentiles(0, 0, 0, 0, 0)
        at = np.percentile(counts, [0, 50, 90, 99, 100], method="inverted_cdf")
        return Percentiles(*(int(x) for x in at))

    def __str__(self) -> str:
        return (
            f"shortest {self.least:,}, median {self.median:,}, 90 % up to {self.p90:,}, "
            f"99 % up to {self.p99:,}, longest {self.most:,}"
        )


@dataclass(frozen=True, slots=True)
class MediaCounts:
    """Media of the prompts that run: items, how many of different content, and tokens of them; each
    content is encoded once while it is kept."""

    num_items: int
    num_distinct: int
    num_tokens: int
    num_distinct_tokens: int

    @staticmethod
    def of(requests: Iterable[Request]) -> MediaCounts | None:
        items = [span.item for request in requests for span in request.media]
        if not items:
            return None
        distinct = {item.serial: item.count for item in items}
        num_tokens = sum(item.count for item in items)
        return MediaCounts(len(items), len(distinct), num_tokens, sum(distinct.values()))

    def __str__(self) -> str:
        return (
            f"{_count(self.num_items, 'item')} of {self.num_tokens:,} tokens; "
            f"{self.num_distinct:,} different to encode, of {self.num_distinct_tokens:,} tokens"
        )


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """The prediction of a run. `not_fitting` counts requests larger than the whole pool.
    `preemptions_likely`: rows need all blocks at some time, so one may be preempted."""

    steps: int
    seconds: float
    peak_blocks: int
    num_blocks: int
    peak_rows: int
    computed_tokens: int  # prompt tokens not cached, and every output token fed back
    sampled_tokens: int
    context: int  # attended positions, summed over the computed tokens
    not_fitting: int
    preemptions_likely: bool
    times: str  # where the seconds come from


@dataclass(frozen=True, eq=False)
class Plan:
    """The order of a batch, its groups and estimates. Requests are named by their index in the
    list that was planned.

    `order` holds the requests to run, each once. A request in `duplicates` does not run, and gets
    the answer of the one it points to. `cached_tokens[i]` prompt tokens of request i will come
    from the prefix cache, if the pool is large enough to keep them that long.
    """

    order: tuple[int, ...]
    duplicates: Mapping[int, int]
    groups: tuple[SharedPrefix, ...]
    cached_tokens: Ints
    prompt_lengths: Percentiles
    output_limits: Percentiles
    num_samples: int
    num_prompt_tokens: int
    num_run_tokens: int  # prompt tokens of those in `order`
    num_cached_tokens: int  # of these, found in the prefix cache
    max_output_tokens: int
    expected_output_tokens: int
    block_size: int
    prefix_caching: bool
    foretell: Callable[[], RunEstimate]
    notes: tuple[str, ...] = ()
    media: MediaCounts | None = None  # None: there are none

    @cached_property
    def estimate(self) -> RunEstimate:
        """Steps, blocks and seconds; made when first asked for, since running needs it not."""
        return self.foretell()

    @property
    def num_requests(self) -> int:
        return len(self.order) + len(self.duplicates)

    @property
    def saved_share(self) -> float:
        """Share of all prompt tokens that need not be computed: duplicates and cache."""
        if not self.num_prompt_tokens:
            return 0.0
        computed = self.num_run_tokens - self.num_cached_tokens
        return 1.0 - computed / self.num_prompt_tokens

    def explain(self) -> str:
        """The plan in words, one topic a line."""
        lines = [
            ("requests", self._requests()),
            ("prompts", f"{self.num_prompt_tokens:,} tokens: {self.prompt_lengths}"),
            *([] if self.media is None else [("media", str(self.media))]),
            ("outputs", self._outputs()),
            ("duplicates", self._duplicates()),
            ("prefixes", self._prefixes()),
            ("cached", self._cached()),
            ("steps", self._steps()),
            ("KV blocks", self._blocks()),
            ("time", self._time()),
            *(("note", note) for note in self.notes),
        ]
        return "\n".join(["Plan", *(f"  {topic:<11}{text}" for topic, text in lines)])

    def _requests(self) -> str:
        samples = f", {self.num_samples:,} samples" if self.num_samples > self.num_requests else ""
        return f"{self.num_requests:,}{samples}; {len(self.order):,} to run, longest first"

    def _outputs(self) -> str:
        return (
            f"{self.max_output_tokens:,} tokens at most, {self.expected_output_tokens:,} "
            f"expected; max_tokens: {self.output_limits}"
        )

    def _duplicates(self) -> str:
        if not self.duplicates:
            return "none"
        firsts = len(set(self.duplicates.values()))
        return f"{len(self.duplicates):,} repeat one of {firsts:,} others and take its answer"

    def _prefixes(self) -> str:
        outer = [g for g in self.groups if g.parent is None]
        inner = [g for g in self.groups if g.parent is not None]
        if not self.prefix_caching:
            return "not looked at: the prefix cache is off"
        if not outer:
            return "no two prompts share a whole block"
        largest = max(self.groups, key=lambda g: (len(g.members) - 1) * g.num_blocks)
        words = f"{_count(len(outer), 'group')} of {sum(len(g.members) for g in outer):,} prompts"
        if inner:
            members = sum(len(g.members) for g in inner)
            words += f", {_count(len(inner), 'inner group')} of {members:,}"
        tokens = largest.num_blocks * self.block_size
        return f"{words}; the largest: {len(largest.members):,} prompts share {tokens:,} tokens"

    def _cached(self) -> str:
        return (
            f"{self.num_cached_tokens:,} prompt tokens come from the prefix cache, "
            f"{self.num_run_tokens - self.num_cached_tokens:,} are computed "
            f"({self.saved_share:.1%} saved)"
        )

    def _steps(self) -> str:
        return (
            f"{self.estimate.steps:,} predicted, of at most {self.estimate.peak_rows:,} rows; "
            f"{self.estimate.computed_tokens:,} tokens computed"
        )

    def _blocks(self) -> str:
        estimate = self.estimate
        share = estimate.peak_blocks / estimate.num_blocks if estimate.num_blocks else 0.0
        words = f"{estimate.peak_blocks:,} of {estimate.num_blocks:,} at the peak ({share:.0%})"
        if estimate.not_fitting:
            return f"{words}; {estimate.not_fitting:,} outgrow the whole pool and will fail alone"
        if estimate.preemptions_likely:
            return f"{words}; some rows may be preempted and resumed"
        if self.expected_output_tokens < self.max_output_tokens:
            return f"{words}; no preemption unless answers run longer than expected"
        return f"{words}; no preemption expected"

    def _time(self) -> str:
        seconds = self.estimate.seconds
        rate = self.expected_output_tokens / seconds if seconds else 0.0
        return f"about {duration(seconds)}, {rate:,.0f} output tokens/s ({self.estimate.times})"


def _count(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"
