"""An option on the wrong side of the command, and a place that cannot be written: exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloze.flows.cli import main


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["--json", "status"], "write it after the command: `cloze status --json`"),
        (["--delete", "clean"], "write it after the command: `cloze clean --delete`"),
        (["--out", "x", "corpus"], "write it after the command: `cloze corpus --out`"),
        (["status", "--version"], "stands before the command: `cloze --version`"),
        (["--jsonn", "status"], "No such option"),
        (["--json"], "No such option"),
    ],
)
def test_an_option_in_the_wrong_place_says_where_it_goes(
    arguments: list[str], advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert advice in line


@pytest.mark.parametrize("place", ["/proc/x", "/dev/null/x", "/proc/self/status/x"])
def test_a_place_that_cannot_be_written_is_wrong_usage(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("A text of a few words.\n")
    assert main(["corpus", "--source", f"text={tmp_path / 'a.txt'}", "--out", place]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("cloze: ")
    assert place.rpartition("/")[0] in line
