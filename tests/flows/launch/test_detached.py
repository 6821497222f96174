"""Launches that outlive the process that started them: found again, never doubled, and superseded
where asking was wrong.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloze.core.artifacts import claim, fence
from cloze.core.artifacts.lock import locked
from cloze.core.errors import ClozeError, SupersededError, UsageError
from cloze.core.stages.execute import execute
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.core.stages.worker import Job
from cloze.flows.launch import coordinator, protocol
from cloze.flows.launch.protocol import LaunchRequest, RankGroup
from cloze.flows.launch.slurm import cli as slurm_cli
from cloze.flows.launch.slurm import launcher as slurm_launcher
from tests.checkout import import_path
from tests.conftest import REPOSITORY
from tests.flows.toy import STAGE, ToyConfig
from tests.labs.kubernetes.test_kubernetes import IMAGE
from tests.labs.kubernetes.test_kubernetes import cluster as cluster
from tests.slurm_stand_in import Queue

CONFIG = ToyConfig()
FINGERPRINT = STAGE.fingerprint(CONFIG, {})


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    found = Queue(tmp_path / "queue")
    monkeypatch.setenv("PATH", found.path)
    monkeypatch.setenv("PYTHONPATH", import_path(REPOSITORY))
    monkeypatch.setattr(slurm_cli, "POLL_SECONDS", (0.01, 0.1))
    return found


def submit(out: Path, launcher: str = "slurm", **options: Any) -> RankGroup:
    """Start the toy stage as `cloze` does; the submitter ends at once, for it does not follow what
    it started.
    """
    with locked(str(out)):
        build_id = claim.claim_directory(
            str(out), claim.Claim("toy", FINGERPRINT), force=False
        ).build
        execution = Execution(launcher=launcher, device="cpu", **options)
        build = BuildContext(
            path=str(out),
            inputs={},
            execution=execution,
            fingerprint=FINGERPRINT,
            build_id=build_id,
        )
        job = Job(
            stage="toy", reference="tests.flows.toy:STAGE", config=CONFIG.model_dump(mode="json"),
            path=str(out), inputs={},
            execution=execution.model_dump(mode="json"), fingerprint=FINGERPRINT, build_id=build_id,
        )  # fmt: skip
        return protocol.LAUNCHERS.find(launcher).start(
            LaunchRequest(job=job, worker="tests.flows.worker", processes=1, build=build)
        )


def train_here(out: Path) -> None:
    """What `cloze resume OUT --processes 1` does."""
    stage = dataclasses.replace(
        STAGE, run=coordinator.run_in_worker_processes(STAGE, "tests.flows.toy:STAGE")
    )
    execute(stage, CONFIG, {}, str(out), execution=Execution(device="cpu"))


def cancel(out: Path) -> dict[str, Any]:
    words = [
        sys.executable,
        "-c",
        "from cloze.flows.cli import entry; entry()",
        "cancel",
        f"{out}/",
        "--json",
    ]
    done = subprocess.run(
        words, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING"])
def test_a_job_that_nobody_follows_keeps_others_out(
    queue: Queue, tmp_path: Path, state: str
) -> None:
    submit(tmp_path / "out")
    queue.set("1", state)
    with pytest.raises(
        UsageError,
        match=r"Slurm's job 1 still trains in .*out; follow it with --launcher slurm, or .*cancel",
    ):
        train_here(tmp_path / "out")
    assert not (tmp_path / "out" / "_pid-0").exists()
    queue.set("1", "CANCELLED")
    train_here(tmp_path / "out")


def test_what_slurm_does_not_say_is_no_leave_to_train(queue: Queue, tmp_path: Path) -> None:
    submit(tmp_path / "out")
    queue.misbehave("down")
    with pytest.raises(ClozeError, match="Slurm does not say whether a job still trains in"):
        train_here(tmp_path / "out")


def test_cancel_ends_a_job_that_waits_and_makes_room(queue: Queue, tmp_path: Path) -> None:
    submit(tmp_path / "out")
    assert cancel(tmp_path / "out")["state"] == "cancelled"
    assert queue.jobs() == {"1": "CANCELLED"}
    train_here(tmp_path / "out")


def test_a_job_that_slurm_cannot_end_is_told(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a node that does not answer: `cloze cancel` waited for it without a limit."""
    monkeypatch.setattr(slurm_cli, "cancel", lambda job: None)
    monkeypatch.setattr(slurm_launcher, "MARGIN_SECONDS", 0.0)
    submit(tmp_path / "out", grace_seconds=1)
    queue.set("1", "RUNNING")
    with pytest.raises(ClozeError, match="Slurm's job 1 does not end; look at it with `squeue -j"):
        slurm_launcher.cancel(str(tmp_path / "out"), "1", lambda line: None)


