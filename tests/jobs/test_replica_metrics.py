"""Lines of several replicas as the line of one engine."""

from __future__ import annotations

from typing import Any

from quire.jobs.supervise.metrics import ReplicaMetrics


def line(replica: int, time: float, began: float, finished: int, running: int) -> dict[str, Any]:
    return {
        "kind": "metrics", "replica": replica, "time": time, "began": began,
        "finished": finished, "running": running, "kv_use": 0.5 * replica,
    }  # fmt: skip


def test_counters_add_up_and_never_fall() -> None:
    metrics = ReplicaMetrics(iter([10.0, 10.2, 11.1, 12.2]).__next__)
    first = metrics.add(line(0, 10.0, 9.0, 3, 4))
    assert first is not None and (first["finished"], first["running"]) == (3, 4)
    assert metrics.add(line(1, 10.2, 9.1, 5, 2)) is None  # one line a second
    second = metrics.add(line(0, 11.1, 9.0, 6, 4))
    assert second is not None and (second["finished"], second["running"]) == (11, 6)
    assert second["kv_use"] == 0.25
    third = metrics.add(line(1, 12.2, 12.0, 1, 1))  # replica 1 was started anew
    assert third is not None and (third["finished"], third["running"]) == (12, 5)
    assert third["began"] == 9.0


def test_a_clock_that_goes_back_silences_nothing() -> None:
    metrics = ReplicaMetrics(iter([50.0, 51.0, 51.5]).__next__)
    told = [metrics.add(line(0, time, 9.0, 3, 4)) for time in (5000.0, 1400.0, 9000.0)]
    assert [each and each["time"] for each in told] == [5000.0, 1400.0, None]
