"""An LLM's metrics, in the types and under the names of vLLM's.

Counting must not slow a batch: observations are kept in short lists and sorted into buckets a few
hundred at a time.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.base import buckets
from quire.outputs import RequestOutput
from quire.plan.times import StepTimes
from quire.scheduler.scheduler import Scheduler
from quire.step import StepPlan

Counts = npt.NDArray[np.int_]

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


class _Observed:
    """The observations of one histogram. One thread adds; others may read meanwhile, so the whole
    state is replaced by one assignment."""

    __slots__ = ("_limits", "_state")

    def __init__(self, limits: tuple[float, ...]) -> None:
        self._limits = limits
        # Counts per bucket (the last one above all limits), their sum, and values not sorted yet.
        self._state: tuple[Counts, float, list[float]] = (np.zeros(len(limits) + 1, int), 0.0, [])

    def add(self, value: float) -> None:
        fresh = self._state[2]
        fresh.append(value)
        if len(fresh) >= MOST_OBSERVED:
            self._state = (*self._sorted(), [])

    def _sorted(self) -> tuple[Counts, float]:
        counts, total, fresh = self._state
        values = np.array(fresh, float)
        found = np.bincount(np.searchsorted(self._limits, values), minlength=len(counts))
        return counts + found, total + float(values.sum())

    def histogram(self, name: str, labels: dict[str, str]) -> Histogram:
        counts, total = self._sorted()
        up_to = np.cumsum(counts).tolist()
        names = [*(str(float(limit)) for limit in self._limits), "+Inf"]
        return Histogram(name, labels, up_to[-1], total, dict(zip(names, up_to, strict=True)))


class Metrics:
    """Counts steps and finished requests since the LLM was made."""

    def __init__(self, model: str, max_model_len: int) -> None:
        self._labels = {"model_name": model, "engine": "0"}
        lengths = _lengths(max_model_len)
        self._observed = {
            "iteration_tokens_total": _Observed(STEP_BUCKETS),
            "request_prompt_tokens": _Observed(lengths),
            "request_generation_tokens": _Observed(lengths),
            "time_to_first_token_seconds": _Observed(buckets.FIRST_TOKEN),
            "request_time_per_output_token_seconds": _Observed(buckets.EACH_TOKEN),
            "e2e_request_latency_seconds": _Observed(buckets.WHOLE),
            "request_queue_time_seconds": _Observed(buckets.WHOLE),
            "request_inference_time_seconds": _Observed(buckets.WHOLE),
            "request_prefill_time_seconds": _Observed(buckets.WHOLE),
            "request_decode_time_seconds": _Observed(buckets.WHOLE),
        }
        self._finished: Tally[str] = Tally()
        self._counts = dict.fromkeys(
            ("prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits"), 0
        )
        self._steady = _Steady()

    def count_step(self, num_tokens: int, num_steps: int) -> None:
        """A plan ran: `num_tokens` tokens in `num_steps` steps."""
        for _ in range(num_steps):
            self._observed["iteration_tokens_total"].add(num_tokens // num_steps)

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
        seen: list[tuple[str, float]] = [
            ("request_prompt_tokens", prompt),
            ("request_generation_tokens", made),
            ("request_queue_time_seconds", times.scheduled_ts - times.queued_ts),
        ]
        if times.first_token_ts:
            decoding = times.last_token_ts - times.first_token_ts
            seen += (
                ("time_to_first_token_seconds", times.first_token_ts - times.queued_ts),
                ("request_prefill_time_seconds", times.first_token_ts - times.scheduled_ts),
                ("request_decode_time_seconds", decoding),
                ("request_inference_time_seconds", times.last_token_ts - times.scheduled_ts),
                ("e2e_request_latency_seconds", times.last_token_ts - times.queued_ts),
            )
            steps = max((len(answer.token_ids) for answer in output.outputs), default=0) - 1
            if steps > 0:
                seen.append(("request_time_per_output_token_seconds", decoding / steps))
        for name, value in seen:
            self._observed[name].add(value if value > 0 else 0.0)

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
        found += [
            observed.histogram(f"vllm:{name}", dict(self._labels))
            for name, observed in self._observed.items()
        ]
        return found


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
