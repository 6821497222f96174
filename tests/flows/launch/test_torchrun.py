"""Ranks that a foreign `torchrun` starts: `torchrun … --no-python cloze pretrain …` makes the
artifact of `--processes`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from cloze.core.errors import UsageError
from cloze.core.stages.execution import Execution
from cloze.flows.launch.host_setup import UNSHARED, check_foreign, foreign_rank
from tests import warm
from tests.checkout import import_path
from tests.conftest import REPOSITORY
from tests.flows.test_cli import cloze
from tests.model.datasets import write_dataset

TORCHRUN = "import cloze; from torch.distributed.run import main; main()"
TRAINING = (
    "--model",
    "bert-tiny",
    "--global-batch",
    "8",
    "--precision",
    "fp32",
    "--device",
    "cpu",
    "--threads",
    "1",
)
MORE = ("--set", "warmup_steps=1", "--checkpoint-every", "4")
GIVEN = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "9"}


def pretrain(dataset: str, steps: int, out: Path) -> list[str]:
    return [
        "pretrain",
        "--dataset",
        dataset,
        *TRAINING,
        *MORE,
        "--steps",
        str(steps),
        "--out",
        str(out),
        "--json",
    ]


def torchrun(
    *arguments: str, options: tuple[str, ...] = (), **environment: str
) -> subprocess.Popen[str]:
    """It and its ranks are forks: see `tests.warm`."""
    own = ["--standalone", "--nproc-per-node", "2", *options, "--no-python"]
    program = [warm.python(), "-c", warm.ENTRY, *arguments]
    return subprocess.Popen(
        [warm.python(), "-c", TORCHRUN, *own, *program],
        env={**os.environ, "PYTHONPATH": import_path(REPOSITORY), **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def content(out: Path) -> str:
    done = cloze("verify", out, "--json")
    assert done.returncode == 0, done.stderr
    [found] = json.loads(done.stdout.splitlines()[-1])["artifacts"]
    return str(found["content_sha256"])


def test_torchrun_trains_as_two_processes_do(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset")
    output, reported = torchrun(*pretrain(dataset, 6, tmp_path / "torchrun")).communicate(
        timeout=280
    )
    under_torchrun = [json.loads(line) for line in output.splitlines()]
    done = cloze(*pretrain(dataset, 6, tmp_path / "processes"), "--processes", "2")
    assert (done.returncode, len(under_torchrun)) == (0, 1), (done.stderr, reported)
    by_cloze = json.loads(done.stdout.splitlines()[-1])
    for name in ("world_size", "loss", "first_loss", "heldout_loss"):
        assert under_torchrun[0][name] == by_cloze[name]
    assert by_cloze["world_size"] == 2
    assert content(tmp_path / "torchrun") == content(tmp_path / "processes")


@pytest.mark.soak
def test_torchrun_restarts_a_killed_rank_from_the_newest_checkpoint(tmp_path: Path) -> None:
    dataset, out = write_dataset(tmp_path / "dataset"), tmp_path / "torchrun"
    process = torchrun(
        *pretrain(dataset, 60, out), options=("--max-restarts", "1"), **{UNSHARED: "1"}
    )
    deadline = time.monotonic() + 120
    while not (out / "checkpoints" / "step-00000008" / "checkpoint.json").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    ranks = [
        one.pid
        for one in psutil.process_iter(["cmdline"])
        if str(out / "_logs" / "job-rank1.json") in (one.info["cmdline"] or ())
    ]
    os.kill(ranks[0], signal.SIGKILL)
    _, reported = process.communicate(timeout=280)
    assert process.returncode == 0, reported
    assert "rank 1 was killed (SIGKILL" in " ".join(reported.split())
    assert "resuming from checkpoints/step-" in reported
    assert cloze(*pretrain(dataset, 60, tmp_path / "processes"), "--processes", "2").returncode == 0
    assert content(out) == content(tmp_path / "processes")


def test_a_rank_needs_the_whole_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in GIVEN.items():
        assert foreign_rank() is None
        monkeypatch.setenv(name, value)
    assert foreign_rank() == (1, 2)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert foreign_rank() is None


@pytest.mark.parametrize(
    "given",
    [{"processes": 2}, {"launcher": "slurm"}, {"restarts": 1}, {"nodes": 2, "min_nodes": 1}],
)
def test_what_torchrun_decides_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="conflicts with torchrun"):
        check_foreign(Execution.model_validate(given))


def test_restarts_over_one_store_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(UsageError, match=f"set {UNSHARED}=1"):
        check_foreign(Execution())
    monkeypatch.setenv(UNSHARED, "1")
    check_foreign(Execution())


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (("--force",), "--force does not work under torchrun"),
        (("--processes", "2"), r"processes \(2\) conflicts"),
    ],
)
def test_a_rank_refuses_before_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], what: str
) -> None:
    dataset = write_dataset(tmp_path / "dataset")
    for name, value in {**GIVEN, "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    done = cloze(*pretrain(dataset, 6, tmp_path / "out"), *more)
    assert done.returncode == 2
    assert what.replace("\\", "") in done.stderr
