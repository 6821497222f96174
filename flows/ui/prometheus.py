"""Prometheus metrics of a runs directory and of this host, for `/metrics` of the dashboard.

The values come from the records that `cloze status` reads, so a scrape costs a training nothing.
`docs/reference/metrics.md` lists the names; they are stable.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cloze.core.errors import ClozeError
from cloze.flows.machine import slots
from cloze.flows.nightly.journal import Journal
from cloze.flows.run import status_file
from cloze.flows.tracking.spool import DIRECTORY
from cloze.flows.tracking.spool_sender import unsent
from cloze.flows.tracking.spool_state import count_dead_letters

STATES = ("running", "finished", "failed", "cancelled", "crashed", "lost")
GB = 1e9


class Figure(NamedTuple):
    """A metric from a figure of a running node; `unit` converts the figure into a base unit."""

    name: str
    description: str
    is_counter: bool = False
    unit: float = 1.0


FIGURES = {  # by the name of `metrics.jsonl`, or of a launcher's report
    "loss": Figure("loss", "Training loss in nats, mean since the last log line."),
    "heldout_loss": Figure("heldout_loss", "Held-out loss in nats at the last evaluation."),
    "grad_norm": Figure("gradient_norm", "Gradient norm before clipping."),
    "learning_rate": Figure("learning_rate", "Learning rate."),
    "tokens_per_second": Figure("tokens_per_second", "Real tokens per second, all ranks."),
    "mfu": Figure("mfu_ratio", "Model FLOPs utilization."),
    "data_wait": Figure("data_wait_ratio", "Share of the step time spent waiting for data."),
    "memory_gb": Figure("memory_bytes", "Peak resident memory of rank 0.", unit=GB),
    "gpu_memory_gb": Figure("gpu_memory_bytes", "Peak GPU memory of rank 0.", unit=GB),
    "tokens": Figure("tokens", "Real tokens since the start of the training.", is_counter=True),
    "skipped": Figure("skipped_steps", "Steps without an update.", is_counter=True),
    "restarts": Figure("restarts", "Restarts after lost ranks.", is_counter=True),
    "preemptions": Figure(
        "preemptions", "Restarts after a preemption; not failures.", is_counter=True
    ),
}


def metrics(runs: Path) -> bytes:
    """Return the metrics in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_RunsCollector(runs))
    return generate_latest(registry)


class _RunsCollector(Collector):
    def __init__(self, runs: Path) -> None:
        self.runs = runs

    def collect(self) -> Iterator[Metric]:
        records = status_file.all_records(self.runs)
        counts = Counter(record["state"] for record in records.values())
        by_state = GaugeMetricFamily(
            "cloze_runs", "Runs by the state of their newest start.", labels=["state"]
        )
        for state in STATES:
            by_state.add_metric([state], counts[state])
        yield by_state
        yield from _node_metrics({**status_file.command_records(self.runs), **records})
        yield from _spool_metrics(self.runs / DIRECTORY)
        yield from _slot_metrics()
        nights = []
        with suppress(OSError, ClozeError):  # `cloze nightly` names the damaged line
            nights = Journal(self.runs).nights()
        if nights:
            yield GaugeMetricFamily(
                "cloze_night_last_timestamp_seconds",
                "End of the last nightly evaluation, in Unix seconds.",
                value=nights[-1]["ended"],
            )
            yield GaugeMetricFamily(
                "cloze_night_errors",
                "Nodes that failed in the last nightly evaluation.",
                value=nights[-1]["errors"],
            )


def _node_metrics(records: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    """Yield the metrics of all nodes that run or are queued."""
    labels = ["run", "node", "stage"]
    waiting = GaugeMetricFamily("cloze_node_queued", "1: the node waits in a queue.", labels=labels)
    done = GaugeMetricFamily(
        "cloze_node_done", "Progress of a running node.", labels=[*labels, "unit"]
    )
    total = GaugeMetricFamily(
        "cloze_node_total", "Progress at which the node is complete.", labels=[*labels, "unit"]
    )
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {
        key: (CounterMetricFamily if figure.is_counter else GaugeMetricFamily)(
            f"cloze_training_{figure.name}", figure.description, labels=labels
        )
        for key, figure in FIGURES.items()
    }
    for run, record in records.items():
        if record["state"] != status_file.RUNNING:
            continue
        for name, node in record["nodes"].items():
            values = [run, name, node["stage"]]
            if node["state"] == status_file.QUEUED:
                waiting.add_metric(values, 1)
            if node["state"] != status_file.RUNNING:
                continue
            if node.get("done") is not None:
                done.add_metric([*values, node["unit"]], node["done"])
            if node.get("total") is not None:
                total.add_metric([*values, node["unit"]], node["total"])
            for key, value in node.get("figures", {}).items():
                if key in families and isinstance(value, (int, float)):
                    families[key].add_metric(values, value * FIGURES[key].unit)
    yield from (waiting, done, total, *families.values())


def _spool_metrics(directory: Path) -> Iterator[Metric]:
    size, since = unsent(directory)
    yield GaugeMetricFamily(
        "cloze_spool_unsent_bytes", "Records that MLflow has not received yet.", value=size
    )
    yield GaugeMetricFamily(
        "cloze_spool_waiting_seconds",
        "Time since a spool with unsent records was last sent from; the longest.",
        value=0.0 if since is None else max(0.0, time.time() - since),
    )
    yield GaugeMetricFamily(
        "cloze_spool_refused_records",
        "Records that MLflow has rejected; `cloze doctor` shows the reasons.",
        value=count_dead_letters(directory).total(),
    )


def _slot_metrics() -> Iterator[Metric]:
    machine = slots.machine()
    occupied = Counter(holder.slot.partition("-")[0] for holder in slots.holders())
    family = GaugeMetricFamily("cloze_slots", "Cores and GPUs of this host.", labels=["kind"])
    busy = GaugeMetricFamily("cloze_slots_held", "Slots that nodes hold.", labels=["kind"])
    for kind, count in ((slots.CPU, machine.cpus), (slots.GPU, len(machine.gpus))):
        family.add_metric([kind], count)
        busy.add_metric([kind], occupied[kind])
    yield from (family, busy)
