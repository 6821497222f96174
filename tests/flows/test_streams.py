"""Output that a terminal, a pipe or a caller cannot take ends no command in another way."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloze.flows import cli


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "shift_jis", "utf-8"])
def test_a_terminal_of_any_encoding_shows_a_plan(
    encoding: str, toy_config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tree of a plan and a name with an umlaut were an internal error, exit code 1."""
    shown = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    told = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr(sys, "stderr", told)
    assert cli.main(["plan", toy_config, "--set", "name=Übung日本"]) == 0
    assert cli.main(["status", "Übung日本"]) == 3
    for stream in (shown, told):
        stream.flush()
        assert isinstance(stream.buffer, io.BytesIO)
        assert "bung" in stream.buffer.getvalue().decode(encoding)


@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)])
def test_closed_streams_are_no_files_of_the_run(closed: tuple[int, ...], tmp_path: Path) -> None:
    """As below some daemons: the next file would get the number, and others' output with it."""
    code = (
        "import os, sys; from cloze.flows import cli\n"
        "code = cli.main(['plan', 'nofile.yaml'])\n"
        "opened = os.open('next', os.O_CREAT | os.O_WRONLY)\n"
        "os._exit(code * 10 + (opened > 2))\n"
    )
    here = str(Path(cli.__file__).parents[2])
    found = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {" ".join(f"{n}>&-" for n in closed)}', sys.executable, code],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": here}, check=False,
    )  # fmt: skip
    assert found.returncode == 21
