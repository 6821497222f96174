"""A `~` that no shell has expanded is the home, and never a directory of that name."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloze.core import places
from cloze.flows import cli
from cloze.flows.graph.config import load
from cloze.flows.machine import slots


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home, beside the working directory."""
    (tmp_path / "home" / "text").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "home"


def test_in_a_config(home: Path) -> None:
    Path("own.yaml").write_text(
        "corpus: {sources: [{kind: text, path: ~/text}]}\ntokenizer: ~/vocab.txt\n"
        "pretrain: {model: bert-tiny, steps: 5, dataset: ~/data/rows}\n"
    )
    config = load("own.yaml")
    assert config.values["corpus"]["sources"][0]["path"] == str(home / "text")
    assert config.tokenizer == str(home / "vocab.txt")
    assert config.values["pretrain"]["dataset"] in (
        [str(home / "data/rows")],
        str(home / "data/rows"),
    )


def test_in_variables_that_a_service_or_a_container_sets(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOZE_RUNS_DIR", "~/runs")
    monkeypatch.setenv("CLOZE_SLOTS_DIR", "~/slots")
    assert places.runs_directory() == home / "runs"
    assert slots.directory() == home / "slots"


def test_on_the_command_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shells expand it at the start of a word alone; `--out=~/c` made a directory `~`."""
    seen: list[str] = []
    monkeypatch.setattr(cli.cloze, "main", lambda words, **_: seen.extend(words))
    words = [
        "--out=~/c",
        "--source",
        "text=~/text",
        "--set",
        "finetune.data=~/tasks",
        "x~/y",
        "a=~b",
    ]
    assert cli.main(words) == 0
    assert seen == [
        f"--out={home}/c", "--source", f"text={home}/text", "--set", f"finetune.data={home}/tasks",
        "x~/y", "a=~b",
    ]  # fmt: skip


def test_a_text_stays(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "~/none"]) == 3
    assert "~/none" in capsys.readouterr().err
