"""`--launcher slurm` on a real Slurm of two nodes: submitted, followed, cancelled, queued again,
attached to; with a toy for a training.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cloze.core.errors import ClozeError, StoppedError, UsageError
from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import Reporter
from cloze.flows.launch import coordinator, protocol
from cloze.flows.launch.slurm import cli as slurm_cli
from cloze.flows.launch.slurm import launcher as slurm
from tests import slurm_cluster
from tests.checkout import import_path
from tests.conftest import REPOSITORY
from tests.flows.toy import STAGE, ToyConfig

pytestmark = pytest.mark.timeout(600)
needs_slurm = pytest.mark.skipif(
    slurm_cluster.missing() is not None, reason=str(slurm_cluster.missing())
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[slurm_cluster.Slurm]:
    with slurm_cluster.running() as found:
        yield found


@pytest.fixture(autouse=True)
def _environment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", import_path(REPOSITORY))
    if "cluster" in request.fixturenames:
        monkeypatch.setenv("SLURM_CONF", str(request.getfixturevalue("cluster").config))


class Heard(Reporter):
    """What a follower is reported. `stop` asks it to end; `at_progress` is called when the stage is on
    its way.
    """

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.notes: list[str] = []
        self.steps: list[float] = []
        self.starts: list[tuple[int, int]] = []  # restarts and preemptions
        self.metrics_seen: list[Mapping[str, Any]] = []

    def progress(
        self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]
    ) -> None:
        if "note" in figures:
            self.notes.append(figures["note"])
        elif "preemptions" in figures:
            self.starts.append((figures["restarts"], figures["preemptions"]))
        elif total is not None:
            self.steps.append(done)

    def metrics(self, values: Mapping[str, Any]) -> None:
        self.metrics_seen.append(values)

    def stop_requested(self) -> bool:
        return self.stop.is_set()


def run(
    out: Path,
    heard: Reporter,
    act: str = "work",
    nodes: int = 2,
    options: tuple[str, ...] = (),
    **more: Any,
) -> BuildResult:
    stage = dataclasses.replace(
        STAGE, run=coordinator.run_in_worker_processes(STAGE, "tests.flows.toy:STAGE")
    )
    execution = Execution(
        launcher="slurm", nodes=nodes, slurm_options=options, device="cpu", grace_seconds=20, **more
    )
    return execute(stage, ToyConfig(act=act), {}, str(out), execution=execution, report=heard)


def meanwhile(
    heard: Heard, ready: Callable[[], object], act: Callable[[], object]
) -> threading.Thread:
    """A thread that does something once something is so."""

    def wait_and_act() -> None:
        deadline = time.monotonic() + 200
        while not ready() and time.monotonic() < deadline:
            time.sleep(0.1)
        act()

    thread = threading.Thread(target=wait_and_act, daemon=True)
    thread.start()
    return thread


def job_of(out: Path) -> str:
    found: str = json.loads((out / "_logs" / "slurm" / "submitted.json").read_text())["job"]
    return found


@needs_slurm
def test_two_nodes_make_it(cluster: slurm_cluster.Slurm, tmp_path: Path) -> None:
    heard = Heard()
    result = run(tmp_path / "out", heard)
    assert (tmp_path / "out" / "out.txt").read_text() == "2"  # ranks
    assert result.manifest.counters == {"seen": 5}
    assert heard.steps == [1, 2, 3]
    assert (
        json.loads((tmp_path / "out" / "_logs" / "job.json").read_text())["execution"]["launcher"]
        == "slurm"
    )
    assert [line["step"] for line in heard.metrics_seen] == [1, 2, 3]
    cluster.until(lambda: cluster.jobs()[job_of(tmp_path / "out")] == "COMPLETED")


@needs_slurm
@pytest.mark.soak
def test_a_stopped_run_ends_its_job_and_is_gone_on_with(
    cluster: slurm_cluster.Slurm, tmp_path: Path
) -> None:
    out, heard = tmp_path / "out", Heard()
    meanwhile(heard, lambda: len(list(out.glob("_pid-?"))) == 2, heard.stop.set)
    with pytest.raises(StoppedError, match="stopped at step 7, checkpoint saved"):
        run(out, heard, "twice")
    first = job_of(out)
    cluster.until(lambda: cluster.jobs()[first] in ("FAILED", "CANCELLED", "COMPLETED"))
    assert cluster.field(first, "Restarts") == "0"  # who cancels does not want it to go on
    assert run(out, Heard(), "twice").manifest.summary == {"rank": 0}
    assert job_of(out) != first


@needs_slurm
def test_a_job_whose_time_is_over_is_queued_again(
    cluster: slurm_cluster.Slurm, tmp_path: Path
) -> None:
    out, heard = tmp_path / "out", Heard()

    def end_of_time() -> None:
        cluster.run(
            "scancel", "--batch", "--signal=TERM", job_of(out)
        )  # what `--signal=B:TERM@…` does
        cluster.until(lambda: any("waits in the queue again" in note for note in heard.notes))
        cluster.hasten(job_of(out))

    thread = meanwhile(heard, lambda: len(list(out.glob("_pid-?"))) == 2, end_of_time)
    run(out, heard, "twice")
    thread.join()
    job = job_of(out)
    assert f"job {job} waits in the queue again (BeginTime)" in heard.notes
    assert heard.steps == [1, 1, 2, 3]
    assert heard.starts == [(0, 1)], "the scheduler's doing, no failure"
    assert cluster.field(job, "Restarts") == "1"
    assert "the job is queued again" in (out / "_logs" / "slurm" / f"{job}.log").read_text()


@needs_slurm
@pytest.mark.soak
def test_a_job_that_is_taken_out_of_the_queue_again_is_no_stop(
    cluster: slurm_cluster.Slurm, tmp_path: Path
) -> None:
    """Its head has said that it is queued again; what became of that is what counts."""
    out, heard = tmp_path / "out", Heard()

    def queue_and_cancel() -> None:
        cluster.run("scancel", "--batch", "--signal=TERM", job_of(out))
        cluster.until(lambda: any("waits in the queue again" in note for note in heard.notes))
        cluster.run("scancel", job_of(out))

    meanwhile(heard, lambda: len(list(out.glob("_pid-?"))) == 2, queue_and_cancel)
    with pytest.raises(
        ClozeError, match=r"was cancelled after it was requeued \(stopped at step 7"
    ) as caught:
        run(out, heard, "twice")
    assert not isinstance(caught.value, StoppedError)


def left_alone(cluster: slurm_cluster.Slurm, out: Path) -> str:
    """A job that runs, and whose submitter was killed."""
    script = (
        "import sys; from pathlib import Path; from tests.flows.launch import test_slurm as t; "
        "t.run(Path(sys.argv[1]), t.Heard(), 'twice')"
    )
    killed = subprocess.Popen(
        [sys.executable, "-c", script, str(out)], cwd=REPOSITORY, start_new_session=True
    )
    cluster.until(lambda: len(list(out.glob("_pid-?"))) == 2)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    return job_of(out)


@needs_slurm
@pytest.mark.soak
def test_the_same_command_attaches_to_the_job_of_one_that_was_killed(
    cluster: slurm_cluster.Slurm, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    job = left_alone(cluster, out)
    assert cluster.jobs()[job] == "RUNNING"
    heard = Heard()
    thread = meanwhile(
        heard, lambda: heard.steps, lambda: cluster.run("scancel", "--batch", "--signal=TERM", job)
    )
    hasten = meanwhile(heard, lambda: heard.steps, lambda: cluster.hasten(job))
    run(out, heard, "twice")
    thread.join()
    hasten.join()
    assert job_of(out) == job
    assert heard.steps == [1, 1, 2, 3]  # what was reported while nobody listened, too


@needs_slurm
def test_one_that_waits_in_the_queue_says_so_and_leaves_it(
    cluster: slurm_cluster.Slurm, tmp_path: Path
) -> None:
    blocker = cluster.run(
        "sbatch", "--parsable", "--nodes=2", "--output=/dev/null", "--wrap", "sleep 300"
    )
    cluster.until(lambda: cluster.jobs()[blocker] == "RUNNING")
    out, heard = tmp_path / "out", Heard()
    meanwhile(heard, lambda: any("(Resources)" in note for note in heard.notes), heard.stop.set)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(out, heard)
        job = job_of(out)
        assert f"job {job} waits in the queue (Resources)" in heard.notes
        assert cluster.jobs()[job] == "CANCELLED"
    finally:
        cluster.run("scancel", blocker)


@needs_slurm
@pytest.mark.soak
def test_a_rank_that_dies_is_named_with_its_host(
    cluster: slurm_cluster.Slurm, tmp_path: Path
) -> None:
    with pytest.raises(ClozeError, match=r"toy rank 1 on host 127\.0\.0\.3 was killed \(SIGKILL"):
        stage = dataclasses.replace(
            STAGE, run=coordinator.run_in_worker_processes(STAGE, "tests.flows.toy:STAGE")
        )
        execution = Execution(launcher="slurm", nodes=2, device="cpu")
        execute(stage, ToyConfig(act="die", rank=1), {}, str(tmp_path / "out"), execution=execution)
    job = job_of(tmp_path / "out")
    cluster.until(lambda: cluster.jobs()[job] == "FAILED")
    assert cluster.field(job, "Restarts") == "0"


@needs_slurm
def test_what_slurm_refuses_is_told_in_its_words(
    cluster: slurm_cluster.Slurm, tmp_path: Path
) -> None:
    with pytest.raises(
        UsageError,
        match=(r"Slurm rejects the job \(.*nvalid partition.*\); check --slurm-option and `sinfo`"),
    ):
        run(tmp_path / "out", Heard(), options=("--partition=nowhere",))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"slurm_options": ("--nodes=3",)},
            r"slurm_options \(--nodes=3\) is set by the launcher; use --nodes",
        ),
        (
            {"slurm_options": ("-N4",)},
            r"slurm_options \(-N4\) is set by the launcher; use --nodes",
        ),
        (
            {"slurm_options": ("-e/tmp/errors",)},
            r"slurm_options \(-e/tmp/errors\) is set by the launcher",
        ),
        ({"slurm_options": ("-D/tmp",)}, r"slurm_options \(-D/tmp\) is set by the launcher"),
        (
            {"slurm_options": ("partition=gpu",)},
            r"slurm_options \('partition=gpu'\) must look like --NAME=VALUE",
        ),
    ],
)
def test_bad_options_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        protocol.LAUNCHERS.find("slurm").check(Execution(launcher="slurm", **given))


def test_a_machine_without_slurm_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        UsageError,
        match="launcher slurm needs sbatch, which is not on this machine; run it on a login node",
    ):
        protocol.LAUNCHERS.find("slurm").check(Execution(launcher="slurm"))


def test_the_job_is_told_to_stop_before_its_time_is_over(tmp_path: Path) -> None:
    work = slurm_work(
        tmp_path, grace_seconds=300, slurm_options=("--time=10:00", "--comment=it's ours")
    )
    script = slurm.batch_script(work, str(tmp_path))
    assert "#SBATCH --signal=B:TERM@330\n" in script  # the grace time, and for the rest 30 s
    assert "#SBATCH --requeue\n" in script
    assert "#SBATCH '--comment=it'\"'\"'s ours'\n" in script


def slurm_work(out: Path, **execution: Any) -> slurm.LaunchRequest:
    from cloze.core.stages.stage import BuildContext
    from cloze.core.stages.worker import Job

    how = Execution(launcher="slurm", **execution)
    build = BuildContext(path=str(out), inputs={}, execution=how, fingerprint="f")
    job = Job(
        stage="toy",
        reference="tests.flows.toy:STAGE",
        config={},
        path=str(out),
        inputs={},
        execution={},
        fingerprint="f",
    )
    return slurm.LaunchRequest(job=job, worker="tests.flows.worker", processes=1, build=build)


def test_states_that_slurm_may_tell() -> None:
    assert slurm_cli.SlurmJobStatus("PENDING").queued
    assert not slurm_cli.SlurmJobStatus("COMPLETING").ended  # it may be queued again
    assert not slurm_cli.QUEUED & slurm_cli.ENDED


def here(out: Path) -> BuildResult:
    """What `cloze resume OUT --processes 1` does."""
    stage = dataclasses.replace(
        STAGE, run=coordinator.run_in_worker_processes(STAGE, "tests.flows.toy:STAGE")
    )
    return execute(stage, ToyConfig(act="twice"), {}, str(out), execution=Execution(device="cpu"))


@needs_slurm
@pytest.mark.soak
def test_cancel_ends_a_job_that_nobody_follows(
    cluster: slurm_cluster.Slurm, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    job = left_alone(cluster, out)
    with pytest.raises(
        UsageError,
        match=rf"Slurm's job {job} still trains in .*out; follow it with --launcher slurm",
    ):
        here(out)
    (
        out / "_logs" / "slurm" / "submitted.json"
    ).unlink()  # as where the submitter was killed before it wrote it
    with pytest.raises(UsageError, match=rf"Slurm's job {job} still trains in"):
        here(out)
    done = subprocess.run(
        [sys.executable, "-c", "from cloze.flows.cli import entry; entry()", "cancel", f"{out}/",
            "--json"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["state"] == "cancelled"
    assert cluster.jobs()[job] == "FAILED"  # it has ended with 4
    assert cluster.field(job, "Restarts") == "0"
    assert (
        "stopped at step 7, checkpoint saved"
        in (out / "_logs" / "slurm" / f"{job}.log").read_text()
    )
