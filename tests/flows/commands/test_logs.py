"""`cloze logs`: of an artifact, a run, a node of one, a section's nodes, a stage; the one that
wrote last.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloze.core import storage
from cloze.core.stages import worker
from cloze.flows.cli import main
from cloze.flows.run.targets import resolve

PLACES = {
    "night/pretrain-aaaaaaaaaaaa": 100,
    "night/finetune@sst2-1-bbbbbbbbbbbb": 200,
    "night/finetune@sst2-2-cccccccccccc": 300,
    "day/pretrain-dddddddddddd": 400,
    "day/finetune@sst2-1-eeeeeeeeeeee": 50,
}


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    for place, moment in PLACES.items():
        log = tmp_path / "runs" / place / "_logs" / "rank0.log"
        log.parent.mkdir(parents=True)
        log.write_text(f"first line\nI am {place}\n")
        os.utime(log, (moment, moment))
        link = tmp_path / "runs" / place.rpartition("-")[0]
        link.symlink_to(Path(place).name)
    return tmp_path / "runs"


def told(what: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["logs", what, "--lines", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "first line" not in lines
    return lines[-1].removeprefix("I am ")


@pytest.mark.parametrize(
    ("what", "place"),
    [
        ("night", "night/finetune@sst2-2-cccccccccccc"),
        ("day", "day/pretrain-dddddddddddd"),
        ("night/finetune@sst2-1", "night/finetune@sst2-1-bbbbbbbbbbbb"),
        ("night/finetune", "night/finetune@sst2-2-cccccccccccc"),
        ("night/finetune@sst2", "night/finetune@sst2-2-cccccccccccc"),
        ("finetune@sst2-1", "night/finetune@sst2-1-bbbbbbbbbbbb"),
        ("pretrain", "day/pretrain-dddddddddddd"),
        ("runs/night/pretrain", "night/pretrain-aaaaaaaaaaaa"),
        ("runs/night/pretrain-aaaaaaaaaaaa", "night/pretrain-aaaaaaaaaaaa"),
    ],
)
def test_what_is_meant_is_found(what: str, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(what, capsys) == place


def test_a_checkpoint_belongs_to_the_node_of_its_training(runs: Path) -> None:
    training = runs / "night" / "pretrain-aaaaaaaaaaaa"
    checkpoint = training / "checkpoints" / "step-00000008"
    checkpoint.mkdir(parents=True)
    (training / "_building.json").write_text("{}")
    (runs / "night" / "_status").mkdir()
    assert resolve(str(checkpoint)).nodes == ["pretrain"]


def test_what_is_not_there_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "night/finetune@sst2-3"]) == 3
    assert "did you mean 'night/finetune@sst2-" in capsys.readouterr().err


def test_metrics_of_an_artifact_in_a_store_are_read_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its logs are on the machine that trained."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = "memory://logged/pretrain"
    storage.write_bytes(f"{path}/_building.json", b"{}")
    storage.write_bytes(f"{path}/metrics.jsonl", b'{"step": 7, "loss": 6.25}\n')
    log = worker.local_directory(path) / "_logs" / "rank0.log"
    log.parent.mkdir(parents=True)
    log.write_text("rank 0 is here\n")
    assert main(["logs", path]) == 0
    assert "step 7  loss 6.25" in (shown := capsys.readouterr().out)
    assert "rank 0 is here" in shown
