"""Commands and options that are written in another way now: they work, and say the new one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from cloze.core.stages.stage import StageResult
from cloze.core.stages.worker import Job
from cloze.flows import cli
from cloze.flows.commands import hub, services
from cloze.flows.launch.coordinator import LaunchCoordinator

MOVED = [
    (["dashboard", "--port", "1"], ["--dashboard-only", "--dashboard-port", "1"], "ui"),
    (["dashboard", "--port=1", "--json"], ["--dashboard-only", "--dashboard-port=1", "--json"], "ui"),
    (["dashboard", "--help"], ["--dashboard-only", "--help"], "ui"),
    (["push", "DIR", "a/b"], ["DIR", "--push", "a/b"], "export"),
    (["push", "--private", "DIR", "--json", "a/b"],
     ["--private", "DIR", "--json", "--push", "a/b"], "export"),
    (["push", "--help"], ["--help"], "export"),
    (["completion", "bash"], ["completion", "bash"], "help"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected", "verb"), MOVED)
def test_a_command_that_moved_is_run_as_the_new_one_and_says_so(
    given: list[str], expected: list[str], verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    group: Any = cli.cloze
    name, command, rest = group.resolve_command(click.Context(group), given)
    assert (name, command.name, rest) == (verb, verb, expected)
    told = capsys.readouterr().err
    assert told.startswith(f"cloze: `cloze {given[0]}` is going, use `cloze {verb} ")
    assert told.count("\n") == 1
    assert given[0] not in cli.command_names()


def test_the_dashboard_alone_listens_where_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(services, "_serve_dashboard", lambda *values: asked.append(values))
    runner = CliRunner()
    runner.invoke(services.ui, ["--dashboard-only"])
    runner.invoke(services.ui, "--dashboard-only --dashboard-port 9 --host ::1 --allowed-hosts a:1")
    assert asked == [(None, "127.0.0.1", "", False), (9, "::1", "a:1", False)]
    for words, told in (
        (["--host", "::1"], "--dashboard-only"),
        (["--allowed-hosts", "a"], "--dashboard-only"),
        (["--dashboard-only", "--mlflow-port", "1"], "leave out"),
        (["--dashboard-only", "--prefect-port", "1"], "leave out"),
    ):
        done = runner.invoke(services.ui, words)
        assert (done.exit_code, told in done.output) == (2, True)


def test_an_export_is_uploaded_after_it_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    uploads: list[Any] = []

    def push(*names: str, **how: bool) -> dict[str, Any]:
        uploads.append((names, how))
        return {"commits": {"main": "c"}}

    monkeypatch.setattr(hub, "push", push)
    monkeypatch.setattr(
        hub,
        "run_stage",
        lambda arguments, more: more(type("Made", (), {"artifact": arguments.out})),
    )
    runner, words = CliRunner(), [str(tmp_path), "--push", "a/b"]
    assert runner.invoke(hub.export, [*words, "--out", "W/hf"]).output == "a/b@main: c\n"
    assert uploads == [(("W/hf", "a/b"), {"private": False})]
    for more in (["--as", "encoder"], ["--force"], ["--set", "int8=true"]):
        done = runner.invoke(hub.export, [*words, *more])
        assert (done.exit_code, "give --out too" in done.output) == (2, True)
    for few, told in (([str(tmp_path)], "--out"), ([str(tmp_path), "--private"], "--push")):
        done = runner.invoke(hub.export, few)
        assert (done.exit_code, told in done.output) == (2, True)


def test_an_unknown_shell_has_no_completion(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", "completion", "powershell"]) == 2
    assert "name one of bash, zsh, fish" in capsys.readouterr().err


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Job]:
    """The jobs that trainings start; their dataset is the directory `data`."""
    found: list[Job] = []

    def keep(head: LaunchCoordinator) -> StageResult:
        found.append(head.work.job)
        return StageResult(summary={"loss": 1.0, "tokens_per_second": 1.0})

    monkeypatch.setattr(LaunchCoordinator, "run", keep)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("a")
    return found


FIELDS = [  # flag, key of --set, value on the command line, in the job
    (["--betas", "0.9", "0.98"], "betas=[0.9, 0.98]", "config", "betas", [0.9, 0.98]),
    (["--milestone-word", "5"], "milestone_words=[5]", "config", "milestone_words", [5]),
    (["--hang-seconds", "5"], "run.hang_seconds=5", "execution", "hang_seconds", 5.0),
    (["--profile-steps", "3"], "run.profile_steps=3", "execution", "profile_steps", 3),
]


@pytest.mark.parametrize(("flag", "setting", "where", "field", "value"), FIELDS)
def test_a_setting_without_an_option_is_set_by_its_key_and_the_old_flag_says_so(
    jobs: list[Job], flag: list[str], setting: str, where: str, field: str, value: Any
) -> None:
    start = ["pretrain", "--dataset", "data", "--model", "bert-mini", "--json", "--out"]
    done = CliRunner().invoke(cli.cloze, [*start, "a", "--set", setting])
    assert done.exit_code == 0, done.output
    old = CliRunner().invoke(cli.cloze, [*start, "b", *flag])
    assert old.exit_code == 0, old.output
    assert f"cloze: {flag[0]} is going, use --set {setting.partition('=')[0]}=VALUE\n" in old.stderr
    assert "is going" not in done.stderr
    for job in jobs:
        assert json.loads(json.dumps(getattr(job, where)))[field] == value


def test_an_unknown_setting_of_a_run_is_one_sentence(
    jobs: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["pretrain", "--dataset", "data", "--out", "a"]
    assert cli.main([*start, "--set", "run.hang_secondz=1"]) == 2
    assert "hang_seconds" in capsys.readouterr().err
    assert cli.main([*start, "--set", "run=1"]) == 2
    assert "run" in capsys.readouterr().err
    assert not jobs
