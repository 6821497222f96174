"""Slurm's command line, and a job that is followed from outside. `sacct` is optional."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloze.core import storage
from cloze.core.errors import ClozeError, UsageError, error_class
from cloze.core.processes import wait_until
from cloze.flows.launch import cancel_requests, event_files
from cloze.flows.launch.host_setup import last_line, run_command
from cloze.flows.launch.protocol import LaunchRequest, RankEvent

PARTITION, PROGRAM = "--partition", "cloze: "
POLL_SECONDS = (1.0, 15.0)  # poll interval of the queue: first and longest
QUEUED = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SUSPENDED", "STOPPED"}
)
ENDED = frozenset(
    {
        "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED",
        "BOOT_FAIL", "DEADLINE", "REVOKED",
        "SPECIAL_EXIT", "UNKNOWN",
    }
)  # fmt: skip


# sbatch's messages after a lost connection to the controller
_UNANSWERED = re.compile(
    r"did not answer|timed out|Unable to contact|Communication|Zero Bytes|Connection (refused|"
    r"reset)"
)


class UnansweredError(ClozeError):
    """Slurm did not confirm a request."""


@dataclass(frozen=True, slots=True)
class SlurmJobStatus:
    """Status of a Slurm job."""

    state: str  # Slurm's state; UNKNOWN if Slurm has forgotten the job
    reason: str = ""  # why the job waits or ended

    @property
    def queued(self) -> bool:
        """The job waits in the queue, for the first time or requeued."""
        return self.state in QUEUED

    @property
    def ended(self) -> bool:
        return self.state in ENDED


def check() -> None:
    """Raise UsageError if jobs cannot be submitted from this host."""
    absent = [
        name for name in ("sbatch", "squeue", "scontrol", "scancel") if shutil.which(name) is None
    ]
    if absent:
        raise UsageError(
            f"launcher slurm needs {absent[0]}, which is not on this machine; run it on a login "
            f"node of the cluster"
        )


def has_gpus(options: Sequence[str]) -> bool:
    """Return whether the partition that sbatch options name, or else the default one, has GPUs."""
    words = (option.partition("=") for option in options)
    names = [value or name[2:] for name, _, value in words if name[:2] == "-p" or name == PARTITION]
    result = run_command("sinfo", "--noheader", "--format=%P|%G")
    rows = [line.strip().partition("|") for line in result.stdout.splitlines()]
    chosen = [gres for name, _, gres in rows if (name in names if names else name.endswith("*"))]
    return any("gpu" in gres for gres in chosen)


def submit(script: str) -> str:
    """Submit a batch script and return the job's id.

    Raises:
        UnansweredError: Slurm did not confirm the job, but may have accepted it.
        UsageError: Slurm refused the job; the message has the reason.
    """
    result = run_command("sbatch", "--parsable", script)
    message = _words(result.stderr)
    if result.returncode and _UNANSWERED.search(message):
        raise UnansweredError(message)
    if result.returncode:
        raise UsageError(f"Slurm rejects the job ({message}); check --slurm-option and `sinfo`")
    return result.stdout.strip().partition(";")[0]  # with several clusters: ID;CLUSTER


def unfinished_jobs(name: str) -> list[str] | None:
    """Return the ids of unfinished jobs of that name, oldest first; None: no answer from Slurm."""
    result = run_command("squeue", "--noheader", "--states=all", f"--name={name}", "--format=%A|%T")
    if result.returncode:
        return None
    jobs = [line.strip().partition("|") for line in result.stdout.splitlines() if "|" in line]
    return sorted((job for job, _, state in jobs if not SlurmJobStatus(state).ended), key=int)


def job_status(job: str) -> SlurmJobStatus | None:
    """Return the job's status; None if Slurm does not respond."""
    result = run_command("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T|%r")
    if result.returncode == 0 and "|" in result.stdout:
        state, _, reason = result.stdout.strip().splitlines()[-1].partition("|")
        return SlurmJobStatus(state, "" if reason == "None" else reason)
    if result.returncode and "Invalid job id" not in result.stderr:
        return None
    return SlurmJobStatus(_accounted(job) or "UNKNOWN")  # forgotten minutes after its end


