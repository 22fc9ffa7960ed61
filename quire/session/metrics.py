"""An LLM's metrics, in the types and under the names of vLLM's.

Counting must not slow a batch: observations are kept in short lists and sorted into buckets a few
hundred at a time.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.base import buckets
from quire.outputs import RequestOutput
from quire.plan.times import StepTimes
from quire.scheduler.scheduler import Scheduler
from quire.step import StepPlan

Counts = npt.NDArray[np.int_]
Numbers = npt.NDArray[np.float64]

MOST_OBSERVED = 512  # observations kept before they are sorted into buckets
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
STEP_BUCKETS = (1, 8, *(2**k for k in range(4, 15)))


@dataclass(frozen=True)
class Metric:
    """A metric; `labels` tell metrics of the same name apart."""

    name: str
    labels: dict[str, str]


@dataclass(frozen=True)
class Counter(Metric):
    """A number that only grows."""

    value: int


@dataclass(frozen=True)
class Vector(Metric):
    """Counters by position."""

    values: list[int]


@dataclass(frozen=True)
class Gauge(Metric):
    """The value now."""

    value: float


@dataclass(frozen=True)
class Histogram(Metric):
    """How many observations are at most each bucket's limit; the last limit is "+Inf"."""

    count: int
    sum: float
    buckets: dict[str, int]


# Counts per bucket (the last one above all limits), and the sum of what was counted.
Sorted = tuple[Counts, float]


class _Observed:
    """Histograms over one kind of event. One thread adds; others may read meanwhile, so the whole
    state is replaced by one assignment."""

    def __init__(
        self,
        limits: Mapping[str, tuple[float, ...]],
        values: Callable[[Numbers], Mapping[str, Numbers]],
    ) -> None:
        """`limits` of the buckets of each histogram; `values` makes what each of them counts of the
        numbers of several events, [numbers, events]."""
        self._limits, self._values = limits, values
        nothing = {name: (np.zeros(len(some) + 1, int), 0.0) for name, some in limits.items()}
        # What was sorted, and the numbers of each event since.
        self._state: tuple[dict[str, Sorted], list[tuple[float, ...]]] = (nothing, [])

    def add(self, *numbers: float) -> None:
        """An event."""
        fresh = self._state[1]
        fresh.append(numbers)
        if len(fresh) >= MOST_OBSERVED:
            self._state = (self._sorted(), [])

    def _sorted(self) -> dict[str, Sorted]:
        known, fresh = self._state
        if not fresh:
            return known
        found = {}
        for name, values in self._values(np.array(fresh, float).T).items():
            values, (counts, total) = np.maximum(values, 0.0), known[name]
            places = np.searchsorted(self._limits[name], values)
            more = np.bincount(places, minlength=len(counts))
            found[name] = counts + more, total + float(values.sum())
        return found

    def histograms(self, labels: dict[str, str]) -> list[Histogram]:
        made = []
        for name, (counts, total) in self._sorted().items():
            up_to = np.cumsum(counts).tolist()
            names = [*(str(float(limit)) for limit in self._limits[name]), "+Inf"]
            under = dict(zip(names, up_to, strict=True))
            made.append(Histogram(f"vllm:{name}", dict(labels), up_to[-1], total, under))
        return made


def _of_requests(numbers: Numbers) -> dict[str, Numbers]:
    """What the histograms over ended requests count, of the numbers that `Metrics.count` gives."""
    prompt, made, longest, queued, scheduled, *_ = numbers
    began = numbers[:, numbers[5] > 0]
    _, _, _, queued_then, scheduled_then, first, last = began
    decoding, steps = last - first, began[2] - 1
    return {
        "request_prompt_tokens": prompt,
        "request_generation_tokens": made,
        "time_to_first_token_seconds": first - queued_then,
        "request_time_per_output_token_seconds": decoding[steps > 0] / steps[steps > 0],
        "e2e_request_latency_seconds": last - queued_then,
        "request_queue_time_seconds": scheduled - queued,
        "request_inference_time_seconds": last - scheduled_then,
        "request_prefill_time_seconds": first - scheduled_then,
        "request_decode_time_seconds": decoding,
    }