def test_a_submission_that_was_accepted_without_an_answer_is_found_by_its_name(
    queue: Queue, tmp_path: Path
) -> None:
    queue.misbehave("lose")
    submit(tmp_path / "out")
    assert queue.jobs() == {"1": "PENDING"}
    submit(tmp_path / "out")
    assert queue.jobs() == {"1": "PENDING"}


def test_a_submitter_that_was_killed_before_it_noted_the_job_finds_it(
    queue: Queue, tmp_path: Path
) -> None:
    submit(tmp_path / "out")
    (tmp_path / "out" / "_logs" / "slurm" / "submitted.json").unlink()
    with pytest.raises(UsageError, match="Slurm's job 1 still trains in"):
        train_here(tmp_path / "out")
    submit(tmp_path / "out")
    assert queue.jobs() == {"1": "PENDING"}


def test_a_job_that_shows_up_late_is_followed_and_another_one_ended(
    queue: Queue, tmp_path: Path
) -> None:
    for _ in range(2):
        queue.misbehave("late")
        with pytest.raises(
            ClozeError, match="did not confirm the job cloze-toy-.*Socket timed out.*run again"
        ):
            submit(tmp_path / "out")
    queue.appear()
    submit(tmp_path / "out")
    assert queue.jobs() == {"1": "PENDING", "2": "CANCELLED"}


def test_a_job_that_waits_can_be_resumed_as_it_was_begun(queue: Queue, tmp_path: Path) -> None:
    submit(tmp_path / "out", nodes=2)
    begun = Job.read(str(tmp_path / "out" / "_logs" / "job.json"))
    assert (begun.execution["launcher"], begun.execution["nodes"]) == ("slurm", 2)


def test_a_job_that_slurm_refused_is_not_asked_for(queue: Queue, tmp_path: Path) -> None:
    queue.misbehave("refuse")
    with pytest.raises(UsageError, match="Slurm rejects the job"):
        submit(tmp_path / "out")
    queue.misbehave("down")
    train_here(tmp_path / "out")


def test_slurm_itself_runs_one_job_of_a_build_at_a_time(queue: Queue, tmp_path: Path) -> None:
    submit(tmp_path / "out")
    script = (tmp_path / "out" / "_logs" / "slurm" / "job.sbatch").read_text()
    build = claim.read(str(tmp_path / "out"))
    assert build is not None
    assert f"#SBATCH --job-name=cloze-toy-{build.build[:16]}\n" in script
    assert "#SBATCH --dependency=singleton\n" in script


def test_a_train_job_that_nobody_follows_keeps_others_out(cluster: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (cluster / "unschedulable").touch()
    submit(
        out,
        "kubernetes",
        kubernetes_options=(IMAGE, f"claim=training:{out.parent}", f"python={sys.executable}"),
    )
    with pytest.raises(
        UsageError,
        match=r"TrainJob cloze-out-\w+ still trains in .*out; follow it with --launcher kubernetes",
    ):
        train_here(out)
    (cluster / "down").touch()
    with pytest.raises(
        ClozeError, match=r"the cluster does not say whether TrainJob cloze-out-\w+ still trains in"
    ):
        train_here(out)
    (cluster / "down").unlink()
    assert cancel(out)["state"] == "cancelled"
    train_here(out)


def test_a_train_job_is_deleted_although_the_first_request_fails(
    cluster: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    (cluster / "unschedulable").touch()
    started = submit(
        out,
        "kubernetes",
        kubernetes_options=(IMAGE, f"claim=training:{out.parent}", f"python={sys.executable}"),
    )
    (cluster / "down").touch()
    started.stop(0)
    assert "could not be deleted (The connection to the server" in caplog.text
    assert "kubectl delete trainjobs.trainer.kubeflow.org cloze-out-" in caplog.text
    (cluster / "down").unlink()
    started.close()
    assert [path.name for path in cluster.iterdir() if path.is_dir()] == []


def test_a_restart_is_refused_once_another_launch_has_begun(tmp_path: Path) -> None:
    launch = fence.start_launch(str(tmp_path))
    first = fence.start_attempt(str(tmp_path), launch)
    second = fence.start_attempt(str(tmp_path), launch)
    second.check()
    with pytest.raises(SupersededError, match="another launch has taken over"):
        first.check()
    fence.start_launch(str(tmp_path))
    with pytest.raises(SupersededError) as caught:
        fence.start_attempt(str(tmp_path), launch)
    assert caught.value.exit_code == UsageError.exit_code  # it is not tried again
