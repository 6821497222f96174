"""`--launcher slurm`: a batch job with its own coordinator (`slurm_job.py`) on the allocated nodes.

`cloze` submits the job and follows it through files in the artifact's directory. If `cloze` ends,
the same command attaches to the job instead of submitting another. Below `_logs/slurm/`:

    job.sbatch      batch script
    work.json       description of the job's work
    submitted.json  {"job", "build", "fingerprint"} of the newest job
    JOB.log         output of the script and of `srun`, over all starts
    JOB/START       event file (`event_files.py`) of each start: {"begun": …}, rank 0's events, and
                    the end; "again" says whether the job is requeued

A job may start several times: it is requeued after its time limit, a preemption or a lost node.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from cloze.core import storage
from cloze.core.artifacts import checkpoints
from cloze.core.artifacts.checkpoints import start_launch
from cloze.core.errors import BY_EXIT_CODE, ClozeError, UsageError
from cloze.core.stages.execution import Execution
from cloze.core.stages.worker import JOB, LOGS, Job
from cloze.flows.launch import cancel_requests, event_files, slurm_cli
from cloze.flows.launch.protocol import Launcher, LaunchRequest, RankEvent, RankGroup
from cloze.flows.launch.slurm_cli import SlurmJobStatus

DIRECTORY = "slurm"  # below LOGS
WORK, SUBMITTED, SCRIPT = "work.json", "submitted.json", "job.sbatch"
MARGIN_SECONDS = (
    30.0  # before the time limit, in addition to the grace period: for srun and the script
)
LOOK_SECONDS = (1.0, 15.0)  # poll interval of the queue: first and longest
FILES_SECONDS = 0.5
OURS = {  # sbatch options set by the launcher -> what to use instead
    "--nodes": "--nodes", "-N": "--nodes", "--ntasks": "--processes", "-n": "--processes",
    "--ntasks-per-node": "--processes",
    "--signal": "--grace-seconds", "--requeue": "nothing: it is on",
    "--no-requeue": "nothing: --launcher slurm queues again",
    "--output": "nothing: it lies in _logs/slurm", "-o": "nothing: it lies in _logs/slurm",
    "--error": "nothing: it lies in _logs/slurm",
    "--open-mode": "nothing: it is append", "--array": "a matrix in a run's config",
    "-a": "a matrix in a run's config",
    "--chdir": "nothing: paths are made absolute",
    "--job-name": "nothing: a job is found by it", "-J": "nothing: a job is found by it",
    "--parsable": "nothing: it is on", "--wait": "nothing: cloze waits",
}  # fmt: skip


class SlurmLauncher:
    """See `protocol.Launcher`."""

    def check(self, execution: Execution) -> None:
        if execution.hostfile is not None:
            raise UsageError(
                f"hostfile ({execution.hostfile}) is for --launcher ssh; Slurm chooses the hosts "
                f"itself"
            )
        for option in execution.slurm_options:
            name = option.partition("=")[0]
            if not option.startswith("-") or " " in name:
                raise UsageError(
                    f"slurm_options ({option!r}) must look like --NAME=VALUE, such as "
                    f"--partition=gpu"
                )
            if name in OURS:
                raise UsageError(
                    f"slurm_options ({option}) is set by the launcher; what says it is {OURS[name]}"
                )
        slurm_cli.check()

    def start(self, work: LaunchRequest) -> RankGroup:
        place = storage.join(work.build.path, LOGS, DIRECTORY)
        job = _running(place, work)
        if job is None:
            job = _submit(place, work)
        return _Followed(work, place, job)


def _running(place: str, work: LaunchRequest) -> str | None:
    """Return the job that builds, or has already built, this artifact; None if there is none.

    Raises:
        UsageError: a job with other settings still writes there.
    """
    return _noted(place, work) or _unnoted(place, work)


def _unnoted(place: str, work: LaunchRequest) -> str | None:
    """Return and record a job of this build that Slurm has but `submitted.json` lacks, or None.

    A submission, or the submitting process, may be interrupted after Slurm has accepted the job.
    """
    if not storage.exists(storage.join(place, WORK)):
        return None
    name = job_name(work.job)
    jobs = slurm_cli.named(name)
    if jobs is None:
        raise ClozeError(
            f"Slurm does not say whether a job {name} trains in {work.build.path}; run again when "
            f"it answers"
        )
    for later in jobs[1:]:
        slurm_cli.cancel(later)
    return _note(place, work, jobs[0]) if jobs else None


def _noted(place: str, work: LaunchRequest) -> str | None:
    found = event_files.read_json(storage.join(place, SUBMITTED))
    if found is None:
        return None
    job, ours = (
        str(found["job"]),
        found["build"] == work.build.build_id and found["fingerprint"] == work.build.fingerprint,
    )
    seen = slurm_cli.job_status(job)
    if seen is None:
        raise ClozeError(
            f"Slurm does not say what became of job {job}, which trains in {work.build.path}; run "
            f"again when it answers"
        )
    if not seen.ended and not ours:
        raise UsageError(
            f"Slurm's job {job} still trains with other settings in {work.build.path}; end it "
            f"first (scancel {job})"
        )
    if not ours:
        return None
    return job if not seen.ended or "outcome" in (_last_word(place, job) or {}) else None


def _last_word(place: str, job: str) -> dict[str, Any] | None:
    """Return the last event of a job's newest start, or None."""
    boxes = _boxes(place, job)
    events = event_files.EventReader(boxes[-1]).read() if boxes else []
    return events[-1] if events else None


