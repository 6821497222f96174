"""A path that is not there is said first, before a library is imported, by each command that takes one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

PROGRAM = """
import contextlib, io, json, sys
import click
from cloze.flows import cli
from cloze.flows.commands.base.options import complete_targets

MORE = {"record": ["--track", "x", "--dataset", "nowhere"], "track": ["--to", "tensorboard"]}

class Refuse:
    def find_spec(self, name, *_):
        if name in ("torch", "transformers", "apache_beam"):
            raise AssertionError(f"{name} was imported")

sys.meta_path.insert(0, Refuse())

def is_path(option):
    if option.name in ("out", "jsonl", "file") or "directory" in option.name:
        return False  # what is written or read by the request, or a repository of a Hub
    completes = getattr(option, "_custom_shell_complete", None) is complete_targets
    return completes or option.name.startswith("input__")

def words(option):
    value = "nowhere" if is_path(option) else "sst2" if option.name == "task" else "nowhere"
    return [value] if isinstance(option, click.Argument) else [option.opts[0], value]

root = click.Context(cli.cloze, info_name="cloze")
for name in cli.cloze.list_commands(root):
    command = cli.cloze.get_command(root, name)
    context = click.Context(command, info_name=name, parent=root)
    options = command.get_params(context)
    required = [o for o in options if o.required or (is_path(o) and isinstance(o, click.Argument))]
    for option in filter(is_path, options):
        given = [word for o in {*required, option} for word in words(o)]
        out = ["--out", sys.argv[1]] if any(o.name == "out" for o in options) else []
        error = io.StringIO()
        with contextlib.redirect_stderr(error):
            code = cli.main([name, *given, *out, *MORE.get(name, ())])
        print(json.dumps([name, option.opts[0], code, error.getvalue()]), file=sys.__stdout__)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, int, str]]:
    """Command, option, exit code and message, of each path that a command takes."""
    place = tmp_path_factory.mktemp("place")
    environment = {**os.environ, "CLOZE_RUNS_DIR": str(place / "runs")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(place / "made")],
        cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(place.iterdir()) in ([], [place / "runs"])
    return [tuple(json.loads(line)) for line in done.stdout.splitlines() if line[:1] == "["]


def test_each_command_says_that_a_path_does_not_exist(
    answers: list[tuple[str, str, int, str]],
) -> None:
    assert {name for name, *_ in answers} >= {"inspect", "verify", "evaluate", "serve", "search"}
    wrong = [
        answer
        for answer in answers
        if answer[2] not in (2, 3)
        or not ("nowhere does not exist" in answer[3] or "'nowhere' is not a run" in answer[3])
    ]
    assert not wrong


def test_the_nearest_name_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from cloze.flows import cli

    monkeypatch.chdir(tmp_path)
    (tmp_path / "work" / "dataset").mkdir(parents=True)
    for text in ("work/datasett", str(tmp_path / "work" / "datset")):
        assert cli.main(["inspect", text]) == 3
        said = capsys.readouterr().err
        assert f"{text} does not exist; did you mean '" in said
        assert "work/dataset'?" in said
