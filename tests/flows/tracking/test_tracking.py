"""The spool and its replay to a real MLflow store: nothing lost, nothing twice, never waiting for a
server.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cloze.flows.tracking import spool_state
from cloze.flows.tracking.run_logger import close_spool
from cloze.flows.tracking.spool import Spool, claim, complete
from cloze.flows.tracking.spool_state import FILE

pytestmark = pytest.mark.usefixtures("warm")


def runs(uri: str) -> list[Any]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("cloze")
    return list(client.search_runs([experiment.experiment_id])) if experiment else []


def history(uri: str, run_id: str, key: str) -> list[tuple[int, float]]:
    from mlflow import MlflowClient

    return [
        (m.step, m.value) for m in MlflowClient(tracking_uri=uri).get_metric_history(run_id, key)
    ]


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


def wait_until_gone(spool: Path) -> None:
    """Until a sender has passed on all of an orphan."""
    deadline = time.monotonic() + 240
    while spool.exists():
        assert time.monotonic() < deadline, (spool.parent / "sender.log").read_text()[-2000:]
        time.sleep(0.05)


def fill(directory: Path, uri: str) -> Spool:
    spool = Spool(directory, uri)
    parent = spool.start_run("demo", tags={"cloze.kind": "pipeline"})
    child = spool.start_run("pretrain", parent)
    spool.params(child, {"model": "bert-tiny", "optimizer": {"lr": 0.1}})
    for step in range(2500):
        spool.metrics(
            child,
            {"loss": 10.0 - step / 1000, "note": "text", "nested": {"x": step}},
            step=step,
            time_ms=1000 + step,
        )
    spool.end_run(child)
    spool.end_run(parent)
    return spool


def test_every_record_arrives_once_even_if_sent_twice(tmp_path: Path, uri: str) -> None:
    spool = fill(tmp_path, uri)
    copy = spool.path.read_text()
    spool.start_sender()
    assert spool.close(timeout=240)
    found = {run.info.run_name: run for run in runs(uri)}
    assert found["pretrain"].data.tags["mlflow.parentRunId"] == found["demo"].info.run_id
    assert found["pretrain"].info.status == "FINISHED"
    assert found["pretrain"].data.params == {"model": "bert-tiny", "optimizer.lr": "0.1"}
    points = history(uri, found["pretrain"].info.run_id, "loss")
    assert points == [(step, pytest.approx(10.0 - step / 1000)) for step in range(2500)]
    assert not spool.path.exists()  # all of it has arrived

    # A sender that died after sending and before noting it sends all again.
    again = tmp_path / "again.jsonl"
    again.write_text(copy)
    later = Spool(tmp_path, uri)
    later.start_sender()
    assert later.close(timeout=240)
    wait_until_gone(again)
    assert len(runs(uri)) == 2
    assert len(history(uri, found["pretrain"].info.run_id, "loss")) == 2500


def test_a_dead_server_costs_no_time_and_no_record(tmp_path: Path, uri: str) -> None:
    spool = Spool(tmp_path, "http://127.0.0.1:9")  # nobody listens there
    spool.start_sender()
    run = spool.start_run("offline")
    for step in range(1000):
        spool.metrics(run, {"loss": 1.0}, step=step)
    spool.end_run(run)
    assert not spool.close(timeout=15)  # all of it waits, nothing of it was sent
    assert "offline" in spool.path.read_text()
    assert spool.path.exists()
    later = Spool(tmp_path, uri)
    later.start_sender()
    assert later.close(timeout=240)
    wait_until_gone(spool.path)
    offline = next(found for found in runs(uri) if found.info.run_name == "offline")
    assert len(history(uri, offline.info.run_id, "loss")) == 1000


def test_a_refused_record_is_set_aside_and_the_rest_arrives(tmp_path: Path, uri: str) -> None:
    """A metric's name that MLflow does not take, among good ones; a damaged line; a run whose start
    is not known.
    """
    spool = Spool(tmp_path / "spools", uri)
    run = spool.start_run("refused")
    spool.metrics(run, {"good": 1.0, "bad\nname": 2.0, "better": 3.0})
    spool._stream.write("{damaged\n")
    spool.metrics("unknown", {"loss": 1.0})
    spool.params(run, {"fine": 1, "not\tfine": 2})
    spool.metrics(run, {"last": 4.0})
    spool.end_run(run)
    spool.start_sender()
    assert spool.close(timeout=240)
    found = next(each for each in runs(uri) if each.info.run_name == "refused")
    assert found.data.metrics == {"good": 1.0, "better": 3.0, "last": 4.0}
    assert (found.data.params, found.info.status) == ({"fine": "1"}, "FINISHED")
    assert not spool.path.exists()
    assert sum(spool.refused().values()) == 4
    assert {"the line is damaged", "MLflow has no run for it"} < set(spool.refused())
    records = [
        json.loads(line)["record"] for line in (spool.directory / FILE).read_text().splitlines()
    ]
    assert [
        record.get("metrics", record.get("params"))[0][0]
        for record in records
        if "metrics" in record
    ] == ["bad\nname", "loss"]


def test_a_deleted_experiment_comes_back(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    own = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=own)
    client.delete_experiment(client.create_experiment("cloze"))
    spool = Spool(tmp_path / "spools", own)
    spool.end_run(spool.start_run("after"))
    spool.start_sender()
    assert spool.close(timeout=240)
    assert [run.info.run_name for run in runs(own)] == ["after"]
    assert not spool.refused()


def test_the_spool_of_a_killed_process_is_completed_and_that_of_a_living_one_is_left_alone(
    tmp_path: Path,
) -> None:
    script = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom cloze.flows.tracking.spool import "
        "Spool\n"
        "spool = Spool(Path(sys.argv[1]), 'sqlite://')\nrun = spool.start_run('demo')\n"
        "spool.start_run('stage', run)\n"
        'spool._stream.write(\'{"op": "metr\')\nspool._stream.flush()\nos.kill(os.getpid(), '
        "signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    living = Spool(tmp_path, "sqlite://")
    living.start_run("still running")
    assert claim(living.path, shared=False) is None
    (killed,) = (path for path in tmp_path.glob("*.jsonl") if path != living.path)
    stream = claim(killed, shared=False)
    assert stream is not None
    with stream:
        complete(stream, tmp_path)
        assert claim(killed, shared=False) is None
    records = [json.loads(line) for line in killed.read_text().splitlines()]
    assert [record["op"] for record in records] == ["start", "start", "end", "end"]
    assert {record["status"] for record in records if record["op"] == "end"} == {"KILLED"}


def test_a_step_is_recorded_once_however_often_it_is_computed(tmp_path: Path) -> None:
    """A first spool that ends in order, a second one whose process is killed, and a third that gets
    all lines again.
    """
    first = Spool(tmp_path, "sqlite://")
    run = first.start_run("pretrain", run="a" * 32)
    for step in (1, 2, 2, 3):
        first.line(run, {"step": step, "time": 1.5, "loss": 2.0})
    first.end_run(run, "KILLED")
    first.close()
    script = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom cloze.flows.tracking.spool import "
        "Spool\n"
        "spool = Spool(Path(sys.argv[1]), 'sqlite://')\nrun = spool.start_run('pretrain', "
        "run='a' * 32)\n"
        "for step in range(1, 6):\n    spool.line(run, {'step': step, 'time': 1.5, 'loss': 2.0})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    third = Spool(tmp_path, "sqlite://")
    third.start_run("pretrain", run=run)
    for step in range(1, 8):
        third.line(run, {"step": step, "time": 1.5, "loss": 2.0})
    records = [
        json.loads(line)
        for path in tmp_path.glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    points = [
        point for record in records if record["op"] == "metrics" for point in record["metrics"]
    ]
    assert sorted(points) == [["loss", 2.0, step, 1500] for step in range(1, 8)]
    third.end_run(run)
    assert (spool_state.read(tmp_path, run).step, spool_state.read(tmp_path, run).attempt) == (7, 3)


def test_a_run_that_was_started_again_in_one_spool_is_ended(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "sqlite://")
    run = spool.start_run("pretrain")
    spool.end_run(run, "FAILED")
    spool.start_run("pretrain", run=run)
    spool.close()
    stream = claim(spool.path, shared=False)
    assert stream is not None
    with stream:
        complete(stream, tmp_path)
    assert json.loads(spool.path.read_text().splitlines()[-1])["status"] == "KILLED"


def test_a_run_goes_on_where_it_was_begun(tmp_path: Path, uri: str) -> None:
    run = "b" * 32
    for status in ("FAILED", "RUNNING", "FINISHED"):
        spool = Spool(tmp_path, uri)
        parent = spool.start_run(f"try that is {status}")
        spool.start_run("goes on", parent, run=run)
        if status != "RUNNING":
            spool.end_run(run, status)
            spool.end_run(parent, status)
        spool.start_sender()
        assert spool.close(timeout=240)
        found = {known.info.run_name: known for known in runs(uri)}
        assert found["goes on"].info.status == status.replace(
            "RUNNING", "KILLED"
        )  # its process has ended without a word
        assert (
            found["goes on"].data.tags["mlflow.parentRunId"]
            == found[f"try that is {status}"].info.run_id
        )
    assert sum(known.info.run_name == "goes on" for known in runs(uri)) == 1


@pytest.mark.parametrize("count", [0, 1, 2])
def test_each_number_of_refused_records_is_told(tmp_path: Path, uri: str, count: int) -> None:
    spool = Spool(tmp_path / "spools", uri)
    run = spool.start_run("some refused")
    for number in range(count):
        spool.metrics(run, {f"bad\nname {number}": 2.0})
    spool.end_run(run)
    spool.start_sender()
    said = close_spool(spool, 60)
    assert [f"rejected {count} record" in warning for warning in said] == [True] * bool(count)
