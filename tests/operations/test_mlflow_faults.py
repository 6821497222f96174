"""A real MLflow server that is dead at a run's start, killed in its middle and dead at its end: no
gap, nothing twice, no time lost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloze.flows.tracking import spool_state
from cloze.flows.tracking.models import Checkpoint
from cloze.flows.tracking.spool import Spool
from tests.operations.mlflow_server import Server, drain
from tests.tiny_models import write_checkpoint

LINES = 300


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    from mlflow import MlflowClient

    found = Server(tmp_path_factory.mktemp("server"))
    MlflowClient(
        tracking_uri=found.store
    ).search_experiments()  # makes its tables: a kill while they are made is not tried here
    yield found
    found.kill()


def sent(spool: Spool, wanted: int) -> None:
    """Wait until the sender has passed on that many bytes."""
    notes, deadline = spool.path.with_suffix(".sent"), time.monotonic() + 60
    while not notes.exists() or int(notes.read_text()) < wanted:
        assert time.monotonic() < deadline, (spool.directory / "sender.log").read_text()[-2000:]
        time.sleep(0.05)


def lines(spool: Spool, run: str, first: int, last: int) -> None:
    for step in range(first, last):
        spool.line(run, {"step": step, "time": 1000.0 + step, "loss": 10.0 - step / 100})


def check(server: Server, run: str, checkpoint: str) -> dict[str, Any]:
    """All is there once. Returns the run's data."""
    client = server.client()
    experiment = client.get_experiment_by_name("cloze")
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    (found,) = client.search_runs([experiment.experiment_id], f"tags.`cloze.run` = '{run}'")
    history = client.get_metric_history(found.info.run_id, "loss")
    assert [(point.step, point.timestamp) for point in history] == [
        (n, 1_000_000 + 1000 * n) for n in range(1, LINES)
    ]
    assert [point.value for point in history] == pytest.approx(
        [10.0 - n / 100 for n in range(1, LINES)]
    )
    (model,) = client.search_logged_models(
        [experiment.experiment_id], f"tags.`cloze.model` = '{run}/7'"
    )
    assert str(model.status) in ("READY", "LoggedModelStatus.READY")
    assert [output.model_id for output in found.outputs.model_outputs] == [model.model_id]
    assert [(metric.key, metric.value, metric.dataset_name) for metric in model.metrics] == [
        ("heldout_loss", 2.5, "dataset")
    ]
    versions = [
        v
        for v in client.search_model_versions("name='cloze'")
        if v.tags["cloze.model_id"] == model.model_id
    ]
    assert len(versions) == 1
    assert versions[0].tags["cloze.checkpoint"] == checkpoint
    (given,) = found.inputs.dataset_inputs
    assert (given.dataset.name, given.dataset.digest) == ("dataset", "d" * 36)
    assert {tag.key: tag.value for tag in given.tags}["cloze.fingerprint"] == "d" * 64
    names = {entry.path for entry in client.list_artifacts(found.info.run_id)}
    assert names == {"note.txt", "card.html"}
    assert found.info.status == "FINISHED"
    return dict(found.data.params)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_server_that_is_killed_three_times_gets_all_of_it_once(
    server: Server, tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", tmp_path / "pieces", step=7)
    card = tmp_path / "card.html"
    card.write_text("<p>card</p>")
    run = os.urandom(16).hex()
    spool = Spool(tmp_path / "spools", server.url)  # nobody answers yet
    spool.start_sender()
    parent = spool.start_run("pipeline")
    spool.start_run("pretrain", parent, {"cloze.kind": "node"}, run=run)
    spool.params(run, {"seed": 1, "not\tallowed": 2})
    dataset = spool.dataset(
        run,
        name="dataset",
        fingerprint="d" * 64,
        source="/data",
        context="training",
        profile={"rows": 3},
    )
    lines(spool, run, 1, 100)  # nobody waits for a server
    server.start()
    sent(spool, spool.path.stat().st_size // 2)
    server.kill()  # while the rest may be on its way
    lines(spool, run, 100, 200)
    points = spool.metrics(run, {"heldout_loss": 2.5}, step=7, time_ms=5)
    spool.model(
        run, Checkpoint(path=checkpoint, fingerprint="f", build=run, step=7), points, dataset
    )
    spool.file(run, str(card))
    spool.text(run, "../outside", "written")
    spool.text(run, "note.txt", "written")
    server.launch()  # comes up while more comes in
    lines(spool, run, 200, LINES)
    server.wait()
    sent(spool, spool.path.stat().st_size // 3)
    server.kill()
    spool.end_run(run)
    spool.end_run(parent)
    assert not spool.close(timeout=1)  # dead at the end: what is left waits
    assert spool.path.exists()
    server.start()
    drain(tmp_path / "spools", server.url)
    assert check(server, run, checkpoint) == {"seed": "1"}
    assert sorted(spool.refused().values()) == [
        1,
        1,
    ]  # the parameter's name, and the text that would lie outside
    assert any("leads out" in reason for reason in spool.refused())
    page = spool_state.page(tmp_path / "spools", run, server.url)
    assert page is not None
    assert "workflowType=machine_learning" in page
