"""What a run spools for MLflow: a run a node that is made, those above it, their parameters,
figures, ends; and no secret.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloze.core.errors import ClozeError
from cloze.flows.cli import main
from cloze.flows.run.session import RunParameters, RunSession, run_plain
from cloze.flows.tracking import metadata


def run(config: str, **parameters: object) -> RunSession:
    session = RunSession(RunParameters.model_validate({"config": config, **parameters}))
    try:
        run_plain(session)
    except (ClozeError, RuntimeError):
        assert session.failures
    return session


class Told:
    """The records of the newest spool."""

    def __init__(self, place: Path) -> None:
        self.lines: list[dict[str, Any]] = []
        for path in sorted((place / "runs" / ".tracking").glob("*.jsonl"))[-1:]:
            self.lines = [json.loads(line) for line in path.read_text().splitlines()]
        self.starts = {line["run"]: line for line in self.lines if line["op"] == "start"}
        self.ids = {line["name"].split(" ")[0]: run for run, line in self.starts.items()}

    def of(self, name: str, op: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["op"] == op and line["run"] == self.ids[name]]

    def parent(self, name: str) -> str:
        return str(self.starts[self.starts[self.ids[name]]["parent"]]["name"]).split(" ")[0]

    def status(self, name: str) -> str:
        (end,) = self.of(name, "end")
        return str(end["status"])

    def merged(self, name: str, op: str) -> Mapping[str, Any]:
        found: dict[str, Any] = {}
        for line in self.of(name, op):
            found |= (
                line[op]
                if op != "metrics"
                else {key: value for key, value, _, _ in line["metrics"]}
            )
        return found


def rewrite(config: str, **sections: Any) -> None:
    Path(config).write_text(yaml.safe_dump(sections))


def test_instances_are_nested_under_their_section(toy_config: str, tmp_path: Path) -> None:
    rewrite(toy_config, letters={"matrix": {"size": [2, 3]}}, count={})
    run(toy_config)
    reported = Told(tmp_path)
    assert set(reported.ids) == {
        "toy",
        "letters",
        "letters@2",
        "letters@3",
        "count",
        "count@2",
        "count@3",
    }
    assert [reported.parent(name) for name in ("letters", "letters@2", "count@3")] == [
        "toy",
        "letters",
        "count",
    ]
    assert {reported.status(name) for name in reported.ids} == {"FINISHED"}
    assert reported.merged("letters@3", "params") == {"size": "3"}
    assert reported.merged("toy", "params") == {"letters.matrix.size": "[2, 3]"}
    figures = {f"{name}/{n}.letters": float(n) for name in ("letters", "count") for n in (2, 3)}
    assert reported.merged("toy", "metrics") == figures
    tags = reported.starts[reported.ids["count@2"]]["tags"]
    assert (tags["cloze.node"], tags["cloze.stage"], tags["cloze.world_size"]) == (
        "count@2",
        "count",
        "1",
    )
    assert tags["cloze.host"] == socket.gethostname()
    if (metadata.ROOT / ".git").exists():
        assert len(tags["mlflow.source.git.commit"]) == 40
    assert tags["cloze.attempt"] == "1"


def test_what_was_made_before_has_no_run(toy_config: str, tmp_path: Path) -> None:
    run(toy_config)
    for path in (tmp_path / "runs" / ".tracking").glob("*.jsonl"):
        path.unlink()
    run(toy_config)
    assert not list((tmp_path / "runs" / ".tracking").glob("*.jsonl"))
    run(toy_config, force=["count"])
    reported = Told(tmp_path)
    assert set(reported.ids) == {"toy", "count"}
    assert reported.merged("toy", "metrics") == {
        "letters.letters": 4.0,
        "count.letters": 4.0,
    }  # the figures of all


def test_a_failure_ends_its_own_run_its_sections_and_the_runs(
    toy_config: str, tmp_path: Path
) -> None:
    (tmp_path / "stop").touch()
    rewrite(
        toy_config, letters={"matrix": {"size": [2, 3]}}, count={"fault": str(tmp_path / "stop")}
    )
    run(toy_config)
    reported = Told(tmp_path)
    assert sorted(reported.status(name) for name in ("count@2", "count@3")) == [
        "FAILED",
        "FINISHED",
    ]
    assert [reported.status(name) for name in ("letters", "count", "toy")] == [
        "FINISHED",
        "FAILED",
        "FAILED",
    ]
    failed = next(name for name in ("count@2", "count@3") if reported.status(name) == "FAILED")
    again = run(toy_config)  # it goes on in its own run
    assert not again.failures
    reported = Told(tmp_path)
    assert reported.starts[reported.ids[failed]]["tags"]["cloze.attempt"] == "2"
    assert reported.status(failed) == "FINISHED"


def test_no_planted_secret_is_spooled(
    toy_config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEBHOOK_SECRET", "correct-horse")
    model = {
        "api_key": "hunter2",
        "store": "s3://key:hunter2@bucket",
        "note": "say correct-horse",
        "size": 12,
    }
    rewrite(toy_config, letters={}, count={"model": model})
    run(toy_config)
    reported = Told(tmp_path)
    params = reported.merged("count", "params")
    assert params["model.size"] == "12"
    assert params["model.api_key"] == "***"
    texts = {line["name"]: yaml.safe_load(line["text"]) for line in reported.of("toy", "text")}
    assert texts["config.yaml"]["count"]["model"] == {
        "api_key": "***",
        "store": "s3://***@bucket",
        "note": "say ***",
        "size": 12,
    }
    files = [
        path for path in (tmp_path / "runs").rglob("*") if path.is_file()
    ]  # manifests and the run's record among them
    assert [
        str(path)
        for path in files
        if re.search("hunter2|correct-horse", path.read_text(errors="replace"))
    ] == []
    private = [path for path in files if path.parent.name == "_status" or path.suffix == ".jsonl"]
    assert len(private) == 2
    assert {path.stat().st_mode & 0o777 for path in private} == {0o600}


def test_a_run_with_secrets_is_resumed_with_them_or_says_that_it_cannot_be(
    toy_config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its record has masks in their place."""
    (tmp_path / "stop").touch()
    secret = {"store": "s3://key:hunter2@bucket"}
    rewrite(toy_config, letters={}, count={"model": secret, "fault": str(tmp_path / "stop")})
    begun = run(toy_config)
    assert begun.failures
    assert main(["resume", "toy", "--no-prefect", "--json"]) == 0
    made = json.loads(capsys.readouterr().out.splitlines()[-1])["stages"]
    assert begun.step("count").fingerprint in {stage["fingerprint"] for stage in made}
    rewrite(toy_config, letters={}, count={"model": secret | {"size": 3}})
    assert main(["resume", "toy", "--no-prefect"]) == 2
    assert "does not contain its secrets (they are ***)" in capsys.readouterr().err
