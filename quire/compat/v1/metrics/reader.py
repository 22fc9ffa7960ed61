"""The kinds of metrics that `LLM.get_metrics()` returns, under the name scripts know."""

from quire.session.metrics import Counter, Gauge, Histogram, Metric, Vector

__all__ = ["Counter", "Gauge", "Histogram", "Metric", "Vector"]
