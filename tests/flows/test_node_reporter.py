"""What a node reports: all of it to each listener, and what its record keeps of it."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import pytest

from cloze.core.stages.stage import Reporter
from cloze.flows.run.node_reporter import NodeReporter, StartedNodes
from tests.flows.graph.test_record import begun, on_disk, step


class Heard(Reporter):
    """Keeps each report by its kind."""

    def __init__(self) -> None:
        self.reports: list[tuple[Any, ...]] = []

    def build_started(self, build_id: str) -> None:
        self.reports.append(("build_started", build_id))

    def progress(self, done: float, total: float | None, unit: str, figures: Any) -> None:
        self.reports.append(("progress", done, total, unit, figures))

    def metrics(self, values: Any) -> None:
        self.reports.append(("metrics", values))

    def checkpoint(self, step: int, path: str) -> None:
        self.reports.append(("checkpoint", step, path))

    def processes(self, ids: Any) -> None:
        self.reports.append(("processes", ids))

    def shutdown_time(self, seconds: float) -> None:
        self.reports.append(("shutdown_time", seconds))

    def queued(self, reason: str) -> None:
        self.reports.append(("queued", reason))


REPORTS: list[tuple[Any, ...]] = [
    ("build_started", "b1"),
    ("progress", 2, 9, "steps", {"loss": 1.0}),
    ("metrics", {"loss": 1.0}),
    ("checkpoint", 3, "/a/step-3"),
    ("processes", {0: 17}),
    ("shutdown_time", 12.0),
]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_each_report_reaches_each_listener_and_the_record(tmp_path: Path, count: int) -> None:
    record, stop = begun(tmp_path, "a"), Event()
    started, listeners = StartedNodes(tmp_path / "started"), [Heard() for _ in range(count)]
    started.add("earlier")
    reporter = NodeReporter(record, step("a"), listeners, started, stop)
    reporter.queued("no cores")  # of the record alone: listeners see the node's work
    assert (on_disk(record)["nodes"]["a"]["state"], on_disk(record)["nodes"]["a"]["why"]) == (
        "queued", "no cores"
    )  # fmt: skip
    for kind, *values in REPORTS:
        getattr(reporter, kind)(*values)
    assert [heard.reports for heard in listeners] == [REPORTS] * count
    content = on_disk(record)
    assert content["begun"] == ["a", "earlier"]
    node = record.content["nodes"]["a"]
    assert (node["done"], node["total"], node["unit"], node["figures"]) == (
        2,
        9,
        "steps",
        {"loss": 1.0},
    )
    assert content["nodes"]["a"]["grace_seconds"] == 12.0
    assert not reporter.stop_requested()
    stop.set()
    assert reporter.stop_requested()
    record.end("finished")


def test_what_an_attempt_has_begun_is_known_to_the_next_until_the_run_is_complete(
    tmp_path: Path,
) -> None:
    path = tmp_path / "attempt.json"
    for number, fingerprint in enumerate(("b", "a", "b")):
        StartedNodes(path).add(fingerprint)
        assert StartedNodes(path).fingerprints == ({"b"} if number == 0 else {"a", "b"})
    assert StartedNodes().fingerprints == set()
    memory = StartedNodes()
    memory.add("c")
    memory.forget()
    assert memory.fingerprints == {"c"}
    StartedNodes(path).forget()
    StartedNodes(path).forget()
    assert not path.exists()
    assert StartedNodes(path).fingerprints == set()