def _boxes(place: str, job: str) -> list[str]:
    """Return the event files of a job's starts, in order."""
    directory = storage.join(place, job)
    names = storage.list_files(directory) if storage.exists(directory) else []
    return [
        storage.join(directory, start)
        for start in sorted({name.partition("/")[0].removesuffix(".jsonl") for name in names})
    ]


def box(place: str, job: str, start: int) -> str:
    """Return the event file of start number `start`, from 0, of a job."""
    return storage.join(place, job, f"{start:05d}")


def _submit(place: str, work: LaunchRequest) -> str:
    """Write the job's files, submit the job and return its id."""
    script = storage.join(place, SCRIPT)
    if not storage.is_local(script):
        raise UsageError(
            f"{work.build.path} is not on a file system that the cluster's nodes share, which "
            f"launcher slurm needs for its logs"
        )
    work.job.write(work.build.file(LOGS, JOB))  # for `cloze resume`
    launch = start_launch(work.build.path)
    wanted = {
        "job": dataclasses.asdict(work.job),
        "worker": work.worker,
        "processes": work.processes,
        "launch": launch,
    }
    event_files.write_json(storage.join(place, WORK), wanted)
    storage.write_bytes(script, batch_script(work, place).encode())
    try:
        return _note(place, work, slurm_cli.submit(script))
    except UsageError:
        storage.remove(storage.join(place, WORK))  # there is no job
        raise
    except slurm_cli.UnansweredError as error:
        time.sleep(LOOK_SECONDS[0])
        if (job := _unnoted(place, work)) is not None:
            return job
        raise ClozeError(
            f"Slurm did not confirm the job {job_name(work.job)} ({error}), and does not show it; "
            f"run again: if it was taken, it"
            " is found by its name"
        ) from error


def _note(place: str, work: LaunchRequest, job: str) -> str:
    """Write `submitted.json` and return the job's id."""
    event_files.write_json(
        storage.join(place, SUBMITTED),
        {"job": job, "build": work.build.build_id, "fingerprint": work.build.fingerprint},
    )
    return job


def job_name(job: Job) -> str:
    """Return the name of a build's Slurm job, by which the job is found again."""
    return f"cloze-{job.stage}-{job.build_id[:16]}"


