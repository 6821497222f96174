"""`cloze doctor --launcher NAME`: a job that reports what it sees where the launcher starts it."""

from __future__ import annotations

import socket
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cloze.core import processes, storage
from cloze.core.config import StageConfig
from cloze.core.humanize import format_bytes
from cloze.core.places import runs_directory
from cloze.core.stages.execution import Execution, Resources
from cloze.core.stages.stage import BuildContext, Reporter, Stage, StageResult
from cloze.flows.doctor import machine
from cloze.flows.doctor.machine import Finding, run_check
from cloze.flows.launch import site
from cloze.flows.launch.coordinator import run_in_worker_processes
from cloze.flows.machine import slots


class LaunchedConfig(StageConfig):
    """Nothing to set: the job looks at its host."""


def host() -> Iterator[Finding]:
    """Report the host, and what of it the job has: cores, memory, GPUs."""
    cores, gpus = slots.machine().cpus, slots.visible_gpus()
    memory = format_bytes(processes.memory_limit())
    observed = f"{socket.gethostname()}: {cores} cores, {memory}, GPU {', '.join(gpus) or 'none'}"
    yield Finding(check="host", observed=observed)
    yield Finding(check="interpreter", observed=sys.executable)
    here = site.read()
    for name in ("prologue", "container"):
        if value := getattr(here, name):
            yield Finding(check=name, observed="; ".join(value) if name == "prologue" else value)


def run(config: LaunchedConfig, build: BuildContext) -> StageResult:
    """Return the findings of this host."""
    del config, build
    findings = [each for check in (host, *machine.CHECKS) for each in run_check(check, False)]
    rows = [{**each.row(), "fix": each.fix} for each in findings]
    return StageResult(summary={"checks": rows})


STAGE = Stage(name="doctor", version=1, config=LaunchedConfig, run=run, on_gpu=True)


class _Queue(Reporter):
    """Reporter that says why the job waits."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def queued(self, reason: str) -> None:
        self._say(reason)


def checks(launcher: str, say: Callable[[str], None]) -> Iterator[Finding]:
    """Start a job by the launcher, and yield what it sees.

    Args:
        launcher: name of the launcher; its options come from the site's file.
        say: called with the reason why the job waits.

    Raises ClozeError: the launcher cannot start the job, or the job fails.
    """
    yield Finding(check="site", observed=f"{site.path()}{'' if site.path().exists() else ': none'}")
    runs = runs_directory().absolute()
    runs.mkdir(parents=True, exist_ok=True)
    directory = tempfile.mkdtemp(prefix=".doctor-", dir=runs)  # its logs stay if the job fails
    build = BuildContext(
        path=directory,
        inputs={},
        execution=Execution(launcher=launcher, resources=Resources(time="15m")),
        fingerprint="doctor",
        build_id=uuid.uuid4().hex,
        report=_Queue(say),
    )
    job = run_in_worker_processes(STAGE, f"{__name__}:STAGE")
    rows: list[Mapping[str, Any]] = job(LaunchedConfig(), build).summary["checks"]
    storage.remove(directory)
    for row in rows:
        yield Finding(check=row["check"], observed=row["found"], ok=row["ok"], fix=row["fix"])
