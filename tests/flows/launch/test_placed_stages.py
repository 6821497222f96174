"""Every stage goes where its launcher starts processes, not trainings alone."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from cloze.core.artifacts import artifact
from cloze.core.config import StageConfig
from cloze.core.errors import DataError, StoppedError
from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.execution import Execution, Resources
from cloze.core.stages.stage import NULL_REPORTER, BuildContext, Reporter, StageResult
from cloze.core.stages.worker import Job
from cloze.flows.graph import stages
from cloze.flows.launch import coordinator, protocol
from cloze.flows.launch.protocol import Host, LaunchRequest
from cloze.flows.launch.slurm import cli as slurm_cli
from cloze.flows.launch.slurm import launcher as slurm_launcher
from tests.checkout import import_path
from tests.conftest import REPOSITORY
from tests.flows.toy import SINGLE, ToyConfig
from tests.slurm_running import RunningSlurm

EVERY = sorted({*stages.TABLE, *stages.TOOLS})


class Stopped(Exception):
    """The launcher was asked to start."""


class Catching:
    """A launcher that keeps what it was asked for."""

    attaches = True

    def check(self, execution: Execution) -> None:
        self.checked = execution

    def start(self, work: LaunchRequest) -> Any:
        self.work = work
        raise Stopped

    def living(self, path: str) -> None:
        return None


def asked(
    name: str, how: Execution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> LaunchRequest:
    """What the launcher of a stage is asked for."""
    caught: dict[str, Catching] = {}
    monkeypatch.setattr(
        type(protocol.LAUNCHERS),
        "find",
        lambda table, key: caught.setdefault(key, Catching()),
    )
    stage = stages.stage(name)
    build = BuildContext(path=str(tmp_path), inputs={}, execution=how, fingerprint="f")
    run = coordinator.run_in_worker_processes(stage, f"m:{name}")
    with pytest.raises(Stopped):
        run(StageConfig(), build)
    assert [*caught] == [how.launcher]
    return caught[how.launcher].work


@pytest.mark.parametrize("name", EVERY)
def test_every_stage_starts_by_the_launcher_that_is_chosen(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trainings with all their processes, others with one on one host."""
    definition = stages.stage(name)
    monkeypatch.setattr(stages, "stage", lambda name: definition)
    how = Execution(launcher="slurm", nodes=3, processes=4, min_processes=2)
    work = asked(name, how, tmp_path, monkeypatch)
    stage = definition
    assert work.single == (not stage.parallel)
    assert (work.processes, work.execution.nodes) == ((4, 3) if stage.parallel else (1, 1))
    assert work.job.execution["nodes"] == work.execution.nodes
    assert work.job.token == "", "the job may outlive this process"
    assert work.worker == f"{stage.worker or 'cloze.flows'}.worker"
    assert work.execution.device == ("auto" if stage.on_gpu else "cpu")


def test_a_stage_without_a_worker_stays_in_this_process_only_if_it_runs_here(
    tmp_path: Path,
) -> None:
    seen: list[int] = []

    def run(config: StageConfig, build: BuildContext) -> StageResult:
        seen.append(os.getpid())
        return StageResult()

    stage = dataclasses.replace(stages.stage("report"), run=run)
    build = BuildContext(path=str(tmp_path), inputs={}, execution=Execution(), fingerprint="f")
    coordinator.run_in_worker_processes(stage, "x:y")(StageConfig(), build)
    assert seen == [os.getpid()]


def test_hosts_of_a_hostfile_share_the_stages_of_one_process(tmp_path: Path) -> None:
    """Each takes one host, not all of them as a training does."""
    from cloze.flows.launch.agent_launcher import AgentLauncher, AgentRankGroup

    class Hosts(AgentLauncher):
        allocates_gpus = False

        def check(self, execution: Execution) -> None:
            return None

        def hosts(self, execution: Execution, processes: int) -> list[Host]:
            return [Host(name=name, count=4) for name in "abc"]

        def start_agents(self, launch: Any, execution: Execution) -> Any:
            return None

    chosen = set()
    for number in range(12):
        path = tmp_path / str(number)
        build = BuildContext(
            path=str(path), inputs={}, execution=Execution(launcher="ssh"), fingerprint="f"
        )
        job = Job(stage="toy", reference="r", config={}, path=str(path), inputs={},
                           execution={}, fingerprint="f")  # fmt: skip
        work = LaunchRequest(job=job, worker="w", processes=1, build=build, single=True)
        launch = AgentRankGroup(Hosts(), work).launch
        assert launch.counts == (1,)
        assert launch.slots
        assert launch.cpus > 0
        chosen.add(launch.hosts[0])
    assert chosen == {*"abc"}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    found = RunningSlurm(tmp_path / "queue")
    monkeypatch.setenv("PATH", found.path)
    monkeypatch.setenv("PYTHONPATH", import_path(REPOSITORY))
    monkeypatch.setattr(slurm_cli, "POLL_SECONDS", (0.05, 0.2))
    yield found
    for process in psutil.process_iter(["cmdline"]):
        if f"tests.slurm_running {found.root}" in " ".join(process.info["cmdline"] or ()):
            process.kill()


