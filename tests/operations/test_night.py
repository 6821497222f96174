"""Nights on real trainings: a better, a worse and no new checkpoint; while a training removes its
own; with MLflow's registry.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloze.flows.graph.config import RunConfig
from cloze.flows.nightly import nightly_run, suite
from cloze.flows.nightly.journal import Journal, user_on_host
from cloze.flows.run.session import RunParameters, RunSession, run_plain
from cloze.flows.tracking.spool import Spool
from tests import warm
from tests.checkout import import_path
from tests.conftest import REPOSITORY
from tests.flows.test_cli import cloze
from tests.model.datasets import write_dataset
from tests.operations.servers import Operations, until
from tests.operations.servers import cloze as cloze_there
from tests.operations.test_deploy import Hearing
from tests.operations.test_stopping import resume, suspend

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("warm")]
EASY = {
    "task": "sst2",
    "baselines": False,
    "epochs": 3,
    "global_batch": 8,
    "learning_rate": 0.001,
    "max_length": 32,
}
RUN = {"threads": 1, "resources": {"cpus": 1}, "device": "cpu"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a dataset, an easy task and the night's config; runs and slots
    are below it.
    """
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("CLOZE_SLOTS_DIR", str(tmp_path / "slots"))
    write_dataset(tmp_path / "dataset")
    (tmp_path / "task").mkdir()
    for split in ("train", "dev"):  # which of two words is in the sentence
        rows = [
            f"{'t7 ' * (1 + i // 2 % 4)}{('t9 ' if i % 2 else 't11 ') * (2 + i // 8 % 5)}\t{i % 2}"
            for i in range(64)
        ]
        (tmp_path / "task" / f"{split}.tsv").write_text(
            "\n".join(["sentence\tlabel", *rows]) + "\n"
        )
    content = {
        "night": {"checkpoints": ["newest"]},
        "finetune": {"matrix": {"seed": [1]}, "data": "task", **EASY},
        "run": RUN,
    }
    (tmp_path / "night.yaml").write_text(yaml.safe_dump(content))
    return tmp_path


def train(place: Path, name: str, **values: Any) -> RunSession:
    """A run that is one training with checkpoints at every fifth step; the fifth is a milestone."""
    pretrain = {
        "dataset": str(place / "dataset"),
        "model": "bert-tiny",
        "steps": 10,
        "global_batch": 8,
        "milestones": [5],
        **values,
    }
    config = RunConfig(
        {"name": name, "pretrain": pretrain, "run": {**RUN, "checkpoint_every": 5}}, name
    )
    session = RunSession(RunParameters(config=name), config=config)
    run_plain(session)
    return session


BAD = {
    "learning_rate": 3.0,
    "warmup_steps": 0,
    "grad_clip": 0,
}  # an encoder whose weights are destroyed: nothing can be learned on it


def hold(place: Path, since: str | None = None, **settings: Any) -> nightly_run.NightlyResult:
    return nightly_run.nightly_run(
        suite.load(str(place / "night.yaml"), {"night": settings}), since=since
    )


