"""kill -9 of the whole tree in a stage; the next run goes on, and data and weights are the same
bytes.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from cloze.core.artifacts import artifact
from cloze.model.checkpoint import load
from tests import warm
from tests.flows.test_cli import cloze

STAGES = ["corpus", "vocab", "dataset", "pretrain", "finetune", "evaluate", "report"]
# DeepSpeed, whose start takes seconds, is killed in test_killed_pretraining.py.
SMALL = [
    "--set=pretrain.steps=30",
    "--set=finetune.baselines=false",
    "--set=dataset.mask_copies=2",
    "--set=run.zero=0",
]


def start(place: Path, last: str) -> subprocess.Popen[bytes]:
    command = [
        warm.python(),
        "-c",
        warm.ENTRY,
        "run",
        "sample",
        "--no-prefect",
        *SMALL,
        "--until",
        last,
    ]
    return subprocess.Popen(
        command,
        cwd=place,
        env=environment(place),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def environment(place: Path) -> dict[str, str]:
    return {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{place}/mlflow.db"}


def building(place: Path, stage: str) -> bool:
    return any((place / "runs" / "sample").glob(f"{stage}-*/_building.json"))


def content(place: Path) -> dict[str, str]:
    run = place / "runs" / "sample"
    return {
        stage: artifact.read_manifest(str(run / stage)).content_sha256
        for stage in ("corpus", "vocab", "dataset")
    }


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_killed_in_each_stage(tmp_path: Path) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    run = ("run", "sample", "--no-prefect", *SMALL, "--until", STAGES[-1])
    straight.mkdir()
    killed.mkdir()
    assert cloze(*run, cwd=straight, timeout=400).returncode == 0
    hit = []
    for number, stage in enumerate(STAGES):
        process = start(killed, STAGES[-1])
        while process.poll() is None and not building(killed, stage):
            time.sleep(0.02)
        if process.poll() is None:
            time.sleep(0.4 * (number % 4))  # somewhere inside
            if building(killed, stage):
                hit.append(stage)
            warm.kill(process)
    sought = {"corpus", "vocab", "dataset", "pretrain", "finetune"}
    assert set(hit) >= sought, "the stages ended before they could be killed"
    done = cloze(*run, "--json", cwd=killed, timeout=400)
    assert done.returncode == 0, done.stderr
    assert [stage["stage"] for stage in done.json["stages"]] == STAGES
    assert content(killed) == content(straight)
    for stage in ("pretrain", "finetune"):
        ours, theirs = (
            load(str(place / "runs" / "sample" / stage)).state for place in (killed, straight)
        )
        assert all(tensor.equal(ours[name]) for name, tensor in theirs.items()), stage
    for stage in done.json["stages"]:
        assert artifact.verify(str(killed / stage["artifact"])).ok
