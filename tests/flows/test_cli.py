"""The command line as a user meets it: quick help, one-sentence errors, exit codes, JSON last."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cloze.flows.cli import main
from tests import warm
from tests.conftest import REPOSITORY


@dataclass
class Done:
    """A finished command."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.stdout.splitlines()[-1])
        return found


def cloze(
    *arguments: object, cwd: Path | None = None, timeout: float = 280, **environment: str
) -> Done:
    """Run a verb, and what it starts, as forks of a Python that has imported the libraries: see
    `tests.warm`.
    """
    return _done([warm.python(), "-c", warm.ENTRY, *map(str, arguments)], cwd, timeout, environment)


def installed(
    *arguments: object, cwd: Path | None = None, timeout: float = 280, **environment: str
) -> Done:
    """Run the installed command, and what it starts, as a user does."""
    return _done(
        [str(Path(sys.executable).parent / "cloze"), *map(str, arguments)],
        cwd,
        timeout,
        environment,
    )


def _done(
    command: Sequence[str], cwd: Path | None, timeout: float, environment: Mapping[str, str]
) -> Done:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **environment},
        timeout=timeout,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def test_the_installed_command_prints_its_help() -> None:
    done = installed("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: cloze")


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["rnu"], 2, "did you mean 'run'?"),
        (["run", "dmeo"], 2, "did you mean 'demo'?"),
        (
            ["run", "demo", "--set", "pretrain.stepps=3"],
            2,
            "unknown config key pretrain.stepps; did you mean 'steps'?",
        ),
        (["run", "demo", "--set", "pretrian.steps=3"], 2, "did you mean 'pretrain'?"),
        (["run", "demo", "--set", "steps"], 2, "section.key=value"),
        (["run", "demo", "--from", "datset"], 2, "did you mean 'dataset'?"),
        (["plan", "demo", "--set", "pretrain.steps=many"], 2, "pretrain.steps (found 'many')"),
        (["corpus", "--source", "wikipedia", "--out", "x"], 2, "KIND=PATH"),
        (["corpus", "--source", "wikipeda=x", "--out", "x"], 2, "did you mean 'wikipedia'?"),
        (["corpus", "--source", "wikipedia=/nowhere.xml.bz2", "--out", "x"], 3, "/nowhere.xml.bz2"),
        (["vocab", "--corpus", "/nowhere", "--out", "x"], 3, "/nowhere does not exist"),
        (["pretrain", "--dataset", "/nowhere", "--out", "x"], 3, "/nowhere does not exist"),
        (["verify", "/nowhere"], 3, "'/nowhere' is not a run"),
        (["fill-mask", "/nowhere", "a [MASK]"], 3, "/nowhere"),
        (["generate", "/nowhere", "once upon a time"], 3, "/nowhere"),
        (["resume", "/nowhere"], 3, "'/nowhere' is not a run"),
    ],
)
def test_a_mistake_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sentence in printed.err
    assert "Traceback" not in printed.err
    assert not (tmp_path / "x" / "manifest.json").exists()


def test_alone_it_prints_its_help_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Usage: cloze")
    assert len(printed.splitlines()) > 20


@pytest.mark.parametrize(
    ("arguments", "pointer"),
    [
        (["-q"], "Missing command; see `cloze --help`"),
        (["-v"], "Missing command; see `cloze --help`"),
        (["resume"], "see `cloze resume --help`"),
        (["fill-mask"], "see `cloze fill-mask --help`"),
        (["corpus"], "see `cloze corpus --help`"),
        (["import"], "see `cloze import --help`"),
    ],
)
def test_what_is_missing_points_to_help(
    arguments: list[str], pointer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("cloze: Missing")
    assert pointer in printed
    assert len(printed.splitlines()) == 1


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    assert "Traceback" in cloze("verify", "/nowhere", "--debug", cwd=tmp_path).stderr


def test_status_of_nothing(tmp_path: Path) -> None:
    done = cloze("status", cwd=tmp_path)
    assert (done.returncode, "No runs" in done.stdout) == (0, True)
    assert cloze("status", "--json", cwd=tmp_path).json == {"runs": []}


def test_installed_command_is_this_checkout() -> None:
    script = "import cloze; print(cloze.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd="/"
    )
    assert Path(done.stdout.strip()).parents[2] == REPOSITORY


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["run", "mine.yml"], 2, "did you mean 'mine.yaml'?"),
        (["plan", "mien.yaml"], 2, "did you mean 'mine.yaml'?"),
        (["plan", "nothing-like-it.yaml"], 2, "give a YAML file, or a preset such as demo"),
        (["import", "bert-base-uncased", "--out", "m"], 2, "ORG/NAME"),
        (["import", "gpt2", "--out", "m"], 2, "ORG/NAME"),
        (["fill-mask", "runs/mine", "a [MASK]"], 3, "it is a run: name its training, such as"),
        (["fill-mask", "hub", "a [MASK]"], 3, "`cloze import`"),
        (["adapt", "--from", "nowhere", "--source", "text=t.txt", "-o", "o"], 3, "--from nowhere"),
        (["adapt", "--from", "hub2", "--source", "text=t.txt", "-o", "o"], 3, "no checkpoint"),
    ],
)
def test_advice_is_true(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLOZE_RUNS_DIR", raising=False)
    monkeypatch.setattr(os, "environ", os.environ.copy())  # `adapt` names its runs directory there
    for name in (
        "mine.yaml",
        "t.txt",
        "hub/model.safetensors",
        "hub2/notes",
        "runs/mine/_status/1",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("A text.\n")
    assert main(arguments) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sentence in printed.err
    assert len(printed.err) < 600
