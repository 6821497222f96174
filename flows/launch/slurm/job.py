"""`--launcher srun`, an agent per node of the current Slurm job; and the coordinator of batch jobs.

`srun` is for `salloc` and `sbatch`; `launcher.py` submits the batch jobs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

from cloze.core import storage
from cloze.core.accounts import open_unlinked
from cloze.core.artifacts import checkpoints
from cloze.core.artifacts.fence import start_attempt
from cloze.core.artifacts.lock import locked
from cloze.core.errors import ClozeError, StoppedError, UsageError, error_event
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import SCRATCH, BuildContext, Reporter, SafeReporter, StageResult
from cloze.core.stages.worker import LOGS, Job, PipeReporter, local_directory
from cloze.flows.launch import cancel_requests, coordinator, event_files, protocol, site
from cloze.flows.launch.agent_launcher import AgentLauncher
from cloze.flows.launch.host_setup import last_line
from cloze.flows.launch.protocol import AgentGroup, Host, Launcher, LaunchRequest, LaunchSpec
from cloze.flows.launch.slurm import cli as slurm_cli
from cloze.flows.launch.slurm.cli import start_file
from cloze.flows.launch.slurm.launcher import WORK

END_SECONDS = 20.0  # for srun to end its processes
# srun numbers the nodes; `exec` lets the agent receive Slurm's signals.
AGENT = 'exec "$@" "$SLURM_NODEID"'


class SrunLauncher(AgentLauncher):
    """See `AgentLauncher`."""

    allocates_gpus = True

    def check(self, execution: Execution) -> None:
        slurm_cli.check()
        available = len(slurm_cli.nodes())
        if execution.nodes > available:
            raise UsageError(
                f"nodes ({execution.nodes}) are more than the {available} of Slurm's job "
                f"{os.environ['SLURM_JOB_ID']}"
            )

    def hosts(self, execution: Execution, processes: int) -> Sequence[Host]:
        return [
            Host(name=address, count=processes)
            for _, address in slurm_cli.nodes()[: execution.nodes]
        ]

    def start_agents(self, launch: LaunchSpec, execution: Execution) -> AgentGroup:
        return _Step(launch, execution)


class _Step(AgentGroup):
    """A job step with one agent per node."""

    def __init__(self, launch: LaunchSpec, execution: Execution) -> None:
        self._launch = launch
        names = [name for name, address in slurm_cli.nodes() if address in launch.hosts]
        logs = local_directory(launch.artifact) / LOGS
        logs.mkdir(parents=True, exist_ok=True)
        self._log = logs / "srun.log"
        with open(self._log, "wb", opener=open_unlinked) as output:
            self._process = subprocess.Popen(
                [
                    "srun", f"--nodes={launch.nodes}", f"--ntasks={launch.nodes}",
                    "--ntasks-per-node=1",
                    f"--nodelist={','.join(names)}", "--kill-on-bad-exit=0", "--wait=0",
                    "--cpu-bind=none", "--overlap", "--export=ALL",
                    "sh", "-c", AGENT, "sh", *site.read().words, "-m", "cloze.flows.launch.agent",
                    launch.directory,
                ],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def host(self, node: int) -> str:
        return self._launch.hosts[node]

    def exited(self) -> Mapping[int, tuple[int, str]]:
        code = self._process.poll()
        if code is None:
            return {}
        return dict.fromkeys(range(self._launch.nodes), (code, last_line(self._log)))

    def stop(self) -> None:
        """End the step: after SIGTERM, srun kills its processes."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


LAUNCHER: Launcher = SrunLauncher()


# The coordinator of a batch job, on its first node:
# `python -m cloze.flows.launch.slurm.job DIRECTORY`.

IDLE = "idle.json"  # number of successive requeues without a new checkpoint
MOST_IDLE = 3


class _Box(PipeReporter):
    """Reporter that writes a stage's reports to an event file."""

    def __init__(self, path: str) -> None:
        storage.make_dirs(path.rpartition("/")[0])
        self._out = event_files.EventWriter(path)

    def send(self, event: Mapping[str, Any]) -> None:
        self._out.send([event])