def test_a_better_a_worse_and_no_new_checkpoint(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow is down all the time: the journal holds the champion."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(Spool, "start_sender", lambda spool: None)
    train(place, "bad", **BAD)
    first = hold(place)
    assert first.champion is not None
    assert (first.champion.run, first.champion.step) == ("bad", 10)
    assert any("MLflow" in note for note in first.warnings)

    train(place, "good")
    better = hold(place)
    assert better.decision is not None
    assert better.decision.why.startswith("promoted: sst2 +")
    assert better.champion is not None
    assert better.champion.run == "good"
    made = sorted((place / "runs" / "night").glob("finetune@1-bad.10*-*"))
    assert len(made) == 1  # the champion was not evaluated a second time

    ran: list[str] = []
    nothing = nightly_run.nightly_run(
        suite.load(str(place / "night.yaml")), run=lambda session: ran.append("suite")
    )
    assert ran == []
    assert nothing.message == "No new checkpoints"
    assert cloze("nightly", str(place / "night.yaml"), "--json").returncode == 0

    worse = hold(place, since="1d", checkpoints=["milestones"], run_patterns=["bad"])
    assert [result["step"] for result in worse.evaluated] == [5]
    assert worse.decision is not None
    assert worse.decision.why.startswith("kept: sst2 \N{MINUS SIGN}")
    assert ": worse)" in worse.decision.why
    assert worse.champion is not None
    assert worse.champion.run == "good"

    page = Path(str(worse.trend)).read_text()
    assert page.count("promoted: sst2 +") >= 2
    rolled = json.loads(
        cloze("champion", "--rollback", "--reason", "it swears", "--json").stdout.splitlines()[-1]
    )
    why = f"it swears ({user_on_host()})"
    assert (rolled["run"], rolled["why"], rolled["version"]) == ("bad", why, None)
    assert rolled["replaced"]["run"] == "good"
    assert rolled["lineage"]["stage"] == "pretrain"
    assert list(rolled["lineage"]["parents"]) == ["dataset"]
    refused = cloze("champion", "--rollback")
    assert refused.returncode == 2
    assert "no champion before the current one" in refused.stderr


@pytest.mark.soak
def test_the_alias_in_mlflow_follows_the_journal(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registry in SQLite: promoted, rolled back, moved by hand, promoted by hand; and what was
    missed while MLflow was down.
    """
    from mlflow import MlflowClient

    from cloze.flows.tracking.mlflow_writer import Registry

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{place}/mlflow.db")
    runs = place / "runs"
    train(place, "bad", **BAD)
    hold(place)
    registry, journal = Registry(runs), Journal(runs)
    bad = journal.version()
    train(place, "good")
    outcome = hold(place)
    good = journal.version()
    assert good is not None
    assert registry.champion() == good != bad
    assert registry.find(outcome.champion.key) == good  # type: ignore[union-attr]
    client = MlflowClient(tracking_uri=registry.uri, registry_uri=registry.uri)
    alias = client.get_model_version_by_alias(registry.name, "champion")
    metrics = client.get_logged_model(alias.tags["cloze.model_id"]).metrics
    assert max(metric.value for metric in metrics if metric.key == "night/sst2") > 90

    output = json.loads(cloze("champion", "--rollback", "--json").stdout.splitlines()[-1])
    assert (output["run"], output["version"]) == ("bad", bad)
    assert registry.champion() == bad

    registry.set_champion(good)  # in MLflow's own pages: it follows, and does not lead
    output = json.loads(cloze("champion", "--json").stdout.splitlines()[-1])
    assert (output["run"], output["version"]) == ("bad", bad)
    assert registry.champion() == bad
    command = (
        "champion",
        "--promote",
        str(runs / "good" / "pretrain"),
        "--reason",
        "somebody likes it",
        "--json",
    )
    output = json.loads(cloze(*command).stdout.splitlines()[-1])
    assert (output["run"], output["version"]) == ("good", good)
    assert output["why"].startswith("somebody likes it (")

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert (
        json.loads(cloze("champion", "--rollback", "--json").stdout.splitlines()[-1])["version"]
        is None
    )
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{place}/mlflow.db")
    assert json.loads(cloze("champion", "--json").stdout.splitlines()[-1])["version"] == bad
    assert registry.champion() == bad


@pytest.mark.soak
def test_nights_beside_a_training_that_removes_its_checkpoints(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint every second step, of which one is kept: whatever a night finds, it reads it to
    the end.
    """
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(Spool, "start_sender", lambda spool: None)
    content = {
        "name": "going",
        "pretrain": {
            "dataset": str(place / "dataset"),
            "model": "bert-tiny",
            "steps": 100_000,
            "global_batch": 8,
        },
        "run": {**RUN, "checkpoint_every": 2, "keep_checkpoints": 1, "oversubscribe": True},
    }
    (place / "going.yaml").write_text(yaml.safe_dump(content))
    command = [warm.python(), "-c", warm.ENTRY, "run", str(place / "going.yaml"), "--no-prefect"]
    with subprocess.Popen(
        command,
        cwd=place,
        env={**os.environ, "PYTHONPATH": import_path(REPOSITORY)},
        stderr=subprocess.DEVNULL,
    ) as training:
        try:
            keys = []
            for _ in range(3):
                before = len(keys)
                while len(keys) == before:
                    assert training.poll() is None
                    outcome = hold(place)
                    assert outcome.errors == {}
                    keys += [result["key"] for result in outcome.evaluated]
                    time.sleep(0.5)
        finally:
            training.terminate()
            training.wait(60)
    assert len(keys) == len(set(keys)) == 3
    left = list((place / "runs" / "going").glob("pretrain-*/checkpoints/step-*"))
    assert len(left) <= 2  # what the nights held has gone since


@pytest.mark.soak
def test_the_nightly_flow_on_a_server_and_nights_that_were_missed(
    operations: Operations,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """The suite's nodes are task runs, the page is the flow run's; of several late runs one works;
    without news it is green.

    A night with evaluations sends a notification with the page's address; one without sends none.
    """
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(operations.runs))
    heard = HTTPServer(("127.0.0.1", 0), Hearing)
    heard.heard = []  # type: ignore[attr-defined]
    threading.Thread(target=heard.serve_forever, daemon=True).start()
    request.addfinalizer(heard.shutdown)
    operations.environment["CLOZE_NOTIFY"] = f"http://127.0.0.1:{heard.server_port}/"
    request.addfinalizer(lambda: operations.environment.pop("CLOZE_NOTIFY"))
    deployed = cloze_there(operations, "deploy")
    assert deployed.returncode == 0, deployed.stderr
    deployment = operations.call("/deployments/name/nightly-evaluation/nightly-evaluation")["id"]
    fields = operations.call(f"/deployments/{deployment}")["parameter_openapi_schema"]["properties"]
    assert list(fields) == ["config", "since", "overrides", "retries"]

    train(place, "flowing")
    config = str(place / "night.yaml")
    missed = [
        time.strftime("%Y-%m-%dT03:30:00+00:00", time.gmtime(time.time() - day * 86400))
        for day in (3, 2, 1)
    ]
    late = [
        operations.call(
            f"/deployments/{deployment}/create_flow_run",
            {
                "parameters": {"config": config},
                "state": {"type": "SCHEDULED", "state_details": {"scheduled_time": moment}},
            },
        )["id"]
        for moment in missed
    ]
    ends = [operations.end(flow_run) for flow_run in late]
    nights = Journal(operations.runs).nights()
    assert len(nights) == 1
    assert [result["run"] for result in nights[0]["results"]] == ["flowing"]
    assert {end["type"] for end in ends} <= {
        "COMPLETED",
        "CANCELLED",
    }  # the limit cancels what begins while the first one works
    worked = [
        flow_run
        for flow_run, end in zip(late, ends, strict=True)
        if "promoted" in (end["message"] or "")
    ]
    assert len(worked) == 1
    assert all(
        "a later night has looked" in end["message"]
        for end in ends
        if end["type"] == "COMPLETED" and "promoted" not in end["message"]
    )
    assert [
        names for names in operations.tasks(worked[0]) if names.startswith("finetune@1-flowing.10.")
    ]
    pages = {
        entry["key"]: entry["data"]
        for entry in operations.artifacts(worked[0])
        if entry["type"] == "markdown"
    }
    assert "Trend page: " in pages["night"]
    assert "/.night/trend.html" in pages["night"]

    quiet = operations.end(
        operations.trigger("nightly-evaluation/nightly-evaluation", config=config)
    )
    assert (quiet["type"], quiet["message"]) == ("COMPLETED", "No new checkpoints")
    wrong = operations.end(
        operations.trigger("nightly-evaluation/nightly-evaluation", config="no-such-config")
    )
    assert wrong["type"] == "FAILED"
    assert "neither a config file nor a preset" in wrong["message"]

    # Prefect delivers a notification at least once, so the runs are compared and not counted.
    notified = until(
        lambda: {
            (sent["run"], "; trend: " in sent["message"])
            for sent in heard.heard  # type: ignore[attr-defined]
            if sent["flow"] == "nightly-evaluation" and sent["state"] == "Evaluated"
        }
    )
    name = operations.call(f"/flow_runs/{worked[0]}")["name"]
    assert notified == {(name, True)}
    assert {sent["state"] for sent in heard.heard} <= {"Evaluated", "Failed"}  # type: ignore[attr-defined]


@pytest.mark.soak
def test_a_suspended_night_is_the_same_night_after_resume(
    operations: Operations, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(operations.runs))
    assert cloze_there(operations, "deploy").returncode == 0
    train(place, "dozing", seed=2)  # what a night of another test has evaluated would not be new
    night = "nightly-evaluation/nightly-evaluation"
    slow = {"finetune.epochs": 100, "night.run_patterns": ["dozing"]}
    earlier = set((operations.runs / "night").glob("finetune@*/_logs/job.json"))
    flow_run = operations.trigger(night, config=str(place / "night.yaml"), overrides=slow)
    before = len(Journal(operations.runs).nights())
    until(lambda: {*(operations.runs / "night").glob("finetune@*/_logs/job.json")} - earlier)
    suspend(operations, flow_run)
    until(lambda: not operations.processes(), 90)
    state = operations.state(flow_run)
    assert state["name"] == "Suspended"
    assert "Resume continues it" in state["message"]
    assert len(Journal(operations.runs).nights()) == before  # the checkpoints are still new
    resume(operations, flow_run)
    state = operations.end(flow_run)
    assert state["name"] == "Evaluated", state["message"]
    (line,) = Journal(operations.runs).nights()[before:]
    assert [result["run"] for result in line["results"]] == ["dozing"]