def _accounted(job: str) -> str | None:
    """Return the state of a forgotten job from Slurm's accounting, or None."""
    if shutil.which("sacct") is None:
        return None
    result = run_command(
        "sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={job}", "--format=State"
    )
    words = result.stdout.split()
    return words[0] if result.returncode == 0 and words else None


def cancel(job: str) -> None:
    """Cancel a job: dequeue it, or send SIGTERM, and SIGKILL after the cluster's KillWait."""
    run_command("scancel", job)


def requeue(job: str) -> str | None:
    """Requeue the running job from its own batch script; return Slurm's reason if it refuses.

    This ends all processes of the job, including the caller.
    """
    description = run_command("scontrol", "--oneliner", "show", "job", job)
    if "JobState=RUNNING" not in description.stdout.split():
        return "it is being ended by Slurm"
    result = run_command("scontrol", "requeue", job)
    return _words(result.stderr) if result.returncode > 0 else None


def nodes() -> list[tuple[str, str]]:
    """Return (name, address) of each node of this process's allocation, the first node first.

    Raises UsageError: this process runs outside a Slurm job.
    """
    node_list = os.environ.get("SLURM_JOB_NODELIST")
    if not node_list:
        raise UsageError(
            "launcher srun runs inside a Slurm job (salloc, sbatch); on a login node, use "
            "--launcher slurm"
        )
    names = _output("scontrol", "show", "hostnames", node_list).split()
    details = [
        dict(word.split("=", 1) for word in line.split() if "=" in word)
        for line in _output("scontrol", "--oneliner", "show", "node", node_list).splitlines()
    ]
    addresses = {fields.get("NodeName"): fields.get("NodeAddr") for fields in details}
    return [(name, addresses.get(name) or name) for name in names]


def _output(*command: str) -> str:
    result = run_command(*command)
    if result.returncode:
        raise ClozeError(
            f"{' '.join(command)} failed ({_words(result.stderr)}); see whether Slurm's controller "
            f"answers (scontrol ping)"
        )
    return result.stdout


def _words(stderr: str) -> str:
    """Return Slurm's error message without the program's name."""
    lines = [line.partition("error: ")[2] or line for line in stderr.strip().splitlines()]
    return (
        "; ".join(line.removeprefix("Batch job submission failed: ") for line in lines)
        or "it gave no reason"
    )


# A job that is followed through its event files and the queue

# seconds before the time limit, in addition to the grace period: for srun and the script
MARGIN_SECONDS = 30.0
FILES_SECONDS = 0.5


def start_files(directory: str, job: str) -> list[str]:
    """Return the event files of a job's starts, in order."""
    directory = storage.join(directory, job)
    names = storage.list_files(directory) if storage.exists(directory) else []
    return [
        storage.join(directory, start)
        for start in sorted({name.partition("/")[0].removesuffix(".jsonl") for name in names})
    ]


def start_file(directory: str, job: str, start: int) -> str:
    """Return the event file of start number `start`, from 0, of a job."""
    return storage.join(directory, job, f"{start:05d}")


