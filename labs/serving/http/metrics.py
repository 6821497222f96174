"""Prometheus metrics of `cloze serve`; docs/reference/metrics.md lists them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class ServingMetrics:
    """Metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "cloze_serve_requests",
            "Requests by HTTP status.",
            ["model", "status"],
            registry=registry,
        )
        self.seconds = Histogram(
            "cloze_serve_request_seconds",
            "Time to an answer.",
            ["model"],
            buckets=SECONDS,
            registry=registry,
        )
        self._batch_seconds = Histogram(
            "cloze_serve_batch_seconds", "Time of a batch at the worker.", ["model"],
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self._batch_items = Histogram(
            "cloze_serve_batch_items",
            "Items per batch.",
            ["model"],
            buckets=SIZES,
            registry=registry,
        )
        self.queue = Gauge(
            "cloze_serve_queue_items", "Items that wait.", ["model"], registry=registry
        )
        self.ready = Gauge(
            "cloze_serve_ready", "1: the model has a worker.", ["model"], registry=registry
        )
        self.restarts = Counter(
            "cloze_serve_worker_restarts",
            "Starts after a worker's end.",
            ["model"],
            registry=registry,
        )

    def batch(self, model: str, items: int, seconds: float) -> None:
        """Record a batch that the worker answered."""
        self._batch_items.labels(model).observe(items)
        self._batch_seconds.labels(model).observe(seconds)

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)