def build_toy(out: Path, act: str = "work", report: Reporter = NULL_REPORTER) -> BuildResult:
    run = coordinator.run_in_worker_processes(SINGLE, "tests.flows.toy:SINGLE")
    how = Execution(launcher="slurm", processes=4, nodes=2)
    placed = dataclasses.replace(SINGLE, run=run)
    return execute(placed, ToyConfig(act=act), {}, str(out), execution=how, report=report)


def test_a_stage_of_one_process_is_a_job(slurm: RunningSlurm, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = build_toy(out)
    assert [*slurm.jobs()] == ["1"]
    assert (out / "out.txt").read_text() == "1", "one process"
    assert result.manifest.counters == {"seen": 5}
    assert result.manifest.execution["launcher"] == "slurm"
    assert artifact.verify(str(out)).ok
    script = (out / "_logs" / "slurm" / "job.sbatch").read_text()
    assert "--nodes=1\n" in script
    build_toy(out)
    assert [*slurm.jobs()] == ["1"], "no job for what is cached"


def test_the_error_of_a_job_is_the_stages(slurm: RunningSlurm, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^shard 3 is cut short; make it again$"):
        build_toy(tmp_path / "out", "fail")


def test_the_next_head_follows_the_job_of_one_that_died(
    slurm: RunningSlurm, tmp_path: Path
) -> None:
    """It claims the directory with a token of its own, which must not end the job's process."""
    out = tmp_path / "out"
    head = multiprocessing.get_context("fork").Process(target=build_toy, args=(out, "wait"))
    head.start()
    deadline = time.monotonic() + 120
    while not (out / "_pid-0").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    head.kill()
    head.join()
    threading.Timer(1.0, (out / "_go").touch).start()
    result = build_toy(out, "wait")
    assert [*slurm.jobs()] == ["1"]
    assert result.manifest.counters == {"seen": 5}


class StopAtProgress(Reporter):
    """A run that is cancelled once the stage works."""

    asked = False

    def progress(self, done: float, *_: Any) -> None:
        self.asked |= done > 0  # not while the job waits

    def stop_requested(self) -> bool:
        return self.asked


def test_a_cancelled_run_ends_its_job(slurm: RunningSlurm, tmp_path: Path) -> None:
    with pytest.raises(StoppedError, match="stopped at step 7"):
        build_toy(tmp_path / "out", "slow", report=StopAtProgress())
    assert not artifact.is_artifact(str(tmp_path / "out"))


def script_of(tmp_path: Path, options: tuple[str, ...] = (), **resources: Any) -> list[str]:
    how = Execution(launcher="slurm", slurm_options=options, resources=Resources(**resources))
    build = BuildContext(path="/runs/x", inputs={}, execution=how, fingerprint="f")
    job = Job(stage="toy", reference="r", config={}, path="/runs/x", inputs={},
                       execution={}, fingerprint="f", build_id="0123")  # fmt: skip
    work = LaunchRequest(job=job, worker="w", processes=1, build=build, single=True)
    script = slurm_launcher.batch_script(work, "/runs/x/_logs/slurm")
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if "#SBATCH" in line]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"gpus": 2}, "--gpus-per-node=2"),
        ({"cpus": 8}, "--cpus-per-task=8"),
        ({"memory": "24G"}, "--mem=24G"),
        ({"memory": "800MiB"}, "--mem=800M"),
        ({"time": "90m"}, "--time=90"),
        ({"time": "1-12:00:30"}, "--time=2161"),
    ],
)
def test_resources_become_options_of_sbatch(
    given: dict[str, Any], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_cli, "has_gpus", lambda options: False)
    assert expected in script_of(tmp_path, **given)


@pytest.mark.parametrize(
    ("option", "field"),
    [(option, field) for field, names in slurm_launcher.SAME.items() for option in names],
)
def test_an_option_of_sbatch_counts_before_the_resources(
    option: str, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_cli, "has_gpus", lambda options: True)
    everything = {"gpus": 1, "cpus": 8, "memory": "24G", "time": "2h"}
    written = f"{option}=7" if option.startswith("--") else f"{option}7"
    lines = script_of(tmp_path, (written,), **everything)
    own = {"gpus": "--gpus-per-node=1", "cpus": "--cpus-per-task=8", "memory": "--mem=24G",
           "time": "--time=120"}  # fmt: skip
    assert own[field] not in lines
    assert all(text in lines for name, text in own.items() if name != field)


@pytest.mark.parametrize(
    ("sinfo", "options", "gpus"),
    [
        ("cpu*|(null)\ngpu|gpu:8\n", (), False),
        ("cpu*|(null)\ngpu|gpu:8\n", ("--partition=gpu",), True),
        ("cpu*|(null)\ngpu|gpu:8\n", ("-pgpu",), True),
        ("cpu|(null)\ngpu*|gpu:a100:4(S:0-1)\n", (), True),
        ("cpu|(null)\ngpu*|gpu:a100:4\n", ("-pcpu",), False),
        ("", (), False),
    ],
)
def test_a_gpu_is_asked_for_where_the_partition_has_one(
    sinfo: str, options: tuple[str, ...], gpus: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = subprocess.CompletedProcess([], 0, sinfo, "")
    monkeypatch.setattr(slurm_cli, "run_command", lambda *words: answer)
    assert slurm_cli.has_gpus(options) == gpus