class FollowedJob:
    """A job that is followed from outside; see `protocol.RankGroup`."""

    def __init__(self, work: LaunchRequest, directory: str, job: str) -> None:
        self.ranks = (0,)
        self._path, self._directory, self._job = work.build.path, directory, job
        self._log = storage.join(directory, f"{job}.log")
        self._start: str | None = None  # event file of the current start
        self._inbox: event_files.EventReader | None = None
        self._end: dict[str, Any] | None = None  # last event of the current start
        self._over = self._stopping = self._was_started = False
        self._starts = {"restarts": 0, "preemptions": 0}  # starts after the first, by cause
        self._status = SlurmJobStatus("PENDING")
        self._pause, self._next_poll = POLL_SECONDS[0], 0.0
        self._waits: dict[str, Any] = {}  # last reported reason for waiting

    @property
    def finished(self) -> bool:
        return self._over

    def host(self, rank: int) -> str | None:
        del rank
        return None  # the job's own coordinator names hosts

    def events(self, seconds: float) -> Sequence[RankEvent]:
        """See `protocol.RankGroup.events`. Raises the coordinator's error if the job has ended."""
        events = self._read()
        if not events and not self._over:
            time.sleep(min(seconds, FILES_SECONDS))
            waiting = self._poll()
            has_ended = self._status.ended  # taken before the last read, so no event is missed
            events = [*waiting, *self._read()]
            if has_ended and not events and not self._over:
                self._over = True
                raise self._error()
        return events

    def _read(self) -> list[RankEvent]:
        """Return the new events of the job's coordinator."""
        events: list[RankEvent] = []
        for event in self._next_events():
            if "begun" in event:
                if self._was_started:  # by the scheduler's SIGTERM, or without a word
                    kind = "restarts" if self._end is None else "preemptions"
                    self._starts[kind] += 1
                    events.append((None, {"figures": dict(self._starts)}))
                self._was_started, self._end = True, None
            elif "outcome" in event:
                self._over = True
                events += [(0, event), (0, {"ended": 0, "ours": False})]
            elif "error" in event:
                self._end = event  # not final if the job is requeued
                self._pause, self._next_poll = POLL_SECONDS[0], 0.0
                events += [(0, event)] if self._stopping else []
            else:
                events.append((0, event))
        return events

    def _next_events(self) -> list[dict[str, Any]]:
        """Return the next events, of the current start or else of the following one."""
        events = self._inbox.read() if self._inbox is not None else []
        if events:
            return events
        later = [
            start
            for start in start_files(self._directory, self._job)
            if self._start is None or start > self._start
        ]
        if later:
            self._start, self._inbox = later[0], event_files.EventReader(later[0])
            return self._inbox.read()
        return []

    def _poll(self, at_once: bool = False) -> list[RankEvent]:
        """Poll Slurm with backoff; return a new reason for waiting as an event."""
        if time.monotonic() < self._next_poll and not at_once:
            return []
        status = job_status(self._job)
        first, longest = POLL_SECONDS
        self._pause = first if status != self._status else min(1.5 * self._pause, longest)
        self._next_poll = time.monotonic() + self._pause
        again = " again" if self._start is not None else ""
        event: dict[str, Any] = {}
        if status is None:
            message = f"Slurm does not answer; job {self._job} is followed by its files"
            event = {"figures": {"note": message}}
        elif status.queued:
            reason = status.reason or status.state.lower()
            event = {"waiting": f"job {self._job} waits in the queue{again} ({reason})"}
        self._status = status or self._status
        if event == self._waits:
            return []
        self._waits = event
        return [(None, event)] if event else []

    def _error(self) -> ClozeError:
        """Return the error of a job that ended without a result."""
        if self._end is not None and not self._end.get("again"):
            return error_class(self._end)(self._end["error"])
        outcome = {
            "CANCELLED": "was cancelled",
            "TIMEOUT": (
                "reached its time limit before it could stop; raise resources.time or "
                "--slurm-option --time=…"
            ),
            "OUT_OF_MEMORY": (
                "used more memory than requested; raise resources.memory or --slurm-option --mem=…"
            ),
        }.get(
            self._status.state,
            f"ended as {self._status.state}"
            + (f" ({self._status.reason})" if self._status.reason else ""),
        )
        when = "" if self._start is not None else " before it started"
        last = last_line(Path(self._log))
        if when and last.startswith(PROGRAM):  # the batch script said what is wrong
            return UsageError(
                f"{last.removeprefix(PROGRAM)} in Slurm's job {self._job}; its output is in "
                f"{self._log}"
            )
        if self._end is not None:
            when = f" after it was requeued ({self._end['error']})"
        return ClozeError(
            f"Slurm's job {self._job} {outcome}{when}{last and f': {last}'}; its output is in "
            f"{self._log}"
        )

    def stop(self, grace: float) -> None:
        """See `protocol.RankGroup.stop`. A job that has reported its result ends by itself."""
        if self._over:
            return
        self._stopping = True
        # prevents requeueing, and works even if this process dies
        cancel_requests.request_cancel(self._path)

        def has_ended() -> bool:
            self._poll(at_once=True)
            return self._status.ended

        has_ended()
        may_save = grace > 0 and not self._status.queued
        if not wait_until(has_ended, grace + MARGIN_SECONDS if may_save else 0.0, POLL_SECONDS[0]):
            cancel(self._job)
        self._over = grace <= 0

    def close(self) -> None:
        """Do nothing: the job holds no resource of this process."""