def batch_script(work: LaunchRequest, place: str) -> str:
    """Return the batch script. It becomes the coordinator, so that Slurm's SIGTERM reaches it."""
    execution, stage = work.execution, work.job.stage
    before = math.ceil(execution.scheduler_grace_seconds + MARGIN_SECONDS)
    options = [
        f"--job-name={job_name(work.job)}", f"--nodes={execution.nodes}",
        "--dependency=singleton",  # Slurm runs one job per name at a time
        "--ntasks-per-node=1", f"--signal=B:TERM@{before}", "--requeue",
        "--open-mode=append", f"--output={place}/%j.log", *execution.slurm_options,
    ]  # fmt: skip
    python = execution.remote_python or sys.executable
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {shlex.quote(option)}" for option in options),
        f"# {stage} in {work.build.path}: the head of a batch job, on its first node. It stops "
        f"{before} s before the time limit.",
        f"exec {shlex.quote(python)} -m cloze.flows.launch.slurm_job {shlex.quote(place)}",
    ]
    return "\n".join(lines) + "\n"


def living(path: str) -> str | None:
    """Return the job that trains or will train at `path`, or None.

    Raises:
        ClozeError: Slurm does not respond.
    """
    place = storage.join(path, LOGS, DIRECTORY)
    content = (
        event_files.read_json(storage.join(place, WORK))
        if storage.is_local(path) and storage.is_dir(place)
        else None
    )
    if content is None:
        return None
    noted = event_files.read_json(storage.join(place, SUBMITTED))
    seen = None if noted is None else slurm_cli.job_status(str(noted["job"]))
    jobs = slurm_cli.named(job_name(Job(**content["job"])))
    if jobs is None or (noted is not None and seen is None):
        raise ClozeError(
            f"Slurm does not say whether a job still trains in {path}; ask where squeue answers, "
            f"or end the job and remove {place}"
        )
    if noted is not None and seen is not None and not seen.ended:
        return str(noted["job"])
    return jobs[0] if jobs else None


def cancel(path: str, job: str, told: Callable[[str], None]) -> dict[str, Any]:
    """Cancel a job that no process follows; return the same as `cancel_requests.cancel`."""
    cancel_requests.request_cancel(path)
    seen = slurm_cli.job_status(job)
    if seen is not None and seen.queued:
        told(f"Slurm's job {job} waits in the queue, and is taken out of it")
        slurm_cli.cancel(job)
    else:
        told(
            f"Slurm's job {job} is asked to end; its script says how long it has to save a "
            f"checkpoint"
        )
    content = event_files.read_json(storage.join(path, LOGS, DIRECTORY, WORK))
    assert content is not None  # written before the job was submitted
    patience = (
        Execution.model_validate(content["job"]["execution"]).scheduler_grace_seconds
        + MARGIN_SECONDS
    )
    deadline = time.monotonic() + patience
    while not ((seen := slurm_cli.job_status(job)) is not None and seen.ended):
        if time.monotonic() > deadline:
            told(f"it did not end in {patience:.0f} s; scancel ends it")
            slurm_cli.cancel(job)
            deadline = float("inf")
        time.sleep(LOOK_SECONDS[0])
    saved = checkpoints.complete_steps(path)
    return {"artifact": path, "state": "cancelled", "checkpoint": saved[-1] if saved else None}


