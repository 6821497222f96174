"""A stage in its own process: a job file goes in, events come out.

Heavy stages run as `python -m cloze.pipeline.worker JOB` or `python -m cloze.model.worker JOB`. A
kill then ends the whole stage and frees its memory, and output of its libraries goes to a log file.
The worker writes one JSON object per line to the file descriptor in `CLOZE_EVENTS_FD`:

    {"progress": [done, total, unit, figures]}
    {"metrics": {"step": n, "time": t, ...}}      a log entry
    {"checkpoint": [step, path]}                  a milestone
    {"records": [{...}, ...]}                     predictions of a command
    {"grace": seconds}                            time needed to stop with a checkpoint
    {"outcome": {...}, "counters": {...}}         once, last, on success
    {"error": sentence, "exit_code": n}           once, last, on failure
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from cloze.core import errors, plugins, storage
from cloze.core.accounts import open_private, open_record, open_unlinked
from cloze.core.artifacts.fence import TOKEN
from cloze.core.errors import DataError, UsageError
from cloze.core.places import cache_directory
from cloze.core.processes import HeartbeatWriter, die_with_parent
from cloze.core.secrets import holds_secret
from cloze.core.stages.execution import Execution, TrainingOptions
from cloze.core.stages.stage import BuildContext, Figures, Reporter, Stage, StageResult

EVENTS_FD = "CLOZE_EVENTS_FD"
LOGS = "_logs"  # in the artifact's directory
START_SECONDS = 3600.0  # least limit of a part of a training's start: imports, ranks, model, data
JOB = "job.json"  # in LOGS: the job of the last start, for `cloze resume`


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A stage to run: its reference (`module:STAGE`) and the arguments of `run`, as JSON."""

    stage: str
    reference: str
    config: dict[str, Any]
    path: str
    inputs: dict[str, str]
    execution: dict[str, Any]
    fingerprint: str
    build_id: str = ""
    token: str = ""
    source: str = ""  # copy of the package that the processes import; empty: they have none

    def write(self, path: str) -> None:
        content = asdict(self)
        # the launch's token is none; in a shared directory others of the group continue trainings
        is_secret = holds_secret({**content, "token": ""})
        opener = open_private if is_secret else open_record if self.token else open_unlinked
        storage.write_bytes(path, json.dumps(content).encode(), opener=opener)

    @classmethod
    def read(cls, path: str) -> Job:
        """Return the job in a file; DataError: it is missing or damaged."""
        try:
            return cls(**storage.read_json(path, "start the stage again"))
        except TypeError as error:
            raise DataError(f"{path} is damaged ({error}); start the stage again") from error


class PipeReporter(Reporter):
    """Sends reports as events through the pipe; silent if there is no pipe."""

    def __init__(self) -> None:
        number = os.environ.get(EVENTS_FD)
        self._stream = (
            os.fdopen(int(number), "w", encoding="utf-8", buffering=1) if number else None
        )

    def send(self, event: Mapping[str, Any]) -> None:
        if self._stream is not None:
            self._stream.write(json.dumps(event) + "\n")

    def progress(self, done: float, total: float | None, unit: str, figures: Figures) -> None:
        self.send({"progress": [done, total, unit, dict(figures)]})

    def metrics(self, values: Mapping[str, Any]) -> None:
        self.send({"metrics": dict(values)})

    def checkpoint(self, step: int, path: str) -> None:
        self.send({"checkpoint": [step, path]})

    def predictions(self, values: Sequence[Mapping[str, Any]]) -> None:
        self.send({"records": list(values)})

    def shutdown_time(self, seconds: float) -> None:
        self.send({"grace": seconds})


def local_directory(path: str) -> Path:
    """Return `path` if it is local, else a local directory for files such as logs."""
    if storage.is_local(path):
        return Path(storage.filesystem(path)[1])
    return cache_directory() / "remote" / path.replace("://", "/").strip("/")


def run(job: Job, package: str, events: PipeReporter) -> tuple[StageResult, Counter[str]]:
    """Run the job's stage in this process.

    Args:
        package: package of this worker; stages of other packages are rejected, but for plug-ins',
            so that no job file makes a worker import a forbidden library.

    Raises UsageError: the stage is in another package.
    """
    is_known = job.reference.startswith(f"{package}.") or plugins.is_stage(job.reference)
    stage: Stage | None = resolve_name(job.reference) if is_known else None
    if stage is None or stage.worker_package != package:
        raise UsageError(
            f"stage ({job.reference}) is outside the package {package}; run it by the worker of "
            f"its own package"
        )
    build = BuildContext(
        path=job.path,
        inputs=job.inputs,
        execution=Execution.model_validate(job.execution),
        fingerprint=job.fingerprint,
        build_id=job.build_id,
        # a training compares its launch's token itself
        token=job.token or ("" if stage.parallel else os.environ.get(TOKEN, "")),
        report=events,
    )
    with (
        storage.hashing_written(job.path) as written,
        build.cleanup,
        storage.changing_after(build.path, build.fence.check),
    ):
        # A training ends this limit by its first step; other stages have no steps.
        if stage.parallel and stage.unread.isdisjoint(TrainingOptions.model_fields):
            seconds = build.execution.hang_seconds
            limit = max(START_SECONDS, 10.0 * seconds) if seconds else 0.0
            HeartbeatWriter.from_env().begin_step(0, limit, limit)
        result = stage.run(stage.config.model_validate(job.config), build)
    return replace(result, written={**written, **result.written}), build.counters


def main(package: str) -> int:
    """Run the job file in `sys.argv[1]`, send the last event, and return the exit code.

    Called by the worker module of `package`.
    """
    # SIGKILL by the kernel: after SIGTERM it would save into a directory of the next run.
    die_with_parent()
    # The platform may lack the signal, or stderr be no file.
    with contextlib.suppress(AttributeError, RuntimeError, ValueError):
        # SIGUSR1 dumps all stacks to the log, whatever state the interpreter is in.
        faulthandler.register(signal.SIGUSR1, all_threads=True)
    gc.set_threshold(700, 10, 1000)  # full collections during torch's imports take .4 s
    events = PipeReporter()
    try:
        result, counters = run(Job.read(sys.argv[1]), package, events)
    except Exception as error:
        event = errors.error_event(error)
        events.send(event)
        with contextlib.suppress(OSError):  # the disk of the log may be full
            traceback.print_exc()
        return int(event["exit_code"])
    events.send({"outcome": asdict(result), "counters": dict(counters)})
    return 0
