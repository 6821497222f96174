"""A node's records: kept checkpoints as models with the figures of their step, what it reads, and a
resume in its own run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloze.core.artifacts import artifact
from cloze.core.artifacts.artifact import FileEntry, Manifest
from cloze.core.stages.execute import BuildResult
from cloze.core.stages.execution import Execution
from cloze.flows.graph import stages
from cloze.flows.graph.nodes import Node
from cloze.flows.graph.plan import PlannedNode
from cloze.flows.tracking.run_logger import MlflowRunLogger
from cloze.flows.tracking.spool import Spool

BUILD = "b" * 32


@pytest.fixture(autouse=True)
def no_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Spool, "start_sender", lambda spool: None)


def manifest(stage: str, **values: Any) -> Manifest:
    common: dict[str, Any] = {
        "stage": stage,
        "version": 1,
        "fingerprint": "d" * 64,
        "parents": {},
        "config": {},
        "files": (),
    }
    return Manifest(**{**common, **values})


@pytest.fixture
def planned(tmp_path: Path) -> PlannedNode:
    """Of a phase of a pretraining that reads a dataset."""
    dataset = tmp_path / ("dataset-" + "d" * 12)
    artifact.write_manifest(
        str(dataset), manifest("dataset", rows=12, tokens=34, summary={"copies": 4, "warnings": []})
    )
    node = Node(
        name="pretrain@512",
        stage="pretrain",
        section="pretrain@512",
        values={},
        config=stages.stage("pretrain").config(steps=20, model="bert-tiny"),  # type: ignore[call-arg]
        execution=Execution(processes=4),
        inputs={},
    )
    return PlannedNode(
        node=node,
        inputs={"dataset": str(dataset), "continue": str(tmp_path / "elsewhere")},
        depends_on=(),
        fingerprint="f" * 64,
        artifact=str(tmp_path / "pretrain@512-ffffffffffff"),
        cached=False,
        reason="not made yet",
    )


def reported(records: MlflowRunLogger, op: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in records.spool.path.read_text().splitlines()]
    return [line for line in lines if line["op"] == op and line.get("run") == BUILD]


def begun(tmp_path: Path, planned: PlannedNode) -> tuple[MlflowRunLogger, Any]:
    records = MlflowRunLogger(tmp_path / "runs")
    records.begin("two-phases", {"pretrain@512": {"steps": 20}}, {})
    node = records.node(planned)
    node.build_started(BUILD)
    return records, node


def test_a_kept_checkpoint_is_a_model_with_the_figures_of_its_step(
    tmp_path: Path, planned: PlannedNode
) -> None:
    records, node = begun(tmp_path, planned)
    (given,) = reported(records, "dataset")
    assert (given["name"], given["digest"], given["context"]) == ("dataset", "d" * 36, "training")
    assert given["profile"] == {"rows": 12, "tokens": 34, "copies": 4}
    place = f"{planned.artifact}/checkpoints/step-00000008"
    for step in (7, 8):
        node.metrics({"step": step, "time": 1.0, "heldout_loss": 10.0 - step})
    node.checkpoint(8, place)
    node.checkpoint(
        9, f"{planned.artifact}/checkpoints/step-00000009"
    )  # of a step that has no line
    first, second = reported(records, "model")
    assert first["checkpoint"]["fingerprint"] == f"{'f' * 64}/checkpoints/step-00000008"
    assert (
        first["checkpoint"]["build"],
        first["checkpoint"]["step"],
        first["checkpoint"]["path"],
    ) == (BUILD, 8, place)
    assert first["metrics"] == [["heldout/heldout_loss", 2.0, 8, 1000]]
    assert first["dataset"] == ["dataset", "d" * 36]
    assert second["metrics"] == []
    records.end("KILLED")


def test_what_is_finished_tells_its_figures_files_and_last_checkpoint(
    tmp_path: Path, planned: PlannedNode
) -> None:
    records, node = begun(tmp_path, planned)
    node.metrics({"step": 20, "time": 2.0, "loss": 1.5, "heldout_loss": 1.25})
    sizes = {
        "card.html": 10,
        "metrics.jsonl": 10,
        "large.html": 6_000_000,
        "checkpoints/x.json": 10,
    }
    summary = {
        "steps": 20,
        "loss": 1.5,
        "heldout_loss": 1.25,
        "tokens_per_second": 7.0,
        "learning_rate": 0.25,
        "parameters": 9,
        "classes": {"a": 1},
    }
    found = manifest(
        "pretrain",
        summary={**summary, "checkpoint": "checkpoints/step-00000020"},
        files=tuple(FileEntry(path=name, size=size, sha256="") for name, size in sizes.items()),
    )
    records.finished(
        planned,
        BuildResult(artifact=planned.artifact, cached=False, seconds=3.0, manifest=found),
        node,
    )
    points = [
        tuple(point[:3]) for line in reported(records, "metrics") for point in line["metrics"]
    ]
    assert sorted(point for point in points if point[0] == "loss/loss") == [
        ("loss/loss", 1.5, 20)
    ]  # once, at its step
    assert ("result/parameters", 9.0, 0) in points
    assert ("time/seconds", 3.0, 0) in points
    assert not [
        point for point in points if "classes" in point[0]
    ]  # facts of the data are no figures of a training
    assert [Path(line["path"]).name for line in reported(records, "file")] == [
        "card.html",
        "manifest.json",
    ]
    (model,) = reported(records, "model")
    assert sorted(point[0] for point in model["metrics"]) == [
        "heldout/heldout_loss",
        "loss/loss",
        "result/tokens_per_second",
    ]
    params: dict[str, str] = {}
    for line in reported(records, "params"):
        params |= line["params"]
    assert (params["steps"], params["learning_rate"], params["model.num_hidden_layers"]) == (
        "20",
        "0.25",
        "2",
    )
    lines = [json.loads(line) for line in records.spool.path.read_text().splitlines()]
    (headline,) = (
        line["metrics"] for line in lines if line["op"] == "metrics" and line["run"] != BUILD
    )
    assert [point[0] for point in headline] == [
        f"pretrain/512.{n}" for n in ("heldout_loss", "loss", "tokens_per_second")
    ]


def test_a_resume_goes_on_in_its_own_run(tmp_path: Path, planned: PlannedNode) -> None:
    records, node = begun(tmp_path, planned)
    with node:
        node.metrics({"step": 5, "time": 1.0, "loss": 1.0})
    records.spool.end_run(BUILD, "KILLED")
    records.end("KILLED")
    records.spool.close()
    again, node = begun(tmp_path, planned)
    for step in (4, 5, 6):  # all lines come again
        node.metrics({"step": step, "time": 1.0, "loss": 1.0})
    assert [point[2] for line in reported(again, "metrics") for point in line["metrics"]] == [6]
    assert reported(again, "start")[0]["tags"]["cloze.attempt"] == "2"
    again.end("FINISHED")


def test_a_fault_in_the_records_does_not_reach_the_run(
    tmp_path: Path, planned: PlannedNode, caplog: pytest.LogCaptureFixture
) -> None:
    records, node = begun(tmp_path, planned)
    broken = manifest("pretrain", summary={"steps": "many", "checkpoint": "checkpoints/x"})
    records.finished(
        planned,
        BuildResult(artifact=planned.artifact, cached=False, seconds=1.0, manifest=broken),
        node,
    )
    assert "the run continues" in caplog.text