class Metrics:
    """Counts steps and finished requests since the LLM was made."""

    def __init__(self, model: str, max_model_len: int) -> None:
        self._labels = {"model_name": model, "engine": "0"}
        lengths = _lengths(max_model_len)
        self._steps = _Observed(
            {"iteration_tokens_total": STEP_BUCKETS},
            lambda numbers: {"iteration_tokens_total": numbers[0]},
        )
        limits: dict[str, tuple[float, ...]] = {
            "request_prompt_tokens": lengths,
            "request_generation_tokens": lengths,
            "time_to_first_token_seconds": buckets.FIRST_TOKEN,
            "request_time_per_output_token_seconds": buckets.EACH_TOKEN,
            "e2e_request_latency_seconds": buckets.WHOLE,
            "request_queue_time_seconds": buckets.WHOLE,
            "request_inference_time_seconds": buckets.WHOLE,
            "request_prefill_time_seconds": buckets.WHOLE,
            "request_decode_time_seconds": buckets.WHOLE,
        }
        self._requests = _Observed(limits, _of_requests)
        self._finished: Tally[str] = Tally()
        self._counts = dict.fromkeys(
            ("prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits"), 0
        )
        self._steady = _Steady()

    def count_step(self, num_tokens: int, num_steps: int) -> None:
        """A plan ran: `num_tokens` tokens in `num_steps` steps."""
        for _ in range(num_steps):
            self._steps.add(num_tokens // num_steps)

    def count(self, output: RequestOutput) -> None:
        """A request has ended."""
        self._finished[_reason(output)] += 1
        times = output.metrics
        if times is None or not times.scheduled_ts:  # refused before it began
            return
        prompt, made = output.num_prompt_tokens, times.num_generation_tokens
        self._counts["prompt_tokens"] += prompt
        self._counts["generation_tokens"] += made
        self._counts["prefix_cache_queries"] += prompt
        self._counts["prefix_cache_hits"] += output.num_cached_tokens or 0
        longest = max([len(answer.token_ids) for answer in output.outputs], default=0)
        moments = times.queued_ts, times.scheduled_ts, times.first_token_ts, times.last_token_ts
        self._requests.add(prompt, made, longest, *moments)

    def read(self, scheduler: Scheduler) -> list[Metric]:
        """All metrics as they are now."""
        pool, guesses = scheduler.pool, scheduler.guesses
        gauges: Mapping[str, float] = {
            "num_requests_running": scheduler.num_running,
            "num_requests_waiting": len(scheduler.waiting),
            "kv_cache_usage_perc": pool.num_used / pool.num_blocks,
        }
        preemptions, guessed, accepted = self._steady.read(
            (scheduler.num_preemptions, guesses.num_guessed, guesses.num_accepted)
        )
        counters = {
            **self._counts,
            "num_preemptions": preemptions,
            "spec_decode_num_draft_tokens": guessed,
            "spec_decode_num_accepted_tokens": accepted,
        }
        found: list[Metric] = [
            Gauge(f"vllm:{name}", dict(self._labels), float(v)) for name, v in gauges.items()
        ]
        found += [Counter(f"vllm:{name}", dict(self._labels), v) for name, v in counters.items()]
        found += [
            Counter(
                "vllm:request_success",
                {**self._labels, "finished_reason": reason},
                self._finished[reason],
            )
            for reason in FINISH_REASONS
        ]
        found += self._steps.histograms(self._labels)
        return found + self._requests.histograms(self._labels)


class _Steady:
    """Makes numbers that start again with each engine into numbers that only grow."""

    def __init__(self) -> None:
        self._before: list[int] = []
        self._last: list[int] = []

    def read(self, numbers: Sequence[int]) -> list[int]:
        before = self._before or [0] * len(numbers)
        last = self._last or [0] * len(numbers)
        if any(new < old for new, old in zip(numbers, last, strict=True)):
            before = [a + b for a, b in zip(before, last, strict=True)]
        self._before, self._last = before, list(numbers)
        return [a + b for a, b in zip(before, numbers, strict=True)]


def _lengths(most: int) -> tuple[float, ...]:
    """1 2 5 10 20 50 ... up to `most`."""
    limits = (m * 10**k for k in range(10) for m in (1, 2, 5))
    return tuple(float(limit) for limit in limits if limit <= max(most, 1))


def _reason(output: RequestOutput) -> str:
    if output.error is not None:
        return "error"
    return (output.outputs[0].finish_reason if output.outputs else None) or "stop"


def observe_step(times: StepTimes, metrics: Metrics, plan: StepPlan, seconds: float) -> None:
    """Learn from a step how long such steps take, and count it."""
    starts = plan.decode.positions.astype("int64")
    context = int(starts.sum() + len(starts)) * plan.most_drawn
    tokens = sampled = len(starts) * plan.most_drawn
    for s in plan.prefill:
        length = len(s.token_ids)
        tokens, sampled = tokens + length, sampled + len(s.sample_into) + s.num_guessed
        context += length * s.start + length * (length + 1) // 2
    if not plan.encode:  # encoding media takes time of its own
        times.observe(tokens, sampled, context, seconds, steps=plan.repeat)
    metrics.count_step(tokens, plan.repeat)
