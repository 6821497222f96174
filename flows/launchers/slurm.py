"""`--launcher slurm`: a batch job, whose own head (`batch.py`) trains on the nodes that Slurm gives it.

`cloze` submits the job and follows it through files in the artifact's directory; it may die meanwhile, and the same command attaches to
the job instead of submitting another. Below `_logs/slurm/`:

    job.sbatch        the batch script
    work.json         what the job is to do
    submitted.json    {"job", "build", "fingerprint"}: the newest job
    JOB.log           what its script and `srun` print, over all its starts
    JOB/START         a box of events (`mailbox.py`) for each start of the job: {"begun": …}, those of rank 0, and the end: "again"
                      says whether the job is queued again

A job begins more than once: after its time limit, a preemption or the loss of a node it is queued again.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from flows.launchers import cancelling, mailbox, slurm_queue
from flows.launchers.protocol import Launcher, Started, Told, Work
from flows.launchers.slurm_queue import Seen
from pipeline.core import checkpoints, storage
from pipeline.core.errors import BY_EXIT_CODE, ClozeError, UsageError
from pipeline.core.execution import Execution
from pipeline.core.lock import is_held
from pipeline.core.worker import LOGS

DIRECTORY = "slurm"  # in LOGS
WORK, SUBMITTED, SCRIPT = "work.json", "submitted.json", "job.sbatch"
MARGIN_SECONDS = 30.0  # before the time limit, beside the grace time: for srun and the batch script to end
LOOK_SECONDS = (1.0, 15.0)  # between two looks at the queue: at first, and at last
FILES_SECONDS = 0.5
OURS = {  # options of sbatch that the launcher sets itself, and what sets them
    "--nodes": "--nodes", "-N": "--nodes", "--ntasks": "--processes", "-n": "--processes", "--ntasks-per-node": "--processes",
    "--signal": "--grace-seconds", "--requeue": "nothing: it is on", "--no-requeue": "nothing: --launcher slurm queues again",
    "--output": "nothing: it lies in _logs/slurm", "-o": "nothing: it lies in _logs/slurm", "--error": "nothing: it lies in _logs/slurm",
    "--open-mode": "nothing: it is append", "--array": "a matrix in a run's config", "-a": "a matrix in a run's config",
    "--chdir": "nothing: paths are made absolute", "--parsable": "nothing: it is on", "--wait": "nothing: cloze waits",
}  # fmt: skip


class Slurm:
    """See `protocol.Launcher`."""

    def check(self, execution: Execution) -> None:
        if execution.hostfile is not None:
            raise UsageError(
                f"hostfile ({execution.hostfile}) is for --launcher ssh or torchrun; Slurm chooses the hosts itself"
            )
        for option in execution.slurm_options:
            name = option.partition("=")[0]
            if not option.startswith("-") or " " in name:
                raise UsageError(f"slurm_options ({option!r}) must look like --NAME=VALUE, such as --partition=gpu")
            if name in OURS:
                raise UsageError(f"slurm_options ({option}) is set by the launcher; what says it is {OURS[name]}")
        slurm_queue.check()

    def begin(self, work: Work) -> Started:
        place = storage.join(work.build.path, LOGS, DIRECTORY)
        job = _running(place, work)
        if job is None:
            job = _submit(place, work)
        return _Followed(work, place, job)


def _running(place: str, work: Work) -> str | None:
    """The job that makes this artifact already: it goes on, or has made it while nobody looked.

    Raises:
        UsageError: a job with other settings still writes there.
    """
    found = mailbox.get(storage.join(place, SUBMITTED))
    if found is None:
        return None
    job, ours = str(found["job"]), found["build"] == work.build.build_id and found["fingerprint"] == work.build.fingerprint
    seen = slurm_queue.look(job)
    if seen is None:
        raise ClozeError(
            f"Slurm does not say what became of job {job}, which trains in {work.build.path}; run again when it answers"
        )
    if not seen.ended and not ours:
        raise UsageError(
            f"Slurm's job {job} still trains with other settings in {work.build.path}; end it first (scancel {job})"
        )
    if not ours:
        return None
    return job if not seen.ended or "outcome" in (_last_word(place, job) or {}) else None


def _last_word(place: str, job: str) -> dict[str, Any] | None:
    """The last event of a job's newest start."""
    boxes = _boxes(place, job)
    events = mailbox.Inbox(boxes[-1]).read() if boxes else []
    return events[-1] if events else None


