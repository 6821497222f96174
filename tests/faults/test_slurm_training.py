"""A real training under a real Slurm: over two nodes as in one process, through its time limit, a
preemption and the loss of a node.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloze.core.artifacts import artifact
from cloze.model.checkpoint import load
from tests import slurm_cluster
from tests.checkout import import_path
from tests.conftest import REPOSITORY
from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import STILL, TINY

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(slurm_cluster.missing() is not None, reason=str(slurm_cluster.missing())),
]
ENTRY = "from cloze.flows.cli import entry; entry()"
PATIENCE = 900.0
STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture
def cluster() -> Iterator[slurm_cluster.Slurm]:
    with slurm_cluster.running() as found:
        yield found
        for process in STARTED:
            process.kill()
            process.communicate()
        STARTED.clear()


def command(dataset: str, out: Path, steps: int, *more: str) -> list[str]:
    sizes = [
        word
        for name, value in {**TINY, **STILL}.items()
        for word in ("--set", f"model.{name}={value}")
    ]
    return [
        sys.executable, "-c", ENTRY, "pretrain", "--dataset", dataset, *sizes, "--steps",
        str(steps), "--global-batch", "8",
        "--precision", "fp32", "--learning-rate", "3e-3", "--set", "warmup_steps=1", "--set",
        "log_every=1", "--threads", "1",
        "--device", "cpu", "--out", str(out), "--json", *more,
    ]  # fmt: skip


def over_two_nodes(dataset: str, out: Path, steps: int, *more: str) -> list[str]:
    return command(
        dataset, out, steps, "--launcher", "slurm", "--nodes", "2", "--grace-seconds", "15", *more
    )


def begin(words: list[str], cluster: slurm_cluster.Slurm) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        words, cwd=REPOSITORY, env={**cluster.environment, "PYTHONPATH": import_path(REPOSITORY)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    STARTED.append(process)
    return process


def job_of(out: Path) -> str:
    found: str = json.loads((out / "_logs" / "slurm" / "submitted.json").read_text())["job"]
    return found


def wait_for_steps(process: subprocess.Popen[str], out: Path, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while not (out / "metrics.jsonl").exists() or len(lines(out / "metrics.jsonl")) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def ended(process: subprocess.Popen[str], out: Path, steps: int) -> None:
    """It has come to its end, and every step was made once in what is kept."""
    told, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert json.loads(told.splitlines()[-1])["steps"] == steps
    assert [line["step"] for line in lines(out / "metrics.jsonl")] == list(range(1, steps + 1))


def equal(left: Path, right: Path) -> None:
    """The same weights, to the rounding of a sum over ranks."""
    first, second = (load(str(path)).state for path in (left, right))
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert value.allclose(second[name], rtol=0, atol=1e-5), name


def test_two_nodes_train_as_one_process(cluster: slurm_cluster.Slurm, tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset")
    ended(begin(over_two_nodes(dataset, tmp_path / "two", 8), cluster), tmp_path / "two", 8)
    alone = subprocess.run(
        command(dataset, tmp_path / "one", 8),
        cwd=REPOSITORY,
        env=os.environ,
        capture_output=True,
        check=False,
    )
    assert alone.returncode == 0, alone.stderr
    equal(tmp_path / "two", tmp_path / "one")
    manifests = [artifact.read_manifest(str(tmp_path / name)) for name in ("two", "one")]
    assert manifests[0].fingerprint == manifests[1].fingerprint
    assert [manifest.summary["world_size"] for manifest in manifests] == [2, 1]


def test_a_time_limit_is_gone_past(cluster: slurm_cluster.Slurm, tmp_path: Path) -> None:
    """Slurm's own: the limit is moved near once the training is on its way."""
    out = tmp_path / "out"
    process = begin(
        over_two_nodes(write_dataset(tmp_path / "dataset"), out, 4000, "--slurm-option=--time=60"),
        cluster,
    )
    wait_for_steps(process, out, 10)
    job = job_of(out)
    hours, minutes, _ = cluster.field(job, "RunTime").split(":")
    cluster.run(
        "scontrol", "update", f"JobId={job}", f"TimeLimit={60 * int(hours) + int(minutes) + 1}"
    )
    cluster.until(lambda: cluster.field(job, "Restarts") == "1", PATIENCE)
    assert process.poll() is None
    assert list(out.glob("checkpoints/step-*")), (
        out / "_logs" / "slurm" / f"{job}.log"
    ).read_text()
    cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=60")
    cluster.hasten(job)
    ended(process, out, 4000)


