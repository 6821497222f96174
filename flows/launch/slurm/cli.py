"""Slurm's command line: submit, query, cancel and requeue jobs. `sacct` is optional."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass

from cloze.core.errors import ClozeError, UsageError

SECONDS = 60.0  # timeout of a command; a busy controller is slow
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
    """Status of a Slurm job.

    Attributes:
        state: Slurm's state; UNKNOWN if Slurm has forgotten the job.
        reason: why the job waits or ended.
    """

    state: str
    reason: str = ""

    @property
    def queued(self) -> bool:
        """The job waits in the queue, for the first time or requeued."""
        return self.state in QUEUED

    @property
    def ended(self) -> bool:
        """The job has ended."""
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


def submit(script: str) -> str:
    """Submit a batch script and return the job's id.

    Raises:
        UnansweredError: Slurm did not confirm the job, but may have accepted it.
        UsageError: Slurm refused the job; the message has the reason.
    """
    result = _run("sbatch", "--parsable", script)
    message = _words(result.stderr)
    if result.returncode and _UNANSWERED.search(message):
        raise UnansweredError(message)
    if result.returncode:
        raise UsageError(f"Slurm rejects the job ({message}); check --slurm-option and `sinfo`")
    return result.stdout.strip().partition(";")[0]  # with several clusters: ID;CLUSTER


def named(name: str) -> list[str] | None:
    """Return the ids of unfinished jobs of that name, oldest first; None: no answer from Slurm."""
    result = _run("squeue", "--noheader", "--states=all", f"--name={name}", "--format=%A|%T")
    if result.returncode:
        return None
    jobs = [line.strip().partition("|") for line in result.stdout.splitlines() if "|" in line]
    return sorted((job for job, _, state in jobs if not SlurmJobStatus(state).ended), key=int)


def job_status(job: str) -> SlurmJobStatus | None:
    """Return the job's status; None if Slurm does not respond."""
    result = _run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T|%r")
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
    result = _run(
        "sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={job}", "--format=State"
    )
    words = result.stdout.split()
    return words[0] if result.returncode == 0 and words else None


def cancel(job: str) -> None:
    """Cancel a job: dequeue it, or send SIGTERM, and SIGKILL after the cluster's KillWait."""
    _run("scancel", job)


def requeue(job: str) -> str | None:
    """Requeue the running job from its own batch script; return Slurm's reason if it refuses.

    This ends all processes of the job, including the caller.
    """
    description = _run("scontrol", "--oneliner", "show", "job", job)
    if "JobState=RUNNING" not in description.stdout.split():
        return "it is being ended by Slurm"
    result = _run("scontrol", "requeue", job)
    return _words(result.stderr) if result.returncode > 0 else None


def nodes() -> list[tuple[str, str]]:
    """Return (name, address) of each node of this process's allocation, the first node first.

    Raises:
        UsageError: this process runs outside a Slurm job.
    """
    node_list = os.environ.get("SLURM_JOB_NODELIST")
    if not node_list:
        raise UsageError(
            "launcher srun runs inside a Slurm job (salloc, sbatch); on a login node, use "
            "--launcher slurm"
        )
    names = _output("scontrol", "show", "hostnames", node_list).split()
    details = [
        dict(_fields(line))
        for line in _output("scontrol", "--oneliner", "show", "node", node_list).splitlines()
    ]
    addresses = {fields.get("NodeName"): fields.get("NodeAddr") for fields in details}
    return [(name, addresses.get(name) or name) for name in names]


def _fields(line: str) -> list[tuple[str, str]]:
    return [
        (name, value)
        for name, separator, value in (word.partition("=") for word in line.split())
        if separator
    ]


def _output(*command: str) -> str:
    result = _run(*command)
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


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a Slurm command; a timeout counts as a failure."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(
            command, 1, "", f"{command[0]} did not answer in {SECONDS:.0f} s"
        )
    except OSError as error:
        return subprocess.CompletedProcess(command, 1, "", f"{command[0]}: {error.strerror}")
