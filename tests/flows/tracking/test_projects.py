"""Two projects record in one runs directory: each run is in its own project's experiment, whoever
sends it, with its owner.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloze.core import accounts
from cloze.flows import cli
from cloze.flows.tracking import models, spool_state
from cloze.flows.tracking.mlflow_writer import MlflowWriter, Registry
from cloze.flows.tracking.spool import DIRECTORY, Spool

EXPERIMENT = "MLFLOW_EXPERIMENT_NAME"


@pytest.fixture(autouse=True)
def _no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (EXPERIMENT, accounts.PROJECT, "CLOZE_REGISTERED_MODEL"):
        monkeypatch.delenv(name, raising=False)


def starts(runs: Path) -> dict[str, dict[str, Any]]:
    lines = [
        json.loads(line)
        for path in (runs / DIRECTORY).glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    return {line["name"]: line for line in lines if line["op"] == "start"}


@pytest.mark.parametrize(
    ("named", "variable", "experiment", "expected"),
    [(None, None, None, "cloze"), (None, "nlp", None, "nlp"), ("speech", "nlp", None, "speech"),
     ("speech", "nlp", "ours", "ours"), (None, None, "ours", "ours")],
)  # fmt: skip
def test_the_experiment_follows_the_project(
    named: str | None, variable: str | None, experiment: str | None, expected: str,
    toy_config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, value in ((accounts.PROJECT, variable), (EXPERIMENT, experiment)):
        if value:
            monkeypatch.setenv(name, value)
    words = ["--set", f"project={named}"] if named else []
    assert cli.main(["run", toy_config, "--no-prefect", *words]) == 0
    found = starts(tmp_path / "runs")
    assert {each["experiment"] for each in found.values()} == {expected}
    tags = found["count"]["tags"]
    assert tags["cloze.project"] == (named or variable or "cloze")
    assert tags["cloze.owner"] == accounts.user_name()
    assert tags["cloze.host"]


@pytest.mark.parametrize("project", ["a/b", 3, "", "x:y", [1]])
def test_a_project_that_is_no_name_is_refused(
    project: Any, toy_config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--set", f"project={json.dumps(project)}"]
    assert cli.main(["run", toy_config, "--no-prefect", *words]) == 2
    assert "project" in capsys.readouterr().err


def test_a_registered_model_has_the_projects_name(monkeypatch: pytest.MonkeyPatch) -> None:
    task = {"task": {"name": "sst2"}}
    assert models.registered_name() == "cloze"
    monkeypatch.setenv(accounts.PROJECT, "nlp")
    assert models.registered_name() == "nlp"
    assert models.registered_name(task) == "nlp-sst2"
    assert models.registered_name(task, "speech") == "speech-sst2"
    monkeypatch.setenv("CLOZE_REGISTERED_MODEL", "ours")
    assert models.registered_name(task, "speech") == "ours-sst2"


def test_a_spool_is_sent_to_its_own_project_by_anothers_sender(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    for project in ("nlp", "speech"):
        spool = Spool(tmp_path / DIRECTORY, uri, project)
        run = spool.start_run(project, tags={"cloze.owner": project})
        spool.end_run(run)
        spool._stream.close()
    monkeypatch.setenv(accounts.PROJECT, "third")  # whose sender takes them
    writer = MlflowWriter(uri, tmp_path / DIRECTORY)
    for path in (tmp_path / DIRECTORY).glob("*.jsonl"):
        for line in path.read_text().splitlines():
            writer.send(json.loads(line))
    for project in ("nlp", "speech"):
        experiment = writer.client.get_experiment_by_name(project)
        (run,) = writer.client.search_runs([experiment.experiment_id])
        assert (run.info.run_name, run.info.status) == (project, "FINISHED")
    assert writer.client.get_experiment_by_name("third") is None
    old: dict[str, Any] = {
        "op": "start",
        "run": "x",
        "parent": None,
        "name": "old",
        "tags": {},
        "time": 1,
    }
    writer.send(old)  # of an earlier version
    assert writer.client.get_experiment_by_name("third") is not None
    registry = Registry(tmp_path, uri, "nlp")
    assert (registry.name, registry._experiment) == ("nlp", "nlp")
    assert spool_state.experiment_name("nlp") == "nlp"
