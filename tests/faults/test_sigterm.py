"""SIGTERM to whichever processes of a training: all end, with a checkpoint, and exit code 4."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import torch

from cloze.core.artifacts import checkpoint_files
from cloze.model.train.distributed import World
from cloze.model.train.monitor.watchdog import ShutdownTimeEstimator
from tests import warm
from tests.faults.test_hangs import Listener
from tests.model.datasets import write_dataset

ARGUMENTS = [
    "--model",
    "bert-tiny",
    "--steps",
    "100000",
    "--global-batch",
    "8",
    "--precision",
    "fp32",
    "--processes",
    "2",
]
QUIET = ["--evaluate-every", "100000", "--set", "log_every=1", "--threads", "1", "--device", "cpu"]

pytestmark = pytest.mark.timeout(280)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset")


def start(dataset: str, out: Path) -> subprocess.Popen[str]:
    command = [
        warm.python(),
        "-c",
        warm.ENTRY,
        "pretrain",
        "--dataset",
        dataset,
        *ARGUMENTS,
        *QUIET,
        "--out",
        str(out),
    ]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ})


def ranks_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return [child for child in warm.family(process.pid) if "cloze.model.worker" in child.cmdline()]


def ended(process: subprocess.Popen[str], ranks: list[psutil.Process]) -> str:
    """What it said; none of its ranks is left."""
    _, told = process.communicate(timeout=120)
    assert process.returncode == 4, told
    assert not any(rank.is_running() for rank in ranks)
    return told.splitlines()[-1]


@pytest.mark.parametrize(
    "who",
    ["all", *(pytest.param(who, marks=pytest.mark.soak) for who in ("ranks", "one rank twice"))],
)
def test_all_end_with_a_checkpoint(dataset: str, tmp_path: Path, who: str) -> None:
    """Slurm tells every process of a job; a launcher tells its ranks again what somebody else has
    told them.
    """
    process = start(dataset, tmp_path / "run")
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.02)
    ranks = ranks_of(process)
    assert len(ranks) == 2
    if who == "one rank twice":
        ranks[1].terminate()
        time.sleep(0.001)
        ranks[1].terminate()
    else:
        for each in (*ranks, *([process] if who == "all" else [])):
            each.send_signal(signal.SIGTERM)
    assert "is saved: run again to continue" in ended(process, ranks)
    (saved,) = (tmp_path / "run" / "checkpoints").iterdir()
    checkpoint_files.verify(str(saved))


def test_a_rank_that_has_not_begun_to_heed_it(dataset: str, tmp_path: Path) -> None:
    """While it imports, the signal ends it: that is a stop, too."""
    process = start(dataset, tmp_path / "run")
    while not (ranks := ranks_of(process)):
        assert process.poll() is None
        time.sleep(0.01)
    ranks[0].terminate()
    assert "was stopped (SIGTERM); run again to continue" in ended(process, ranks)


def test_a_large_model_has_longer() -> None:
    """BERT-large has 335 million parameters, 4 GB of state: 25 s would not do."""

    class Told(Listener):
        seconds = 0.0

        def shutdown_time(self, seconds: float) -> None:
            self.seconds = seconds

    told = Told()
    with torch.device("meta"):
        large = torch.nn.Linear(33_500, 10_000, bias=False)
    grace = ShutdownTimeEstimator(told, large, World(0, 1, torch.device("cpu")))
    assert told.seconds > 100
    grace.observe_step(10.0)
    grace.observe_save(80.0)
    assert told.seconds == pytest.approx(10 + 320 + 30), "another save may run first"
