"""Metrics of batches for Prometheus: how many are in each state, and how many rows have ended."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quire.server.batch_service import BatchService


class BatchMetrics(Collector):
    """A collector; rows are counted since the server began."""

    def __init__(self, service: BatchService, model: str) -> None:
        self._service, self._of = service, (model, "0")

    def collect(self) -> Iterator[Metric]:
        labels = ("model_name", "engine")
        batches = GaugeMetricFamily("quire:batches", "batches by state", labels=(*labels, "status"))
        for status, count in self._service.num_by_status().items():
            batches.add_metric((*self._of, status), count)
        yield batches
        rows = CounterMetricFamily(
            "quire:batch_rows", "rows of batches in journals", labels=(*labels, "result")
        )
        for result, count in self._service.num_rows().items():
            rows.add_metric((*self._of, result), count)
        yield rows