def _run(directory: str, report: Reporter) -> tuple[StageResult, BuildContext]:
    """Run the stage on the job's nodes."""
    content = event_files.read_json(storage.join(directory, WORK))
    assert content is not None  # written before the job was submitted
    job, hosts = Job(**content["job"]), slurm_cli.nodes()
    # all that the job has is the stage's, so agents need no slots
    changes = {"launcher": "srun", "nodes": len(hosts), "slurm_options": (), "oversubscribe": True}
    execution = Execution.model_validate({**job.execution, **changes})
    build = BuildContext(
        path=job.path,
        inputs=job.inputs,
        execution=execution,
        fingerprint=job.fingerprint,
        build_id=job.build_id,
        report=SafeReporter(report),
    )
    # `cloze resume` needs the original launcher
    job = replace(job, execution={**job.execution, "nodes": len(hosts)})
    work = LaunchRequest(
        job=job,
        worker=content["worker"],
        processes=content["processes"],
        build=build,
        launch=content.get("launch", ""),
        single=content.get("single", False),
    )
    launcher = protocol.LAUNCHERS.find(execution.launcher)
    launcher.check(execution)
    if cancel_requests.cancel_requested(job.path):
        raise KeyboardInterrupt
    if work.launch:
        start_attempt(job.path, work.launch)  # ends the ranks of an earlier start on a lost host
    with _alone(directory, execution.scheduler_grace_seconds), build.cleanup:
        return coordinator.run_with_restarts(launcher, work), build


@contextmanager
def _alone(directory: str, seconds: float) -> Iterator[None]:
    """Hold the lock of the jobs that train in one directory; wait at most `seconds` for it.

    Raises UsageError: another job holds the lock.
    """
    deadline = time.monotonic() + seconds
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(directory))
                break
            except UsageError:
                if time.monotonic() > deadline:
                    raise
        yield


def _why_not_again(directory: str, path: str) -> str | None:
    """Return why the job must not be requeued: cancelled, or no progress; None: requeue it."""
    if cancel_requests.cancel_requested(path):
        return "it was cancelled"
    steps, file = checkpoints.complete_steps(path), storage.join(directory, IDLE)
    scratch = storage.list_files(storage.join(path, SCRATCH))  # a data stage's finished units
    newest = steps[-1] if steps else len(scratch) or None
    previous = event_files.read_json(file)
    requeues = previous["times"] + 1 if previous is not None and previous["newest"] == newest else 0
    if requeues >= MOST_IDLE:
        return (
            f"it was queued {requeues} times without a new checkpoint; give it more time "
            f"(resources.time, --slurm-option --time=…)"
        )
    event_files.write_json(file, {"newest": newest, "times": requeues})
    return None


def _interrupt(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ignore further signals
    raise KeyboardInterrupt


def main(directory: str) -> int:
    """Run the coordinator of a batch job and return the exit code; `directory`: `_logs/slurm`."""
    signal.signal(signal.SIGTERM, _interrupt)
    job_id, start = os.environ["SLURM_JOB_ID"], int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    report = _Box(start_file(directory, job_id, start))
    nodes = os.environ.get("SLURM_JOB_NODELIST", "")
    report.send({"begun": {"job": job_id, "start": start, "nodes": nodes}})
    try:
        outcome, build = _run(directory, report)
    except KeyboardInterrupt:
        stop = ClozeError(
            f"Slurm's job {job_id} was cancelled, or its time or node was taken; what it had "
            f"finished is kept: run again"
        )
        return _stopped(directory, report, job_id, stop)
    except StoppedError as error:
        return _stopped(directory, report, job_id, error)
    except Exception as error:
        return _failed(report, error)
    report.send({"outcome": asdict(outcome), "counters": dict(build.counters)})
    return 0


def _failed(report: _Box, error: Exception) -> int:
    traceback.print_exception(error)
    event = error_event(error)
    report.send(event)
    return int(event["exit_code"])


def _stopped(directory: str, report: _Box, number: str, error: ClozeError) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a requeue ends this process
    event: dict[str, Any] = {"error": str(error), "exit_code": error.exit_code}
    reason = _why_not_again(directory, str(Path(directory).parents[1]))
    report.send({**event, "again": reason is None})
    if reason is None and (reason := slurm_cli.requeue(number)) is not None:
        report.send({**event, "again": False})
    end = "queued again" if reason is None else f"not queued again: {reason}"
    print(f"{error}; the job is {end}", flush=True)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