class _Followed:
    """A job that is followed from outside; see `protocol.RankGroup`."""

    def __init__(self, work: LaunchRequest, place: str, job: str) -> None:
        self.ranks = (0,)
        self._path, self._place, self._job = work.build.path, place, job
        self._log = storage.join(place, f"{job}.log")
        self._start: str | None = None  # event file of the current start
        self._inbox: event_files.EventReader | None = None
        self._end: dict[str, Any] | None = None  # last event of the current start
        self._over = self._stopping = False
        self._seen = SlurmJobStatus("PENDING")
        self._pause, self._next_look = LOOK_SECONDS[0], 0.0
        self._waits = ""  # last reported reason for waiting

    @property
    def finished(self) -> bool:
        return self._over

    def host(self, rank: int) -> str | None:
        del rank
        return None  # the job's own coordinator names hosts

    def events(self, seconds: float) -> Sequence[RankEvent]:
        """See `protocol.RankGroup.events`. Raises the coordinator's error if the job has ended."""
        told = self._read()
        if not told and not self._over:
            time.sleep(min(seconds, FILES_SECONDS))
            waits = self._look()
            ended = self._seen.ended  # taken before the last read, so that no event is missed
            told = [*waits, *self._read()]
            if ended and not told and not self._over:
                self._over = True
                raise self._error()
        return told

    def _read(self) -> list[RankEvent]:
        """Return the new events of the job's coordinator."""
        told: list[RankEvent] = []
        for event in self._lines():
            if "begun" in event:
                self._end = None
            elif "outcome" in event:
                self._over = True
                told += [(0, event), (0, {"ended": 0, "ours": False})]
            elif "error" in event:
                self._end = event  # not final if the job is requeued
                self._pause, self._next_look = LOOK_SECONDS[0], 0.0
                told += [(0, event)] if self._stopping else []
            else:
                told.append((0, event))
        return told

    def _lines(self) -> list[dict[str, Any]]:
        """Return the next events, of the current start or else of the following one."""
        found = self._inbox.read() if self._inbox is not None else []
        if found:
            return found
        later = [
            start
            for start in _boxes(self._place, self._job)
            if self._start is None or start > self._start
        ]
        if later:
            self._start, self._inbox = later[0], event_files.EventReader(later[0])
            return self._inbox.read()
        return []

    def _look(self, at_once: bool = False) -> list[RankEvent]:
        """Poll Slurm with backoff; return a new reason for waiting as an event."""
        if time.monotonic() < self._next_look and not at_once:
            return []
        seen = slurm_cli.job_status(self._job)
        self._pause = (
            LOOK_SECONDS[0] if seen != self._seen else min(1.5 * self._pause, LOOK_SECONDS[1])
        )
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
        """Return the error of a job that ended without a result."""
        if self._end is not None and not self._end.get("again"):
            return BY_EXIT_CODE.get(self._end["exit_code"], ClozeError)(self._end["error"])
        why = {
            "CANCELLED": "was cancelled",
            "TIMEOUT": (
                "reached its time limit before it could stop; give it more --slurm-option --time=…"
            ),
            "OUT_OF_MEMORY": (
                "took more memory than it had asked for; give it more --slurm-option --mem=…"
            ),
        }.get(
            self._seen.state,
            f"ended as {self._seen.state}"
            + (f" ({self._seen.reason})" if self._seen.reason else ""),
        )
        begun = "" if self._start is not None else " before it began"
        if self._end is not None:
            begun = f" when it had been queued again ({self._end['error']})"
        return ClozeError(
            f"Slurm's job {self._job} {why}{begun}{self._last_line()}; its output is in {self._log}"
        )

    def _last_line(self) -> str:
        """Return the last line of the job's output."""
        lines = (
            storage.read_text(self._log).strip().splitlines() if storage.exists(self._log) else []
        )
        return f": {lines[-1]}" if lines else ""

    def stop(self, grace: float) -> None:
        """See `protocol.RankGroup.stop`. A job that has reported its result ends by itself."""
        if self._over:
            return
        self._stopping = True
        # prevents requeueing, and works even if this process dies
        cancel_requests.request_cancel(self._path)
        self._look(at_once=True)
        deadline = time.monotonic() + (
            grace + MARGIN_SECONDS if grace > 0 and not self._seen.queued else 0.0
        )
        while time.monotonic() < deadline and not self._seen.ended:
            time.sleep(LOOK_SECONDS[0])
            self._look(at_once=True)
        if not self._seen.ended:
            slurm_cli.cancel(self._job)
        self._over = grace <= 0

    def close(self) -> None:
        """Do nothing: the job holds no resource of this process."""


LAUNCHER: Launcher = SlurmLauncher()
