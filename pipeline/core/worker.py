"""A stage in a process of its own: the job file that goes in, the events that come out.

Heavy stages run as `python -m pipeline.worker JOB` or `python -m model.worker JOB`, so that a kill takes the
whole stage, its memory goes back to the system, and its libraries' chatter goes to a log file. The worker
writes one JSON object a line to the file descriptor in `CLOZE_EVENTS_FD`:

    {"progress": [done, total, unit, figures]}    any number of times
    {"metrics": {"step": n, "time": t, ...}}      any number of times: a logged line
    {"checkpoint": [step, path]}                  any number of times: one that stays
    {"records": [{...}, ...]}                     any number of times: what a verb answers
    {"grace": seconds}                            any number of times: what it would need to stop with a checkpoint
    {"outcome": {...}, "counters": {...}}         once, last, if it ended well
    {"error": sentence, "exit_code": n}           once, last, if it did not
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from pipeline.core import storage, system_errors
from pipeline.core.errors import ClozeError, UsageError
from pipeline.core.execution import Execution
from pipeline.core.fingerprints import cache_directory
from pipeline.core.processes import die_with_parent
from pipeline.core.registry import load
from pipeline.core.reporting import Reporter
from pipeline.core.stage import Build, Outcome, Stage

EVENTS_FD = "CLOZE_EVENTS_FD"
EVENTS_DIRECTORY = "CLOZE_EVENTS_DIRECTORY"  # where nobody can pass a descriptor on: a file a process, `rank3-PID.jsonl`
LOGS_DIRECTORY = "CLOZE_LOGS_DIRECTORY"  # where the process looks after its output itself: into `rank3.log` there
LOGS = "_logs"  # in the artifact's directory
JOB = "job.json"  # in LOGS: how the stage was last begun, for `cloze resume`


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One stage to run: where it is (`module:STAGE`), and what its `run` needs, as JSON."""

    stage: str
    reference: str
    config: dict[str, Any]
    path: str
    inputs: dict[str, str]
    execution: dict[str, Any]
    fingerprint: str
    build_id: str = ""

    def write(self, path: str) -> None:
        storage.write_bytes(path, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, path: str) -> Job:
        return cls(**json.loads(storage.read_text(path)))


def _events_stream() -> IO[str] | None:
    number, directory = os.environ.get(EVENTS_FD), os.environ.get(EVENTS_DIRECTORY)
    if number:
        return os.fdopen(int(number), "w", encoding="utf-8", buffering=1)
    if directory:
        return open(f"{directory}/rank{os.environ['RANK']}-{os.getpid()}.jsonl", "a", encoding="utf-8", buffering=1)
    return None


def _redirect_output() -> None:
    """Into a log of our own, where whoever started us does not look after that."""
    directory = os.environ.get(LOGS_DIRECTORY)
    if directory:
        log = os.open(f"{directory}/rank{os.environ['RANK']}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.close(log)


class Events(Reporter):
    """The worker's end of the pipe; silent where nobody listens."""

    def __init__(self) -> None:
        self._stream = _events_stream()

    def send(self, event: Mapping[str, Any]) -> None:
        if self._stream is not None:
            self._stream.write(json.dumps(event) + "\n")

    def progress(self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]) -> None:
        self.send({"progress": [done, total, unit, dict(figures)]})

    def metrics(self, values: Mapping[str, Any]) -> None:
        self.send({"metrics": dict(values)})

    def checkpoint(self, step: int, path: str) -> None:
        self.send({"checkpoint": [step, path]})

    def records(self, values: Sequence[Mapping[str, Any]]) -> None:
        self.send({"records": list(values)})

    def grace(self, seconds: float) -> None:
        self.send({"grace": seconds})


def local_directory(path: str) -> Path:
    """`path` if it is local, else a directory of ours for what cannot live on an object store (logs)."""
    if storage.is_local(path):
        return Path(storage.filesystem(path)[1])
    return cache_directory() / "remote" / path.replace("://", "/").strip("/")


def run(job: Job, package: str, events: Events) -> tuple[Outcome, Counter[str]]:
    """Run the job's stage in this process.

    Args:
        package: this worker's; a stage of another package is refused, so that no job file makes a worker import what it must not.

    Raises:
        UsageError: the stage lies in another package.
    """
    if not job.reference.startswith(f"{package}."):
        raise UsageError(f"stage ({job.reference}) lies outside the package {package}; run it by the worker of its own package")
    stage: Stage = load(job.reference)
    build = Build(
        path=job.path,
        inputs=job.inputs,
        execution=Execution.model_validate(job.execution),
        fingerprint=job.fingerprint,
        build_id=job.build_id,
        report=events,
    )
    with build.cleanup:
        return stage.run(stage.config.model_validate(job.config), build), build.counters


def main(package: str) -> int:
    """The whole of a `__main__` of `package`'s worker: run the job file in `sys.argv[1]`, tell how it ended, return the exit code."""
    die_with_parent()
    _redirect_output()
    events = Events()
    try:
        outcome, counters = run(Job.read(sys.argv[1]), package, events)
    except ClozeError as error:
        traceback.print_exc()
        events.send({"error": str(error), "exit_code": error.exit_code})
        return error.exit_code
    except OSError as error:
        traceback.print_exc()
        events.send({"error": system_errors.os_sentence(error, "input or output") + " and run again", "exit_code": 1})
        return 1
    except Exception as error:
        traceback.print_exc()
        events.send({"error": f"{type(error).__name__}: {error}", "exit_code": 1})
        return 1
    events.send({"outcome": asdict(outcome), "counters": dict(counters)})
    return 0