def test_a_node_that_is_lost(cluster: slurm_cluster.Slurm, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = begin(
        over_two_nodes(write_dataset(tmp_path / "dataset"), out, 300, "--checkpoint-every", "20"),
        cluster,
    )
    wait_for_steps(process, out, 30)
    job = job_of(out)
    cluster.lose("n2")
    cluster.until(
        lambda: cluster.field(job, "Restarts") == "1", PATIENCE
    )  # Slurm finds it, and queues the job again
    cluster.start_node("n2")
    cluster.hasten(job)
    ended(process, out, 300)
    assert job_of(out) == job


def test_a_preemption(cluster: slurm_cluster.Slurm, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = begin(
        over_two_nodes(write_dataset(tmp_path / "dataset"), out, 1500, "--checkpoint-every", "20"),
        cluster,
    )
    wait_for_steps(process, out, 30)
    job = job_of(out)
    urgent = cluster.run(
        "sbatch",
        "--parsable",
        "--partition=urgent",
        "--nodes=2",
        "--output=/dev/null",
        "--wrap",
        "sleep 5",
    )
    cluster.until(lambda: cluster.field(job, "Restarts") == "1", PATIENCE)
    cluster.until(lambda: cluster.jobs()[urgent] == "COMPLETED", PATIENCE)
    cluster.hasten(job)
    ended(process, out, 1500)


def test_the_written_out_script_continues(cluster: slurm_cluster.Slurm, tmp_path: Path) -> None:
    """infra/slurm/cloze.sbatch: queued again by hand, then by itself at its time limit."""
    out, shim = tmp_path / "out", tmp_path / "bin" / "cloze"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{ENTRY}" "$@"\n')
    shim.chmod(0o755)
    words = command(write_dataset(tmp_path / "dataset"), out, 4000, "--checkpoint-every", "20")
    path = f"{shim.parent}:{os.environ['PATH']}"
    job = cluster.run(
        "env", f"PATH={path}", f"PYTHONPATH={import_path(REPOSITORY)}", "sbatch",
        "--parsable", "--time=60", f"--output={tmp_path}/job.log",
        str(REPOSITORY / "infra" / "slurm" / "cloze.sbatch"), *words[words.index("pretrain") + 1 :],
    )  # fmt: skip

    def steps() -> int:
        return len(lines(out / "metrics.jsonl")) if (out / "metrics.jsonl").exists() else 0

    def queued_again(times: int) -> None:
        cluster.until(lambda: cluster.field(job, "Restarts") == str(times), PATIENCE)
        assert list(out.glob("checkpoints/step-*")), (tmp_path / "job.log").read_text()
        cluster.hasten(job)

    cluster.until(lambda: steps() > 30, PATIENCE)
    cluster.run("scontrol", "requeue", job)
    queued_again(1)
    before = steps()
    cluster.until(lambda: steps() > before + 30, PATIENCE)
    hours, minutes, _ = cluster.field(job, "RunTime").split(":")
    limit = 60 * int(hours) + int(minutes) + 2  # nearer than two minutes: Slurm sends USR1
    cluster.run("scontrol", "update", f"JobId={job}", f"TimeLimit={limit}")
    cluster.until(lambda: cluster.field(job, "Restarts") == "2", PATIENCE)
    cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=60")
    before = steps()
    queued_again(2)
    cluster.until(lambda: steps() > before, PATIENCE)
    assert "resuming from checkpoints/step-" in (tmp_path / "job.log").read_text()
    kept = [line["step"] for line in lines(out / "metrics.jsonl")]
    assert kept == list(range(1, len(kept) + 1))