def _boxes(place: str, job: str) -> list[str]:
    """The boxes of a job's starts, in their order."""
    directory = storage.join(place, job)
    names = storage.list_files(directory) if storage.exists(directory) else []
    return [
        storage.join(directory, start) for start in sorted({name.partition("/")[0].removesuffix(".jsonl") for name in names})
    ]


def box(place: str, job: str, start: int) -> str:
    """The box of a job's start number `start`, from 0."""
    return storage.join(place, job, f"{start:05d}")


def _submit(place: str, work: Work) -> str:
    """Write what the job needs, and queue it; its id."""
    script = storage.join(place, SCRIPT)
    if not storage.is_local(script):
        raise UsageError(
            f"{work.build.path} is not on a file system that the cluster's nodes share, which launcher slurm needs for its logs"
        )
    wanted = {"job": dataclasses.asdict(work.job), "worker": work.worker, "processes": work.processes}
    mailbox.put(storage.join(place, WORK), wanted)
    storage.write_bytes(script, batch_script(work, place).encode())
    job = slurm_queue.submit(script)
    mailbox.put(
        storage.join(place, SUBMITTED), {"job": job, "build": work.build.build_id, "fingerprint": work.build.fingerprint}
    )
    return job


def batch_script(work: Work, place: str) -> str:
    """The batch script: it becomes the job's head, which gets Slurm's SIGTERM and queues the job again."""
    execution, stage = work.execution, work.job.stage
    before = math.ceil(execution.announced_grace + MARGIN_SECONDS)
    options = [
        f"--job-name=cloze-{stage}", f"--nodes={execution.nodes}", "--ntasks-per-node=1", f"--signal=B:TERM@{before}", "--requeue",
        "--open-mode=append", f"--output={place}/%j.log", *execution.slurm_options,
    ]  # fmt: skip
    python = execution.remote_python or sys.executable
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {shlex.quote(option)}" for option in options),
        f"# {stage} in {work.build.path}: the head of a batch job, on its first node. It stops {before} s before the time limit.",
        f"exec {shlex.quote(python)} -m flows.launchers.batch {shlex.quote(place)}",
    ]
    return "\n".join(lines) + "\n"


def unattended(path: str) -> str | None:
    """The job that trains at `path` while nobody follows it; None: there is none."""
    place = storage.join(path, LOGS, DIRECTORY)
    found = mailbox.get(storage.join(place, SUBMITTED)) if storage.is_local(path) and storage.is_dir(place) else None
    if found is None or is_held(path):
        return None
    seen = slurm_queue.look(str(found["job"]))
    return None if seen is None or seen.ended else str(found["job"])


def cancel(path: str, job: str, told: Callable[[str], None]) -> dict[str, Any]:
    """End a job that nobody follows; what is there then, as `cancelling.cancel` has it."""
    cancelling.ask(path)
    seen = slurm_queue.look(job)
    if seen is not None and seen.queued:
        told(f"Slurm's job {job} waits in the queue, and is taken out of it")
        slurm_queue.cancel(job)
    else:
        told(f"Slurm's job {job} is asked to end; its script says how long it has to save a checkpoint")
    content = mailbox.get(storage.join(path, LOGS, DIRECTORY, WORK))
    assert content is not None  # it was written before the job was submitted
    patience = Execution.model_validate(content["job"]["execution"]).announced_grace + MARGIN_SECONDS
    deadline = time.monotonic() + patience
    while not ((seen := slurm_queue.look(job)) is not None and seen.ended):
        if time.monotonic() > deadline:
            told(f"it did not end in {patience:.0f} s; scancel ends it")
            slurm_queue.cancel(job)
            deadline = float("inf")
        time.sleep(LOOK_SECONDS[0])
    saved = checkpoints.complete_steps(path)
    return {"artifact": path, "state": "cancelled", "checkpoint": saved[-1] if saved else None}


