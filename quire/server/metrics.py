"""Metrics of a server for Prometheus: vLLM's names, buckets and labels, prefixed by `quire:`."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from quire.base import buckets
from quire.openai_api.outputs import Output
from quire.server.services import EngineStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TOKENS = tuple(m * 10**k for k in range(6) for m in (1, 2, 5))
_HISTOGRAMS = {
    "time_to_first_token_seconds": buckets.FIRST_TOKEN,
    "inter_token_latency_seconds": buckets.EACH_TOKEN,
    "e2e_request_latency_seconds": buckets.WHOLE,
    "request_queue_time_seconds": buckets.WHOLE,
    "request_prefill_time_seconds": buckets.WHOLE,
    "request_decode_time_seconds": buckets.WHOLE,
    "request_prompt_tokens": _TOKENS,
    "request_generation_tokens": _TOKENS,
}
_LABELS = ("model_name", "engine")


class Metrics:
    """The metrics of one server. Other parts add theirs to `registry`."""

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._of = (model, "0")
        self._histograms = {
            name: Histogram(
                f"quire:{name}", name, _LABELS, buckets=limits, registry=self.registry
            ).labels(*self._of)
            for name, limits in _HISTOGRAMS.items()
        }
        self._finished = Counter(
            "quire:request_success",
            "requests by how they ended",
            (*_LABELS, "finished_reason"),
            registry=self.registry,
        )
        names = ("prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits")
        self._counters = {
            name: Counter(f"quire:{name}", name, _LABELS, registry=self.registry).labels(*self._of)
            for name in names
        }

    def observe(self, output: Output) -> None:
        if output.pooled is not None:
            self._finished.labels(*self._of, "stop").inc()
        for answer in output.answers:
            self._finished.labels(*self._of, answer.finish_reason or "abort").inc()
        counts = {
            "prompt_tokens": output.prompt_tokens,
            "generation_tokens": output.output_tokens,
            "prefix_cache_queries": output.prompt_tokens,
            "prefix_cache_hits": output.cached_tokens,
        }
        for name, count in counts.items():
            self._counters[name].inc(count)
        self._add("request_prompt_tokens", output.prompt_tokens)
        self._add("request_generation_tokens", output.output_tokens)
        queued, first, last = (*output.timings, None, None, None)[:3]
        self._add("request_queue_time_seconds", queued)
        self._add("time_to_first_token_seconds", first)
        self._add("e2e_request_latency_seconds", last)
        if queued is not None and first is not None and last is not None:
            self._add("request_prefill_time_seconds", first - queued)
            self._add("request_decode_time_seconds", last - first)
            steps = output.output_tokens // max(len(output.answers), 1) - 1
            if steps > 0:
                self._add("inter_token_latency_seconds", (last - first) / steps)

    def _add(self, name: str, value: float | None) -> None:
        if value is not None:
            self._histograms[name].observe(max(value, 0.0))

    def text(self, stats: EngineStats, *, for_vllm: bool) -> bytes:
        """All metrics as text, with the values of `stats`; `for_vllm`: under vLLM's names too."""
        now = CollectorRegistry()
        now.register(_Now(stats, self._of))
        text = generate_latest(self.registry) + generate_latest(now)
        return text + text.replace(b"quire:", b"vllm:") if for_vllm else text


class _Now:
    """Gauges, and counters that are counted elsewhere."""

    def __init__(self, stats: EngineStats, of: tuple[str, str]) -> None:
        self._stats, self._of = stats, of

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        gauges: dict[str, float] = {
            "num_requests_running": stats.running + stats.running_batch,
            "num_requests_waiting": stats.waiting + stats.waiting_batch,
            "kv_cache_usage_perc": stats.kv_use,
            "batch_rows_running": stats.running_batch,
            "batch_rows_waiting": stats.waiting_batch,
        }
        counters = {
            "num_preemptions": stats.preemptions,
            "rejected": stats.rejected,
            "engine_restarts": stats.restarts,
        }
        for name, value in gauges.items():
            gauge = GaugeMetricFamily(f"quire:{name}", name, labels=_LABELS)
            gauge.add_metric(self._of, value)
            yield gauge
        for name, count in counters.items():
            counter = CounterMetricFamily(f"quire:{name}", name, labels=_LABELS)
            counter.add_metric(self._of, count)
            yield counter
        if stats.step_tokens:
            name, (*counts, total) = "iteration_tokens_total", stats.step_tokens
            steps = HistogramMetricFamily(f"quire:{name}", name, labels=_LABELS)
            steps.add_metric(self._of, list(zip(stats.step_limits, counts, strict=True)), total)
            yield steps
