"""Slurm's queue, by its commands: submit, look, cancel, queue again. Works without accounting, and asks it where it is there."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass

from pipeline.core.errors import ClozeError, UsageError

SECONDS = 60.0  # for a command of Slurm's to answer: a busy controller takes its time
QUEUED = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SUSPENDED", "STOPPED"})
ENDED = frozenset(
    {
        "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "REVOKED",
        "SPECIAL_EXIT", "UNKNOWN",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seen:
    """A job as Slurm sees it: `state` in Slurm's words, UNKNOWN of one that it has forgotten; `reason` why it waits, or ended so."""

    state: str
    reason: str = ""

    @property
    def queued(self) -> bool:
        """Whether it waits, for the first time or again; else it runs, ends, or has ended."""
        return self.state in QUEUED

    @property
    def ended(self) -> bool:
        """Whether it will do no more."""
        return self.state in ENDED


def check() -> None:
    """Raises UsageError where jobs cannot be submitted here."""
    absent = [name for name in ("sbatch", "squeue", "scontrol", "scancel") if shutil.which(name) is None]
    if absent:
        raise UsageError(
            f"launcher slurm needs {absent[0]}, which is not on this machine; run it on a login node of the cluster"
        )


def submit(script: str) -> str:
    """Queue a batch script; the job's id.

    Raises:
        UsageError: Slurm does not take it; why, in its words.
    """
    done = _run("sbatch", "--parsable", script)
    if done.returncode:
        raise UsageError(f"Slurm does not take the job ({_words(done.stderr)}); see --slurm-option and `sinfo`")
    return done.stdout.strip().partition(";")[0]  # of several clusters, the cluster's name follows


def look(job: str) -> Seen | None:
    """The job's state; None where Slurm does not answer just now."""
    done = _run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T|%r")
    if done.returncode == 0 and "|" in done.stdout:
        state, _, reason = done.stdout.strip().splitlines()[-1].partition("|")
        return Seen(state, "" if reason == "None" else reason)
    if done.returncode and "Invalid job id" not in done.stderr:
        return None
    return Seen(_accounted(job) or "UNKNOWN")  # it has ended minutes ago


def _accounted(job: str) -> str | None:
    """What the accounting knows of a job that the controller has forgotten."""
    if shutil.which("sacct") is None:
        return None
    done = _run("sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={job}", "--format=State")
    words = done.stdout.split()
    return words[0] if done.returncode == 0 and words else None


def cancel(job: str) -> None:
    """Take it out of the queue, or end it: SIGTERM to all its processes, and after the cluster's KillWait SIGKILL."""
    _run("scancel", job)


def requeue(job: str) -> str | None:
    """Queue the running job again, for its own batch script to ask for; None, or why it cannot be, in Slurm's words.

    All that runs in the job is ended by that, the asking command included.
    """
    seen = _run("scontrol", "--oneliner", "show", "job", job)
    if "JobState=RUNNING" not in seen.stdout.split():
        return "it is being ended by Slurm"
    done = _run("scontrol", "requeue", job)
    return _words(done.stderr) if done.returncode > 0 else None


def nodes() -> list[tuple[str, str]]:
    """The name and the address of each node of the allocation that this process runs in, the first one first.

    Raises:
        UsageError: it runs in none.
    """
    listed = os.environ.get("SLURM_JOB_NODELIST")
    if not listed:
        raise UsageError("launcher srun runs inside a job of Slurm's (salloc, sbatch); from a login node take --launcher slurm")
    names = _told("scontrol", "show", "hostnames", listed).split()
    shown = [dict(_fields(line)) for line in _told("scontrol", "--oneliner", "show", "node", listed).splitlines()]
    addresses = {fields.get("NodeName"): fields.get("NodeAddr") for fields in shown}
    return [(name, addresses.get(name) or name) for name in names]


def _fields(line: str) -> list[tuple[str, str]]:
    return [(name, value) for name, separator, value in (word.partition("=") for word in line.split()) if separator]


def _told(*command: str) -> str:
    done = _run(*command)
    if done.returncode:
        raise ClozeError(
            f"{' '.join(command)} failed ({_words(done.stderr)}); see whether Slurm's controller answers (scontrol ping)"
        )
    return done.stdout


def _words(stderr: str) -> str:
    """Slurm's own words, without its program's name."""
    lines = [line.partition("error: ")[2] or line for line in stderr.strip().splitlines()]
    return "; ".join(line.removeprefix("Batch job submission failed: ") for line in lines) or "it gave no reason"


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    """A command of Slurm's; one that does not answer in time counts as failed."""
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"{command[0]} did not answer in {SECONDS:.0f} s")
    except OSError as error:
        return subprocess.CompletedProcess(command, 1, "", f"{command[0]}: {error.strerror}")