class _Followed:
    """A job, seen from outside. See `protocol.Started`."""

    def __init__(self, work: Work, place: str, job: str) -> None:
        self.ranks = (0,)
        self._path, self._place, self._job = work.build.path, place, job
        self._log = storage.join(place, f"{job}.log")
        self._start: str | None = None  # the box that is read
        self._inbox: mailbox.Inbox | None = None
        self._end: dict[str, Any] | None = None  # the last word of the start that is read
        self._over = self._stopping = False
        self._seen = Seen("PENDING")
        self._pause, self._next_look = LOOK_SECONDS[0], 0.0
        self._waits = ""  # what the job waits for, as it was last told

    @property
    def over(self) -> bool:
        return self._over

    def host(self, rank: int) -> str | None:
        del rank
        return None  # the job's head names hosts itself

    def events(self, seconds: float) -> Sequence[Told]:
        """See `protocol.Started.events`. Raises ClozeError (or UsageError, …) as the job's head did, once Slurm says that the job is over."""
        told = self._read()
        if not told and not self._over:
            time.sleep(min(seconds, FILES_SECONDS))
            waits = self._look()
            ended = self._seen.ended  # what it wrote last is read after that
            told = [*waits, *self._read()]
            if ended and not told and not self._over:
                self._over = True
                raise self._error()
        return told

    def _read(self) -> list[Told]:
        """What the job's head has written since; at its end what comes of it."""
        told: list[Told] = []
        for event in self._lines():
            if "begun" in event:
                self._end = None
            elif "outcome" in event:
                self._over = True
                told += [(0, event), (0, {"ended": 0, "ours": False})]
            elif "error" in event:
                self._end = event  # perhaps not the last word: a job that is queued again begins anew
                self._pause, self._next_look = LOOK_SECONDS[0], 0.0
                told += [(0, event)] if self._stopping else []
            else:
                told.append((0, event))
        return told

    def _lines(self) -> list[dict[str, Any]]:
        """The next events, of the start that is read or else of the one after it."""
        found = self._inbox.read() if self._inbox is not None else []
        if found:
            return found
        later = [start for start in _boxes(self._place, self._job) if self._start is None or start > self._start]
        if later:
            self._start, self._inbox = later[0], mailbox.Inbox(later[0])
            return self._inbox.read()
        return []

    def _look(self, at_once: bool = False) -> list[Told]:
        """Ask Slurm now and then, ever more rarely while nothing changes; what the job waits for, once."""
        if time.monotonic() < self._next_look and not at_once:
            return []
        seen = slurm_queue.look(self._job)
        self._pause = LOOK_SECONDS[0] if seen != self._seen else min(1.5 * self._pause, LOOK_SECONDS[1])
        self._next_look = time.monotonic() + self._pause
        again = " again" if self._start is not None else ""
        if seen is None:
            why = f"Slurm does not answer; job {self._job} is followed by its files"
        elif seen.queued:
            why = f"job {self._job} waits in the queue{again} ({seen.reason or seen.state.lower()})"
        else:
            why = ""
        self._seen = seen or self._seen
        if why == self._waits:
            return []
        self._waits = why
        return [(None, {"waiting": why})] if why else []

    def _error(self) -> ClozeError:
        """Why a job that is over has not made it."""
        if self._end is not None and not self._end.get("again"):
            return BY_EXIT_CODE.get(self._end["exit_code"], ClozeError)(self._end["error"])
        why = {
            "CANCELLED": "was cancelled",
            "TIMEOUT": "reached its time limit before it could stop; give it more --slurm-option --time=…",
            "OUT_OF_MEMORY": "took more memory than it had asked for; give it more --slurm-option --mem=…",
        }.get(self._seen.state, f"ended as {self._seen.state}" + (f" ({self._seen.reason})" if self._seen.reason else ""))
        begun = "" if self._start is not None else " before it began"
        if self._end is not None:
            begun = f" when it had been queued again ({self._end['error']})"
        return ClozeError(f"Slurm's job {self._job} {why}{begun}{self._last_line()}; its output is in {self._log}")

    def _last_line(self) -> str:
        """What the job printed last."""
        lines = storage.read_text(self._log).strip().splitlines() if storage.exists(self._log) else []
        return f": {lines[-1]}" if lines else ""

    def stop(self, grace: float) -> None:
        """See `protocol.Started.stop`. A job that has told its outcome ends by itself."""
        if self._over:
            return
        self._stopping = True
        cancelling.ask(self._path)  # so that it is not queued again, and ends even if this process dies
        self._look(at_once=True)
        deadline = time.monotonic() + (grace + MARGIN_SECONDS if grace > 0 and not self._seen.queued else 0.0)
        while time.monotonic() < deadline and not self._seen.ended:
            time.sleep(LOOK_SECONDS[0])
            self._look(at_once=True)
        if not self._seen.ended:
            slurm_queue.cancel(self._job)
        self._over = grace <= 0

    def close(self) -> None:
        """Nothing is held: whether the job lives says `stop`."""


LAUNCHER: Launcher = Slurm()
