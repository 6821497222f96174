"""`--launcher slurm`: a batch job with its own coordinator (`job.py`) on the allocated nodes.

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
import time
from collections.abc import Callable
from typing import Any

from cloze.core import storage
from cloze.core.accounts import open_private
from cloze.core.artifacts.fence import start_launch
from cloze.core.errors import ClozeError, UsageError
from cloze.core.processes import wait_until
from cloze.core.stages.execution import Execution
from cloze.core.stages.worker import JOB, LOGS, Job
from cloze.flows.launch import cancel_requests, event_files, site
from cloze.flows.launch.cancel_requests import cancel_result
from cloze.flows.launch.protocol import Detached, Launcher, LaunchRequest, RankGroup
from cloze.flows.launch.slurm import cli as slurm_cli
from cloze.flows.launch.slurm.cli import MARGIN_SECONDS, FollowedJob, start_files

DIRECTORY = "slurm"  # below LOGS
WORK, SUBMITTED, SCRIPT = "work.json", "submitted.json", "job.sbatch"
RESERVED = {  # sbatch options set by the launcher -> what to use instead
    name: instead
    for names, instead in {
        "--nodes -N": "--nodes", "--ntasks -n --ntasks-per-node": "--processes",
        "--signal": "--grace-seconds", "--requeue --parsable": "nothing: it is always set",
        "--no-requeue": "nothing: the launcher requeues", "--wait": "nothing: cloze waits",
        "--output -o --error -e": "nothing: the log is in _logs/slurm",
        "--open-mode": "nothing: it is append", "--array -a": "a matrix in a run's config",
        "--chdir -D": "nothing: paths are made absolute",
        "--job-name -J": "nothing: the launcher finds jobs by name",
    }.items()
    for name in names.split()
}  # fmt: skip


# sbatch options that say the same as a field of `resources`
SAME = {
    "gpus": ("--gpus-per-node", "--gpus", "-G", "--gres", "--gpus-per-task", "--gpus-per-socket"),
    "cpus": ("--cpus-per-task", "-c", "--cpus-per-gpu", "--exclusive"),
    "memory": ("--mem", "--mem-per-cpu", "--mem-per-gpu"),
    "time": ("--time", "-t"),
}


class SlurmLauncher(Launcher):
    """See `protocol.Launcher`."""

    attaches = True

    def check(self, execution: Execution) -> None:
        for option in execution.slurm_options:
            name = _name(option)
            if not option.startswith("-") or " " in option.partition("=")[0]:
                raise UsageError(
                    f"slurm_options ({option!r}) must look like --NAME=VALUE, such as "
                    f"--partition=gpu"
                )
            if name in RESERVED:
                raise UsageError(
                    f"slurm_options ({option}) is set by the launcher; use {RESERVED[name]}"
                )
        slurm_cli.check()

    def start(self, work: LaunchRequest) -> RankGroup:
        directory = storage.join(work.build.path, LOGS, DIRECTORY)
        # a job that builds, or has already built, this artifact, or else a new one
        job = _submitted_job(directory, work) or _unrecorded_job(directory, work)
        return FollowedJob(work, directory, job or _submit(directory, work))

    def living(self, path: str) -> Detached | None:
        if (job := living(path)) is None:
            return None
        return Detached(f"Slurm's job {job}", lambda report: cancel(path, job, report))


def _name(option: str) -> str:
    """Return the name of an sbatch option; a short one's value follows at once, as in -N4."""
    return option.partition("=")[0] if option.startswith("--") else option[:2]


def _resource_options(execution: Execution, *, single: bool) -> list[str]:
    """Return the sbatch options of the resources, without those that `slurm_options` set.

    A stage of one process on a GPU gets one, if its partition has any and nobody says how many.
    """
    resources, given = execution.resources, {*map(_name, execution.slurm_options)}
    gpus, is_named = resources.gpus, given.intersection(SAME["gpus"])
    if gpus is None and single and execution.device != "cpu" and not is_named:
        gpus = int(slurm_cli.has_gpus(execution.slurm_options))
    options = {
        "gpus": gpus and f"--gpus-per-node={gpus}",
        "cpus": resources.cpus and f"--cpus-per-task={resources.cpus}",
        "memory": resources.memory and f"--mem={resources.memory}",
        "time": resources.minutes and f"--time={resources.minutes}",
    }
    return [
        option
        for field, option in options.items()
        if option and not given.intersection(SAME[field])
    ]


def _unrecorded_job(directory: str, work: LaunchRequest) -> str | None:
    """Return and record a job of this build that Slurm has but `submitted.json` lacks, or None.

    A submission, or the submitting process, may be interrupted after Slurm has accepted the job.
    """
    if not storage.exists(storage.join(directory, WORK)):
        return None
    name = job_name(work.job)
    jobs = slurm_cli.unfinished_jobs(name)
    if jobs is None:
        raise ClozeError(
            f"Slurm does not say whether a job {name} trains in {work.build.path}; run again when "
            f"`squeue` answers"
        )
    for later in jobs[1:]:
        slurm_cli.cancel(later)
    return _record_job(directory, work, jobs[0]) if jobs else None


def _submitted_job(directory: str, work: LaunchRequest) -> str | None:
    """Return the job in `submitted.json` if it builds, or has already built, this artifact.

    Raises UsageError: a job with other settings still writes there.
    """
    submitted = event_files.read_json(storage.join(directory, SUBMITTED))
    if submitted is None:
        return None
    job, build = str(submitted["job"]), work.build
    status = slurm_cli.job_status(job)
    if status is None:
        raise ClozeError(
            f"Slurm does not say whether job {job} still trains in {build.path}; run again when "
            f"`squeue` answers"
        )
    if (submitted["build"], submitted["fingerprint"]) != (build.build_id, build.fingerprint):
        if status.ended:
            return None
        raise UsageError(
            f"Slurm's job {job} still trains with other settings in {build.path}; end it first "
            f"(scancel {job})"
        )
    starts = start_files(directory, job)
    events = event_files.EventReader(starts[-1]).read() if starts else []
    has_result = bool(events) and "outcome" in events[-1]
    return job if not status.ended or has_result else None


def _submit(directory: str, work: LaunchRequest) -> str:
    """Write the job's files, submit the job and return its id."""
    script = storage.join(directory, SCRIPT)
    if not storage.is_local(script):
        raise UsageError(
            f"{work.build.path} is not on a file system that the cluster's nodes share, which "
            f"launcher slurm needs for its logs"
        )
    work.job.write(work.build.file(LOGS, JOB))  # for `cloze resume`
    description = {
        "job": dataclasses.asdict(work.job),
        "worker": work.worker,
        "processes": work.processes,
        "single": work.single,
        "launch": start_launch(work.build.path),
    }
    event_files.write_json(storage.join(directory, WORK), description)
    storage.write_bytes(script, batch_script(work, directory).encode(), opener=open_private)
    try:
        return _record_job(directory, work, slurm_cli.submit(script))
    except UsageError:
        storage.remove(storage.join(directory, WORK))  # there is no job
        raise
    except slurm_cli.UnansweredError as error:
        time.sleep(slurm_cli.POLL_SECONDS[0])
        if (job := _unrecorded_job(directory, work)) is not None:
            return job
        raise ClozeError(
            f"Slurm did not confirm the job {job_name(work.job)} ({error}) and does not list it; "
            f"run again: an accepted job is found by its name"
        ) from error


def _record_job(directory: str, work: LaunchRequest, job: str) -> str:
    """Write `submitted.json` and return the job's id."""
    event_files.write_json(
        storage.join(directory, SUBMITTED),
        {"job": job, "build": work.build.build_id, "fingerprint": work.build.fingerprint},
    )
    return job


def job_name(job: Job) -> str:
    """Return the name of a build's Slurm job, by which the job is found again."""
    return f"cloze-{job.stage}-{job.build_id[:16]}"


def batch_script(work: LaunchRequest, directory: str) -> str:
    """Return the batch script. It becomes the coordinator, so that Slurm's SIGTERM reaches it."""
    execution, stage = work.execution, work.job.stage
    stop_seconds = math.ceil(execution.scheduler_grace_seconds + MARGIN_SECONDS)
    options = [
        f"--job-name={job_name(work.job)}", f"--nodes={execution.nodes}",
        "--dependency=singleton",  # Slurm runs one job per name at a time
        "--ntasks-per-node=1", *_resource_options(execution, single=work.single),
        f"--signal=B:TERM@{stop_seconds}", "--requeue",
        "--open-mode=append", f"--output={directory}/%j.log", *execution.slurm_options,
    ]  # fmt: skip
    here, main = site.read(), "cloze.flows.launch.slurm.job"
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {shlex.quote(option)}" for option in options),
        f"# {stage} in {work.build.path}: the head of a batch job, on its first node. It stops "
        f"{stop_seconds} s before the time limit.",
        here.script(site.shell([here.host_python, "-m", main, directory])),
    ]
    return "\n".join(lines) + "\n"


def living(path: str) -> str | None:
    """Return the job that trains or will train at `path`, or None.

    Raises ClozeError: Slurm does not respond.
    """
    directory = storage.join(path, LOGS, DIRECTORY)
    if not storage.is_local(path) or not storage.is_dir(directory):
        return None
    work = event_files.read_json(storage.join(directory, WORK))
    if work is None:
        return None
    submitted = event_files.read_json(storage.join(directory, SUBMITTED))
    status = None if submitted is None else slurm_cli.job_status(str(submitted["job"]))
    jobs = slurm_cli.unfinished_jobs(job_name(Job(**work["job"])))
    if jobs is None or (submitted is not None and status is None):
        raise ClozeError(
            f"Slurm does not say whether a job still trains in {path}; run this on a host where "
            f"squeue answers, or end the job and remove {directory}"
        )
    if submitted is not None and status is not None and not status.ended:
        return str(submitted["job"])
    return jobs[0] if jobs else None


def cancel(path: str, job: str, report: Callable[[str], None]) -> dict[str, Any]:
    """Cancel a job that no process follows; return the same as `cancel_requests.cancel`."""
    cancel_requests.request_cancel(path)
    status = slurm_cli.job_status(job)
    if status is not None and status.queued:
        report(f"Slurm's job {job} waits in the queue and is cancelled")
        slurm_cli.cancel(job)
    else:
        report(f"requested Slurm's job {job} to stop; it may save a checkpoint")
    work = event_files.read_json(storage.join(path, LOGS, DIRECTORY, WORK))
    assert work is not None  # written before the job was submitted
    execution = Execution.model_validate(work["job"]["execution"])
    seconds = execution.scheduler_grace_seconds + MARGIN_SECONDS

    def has_ended() -> bool:
        status = slurm_cli.job_status(job)
        return status is not None and status.ended

    if not wait_until(has_ended, seconds, slurm_cli.POLL_SECONDS[0]):
        report(f"it did not end in {seconds:.0f} s; scancel ends it")
        slurm_cli.cancel(job)
        if not wait_until(has_ended, seconds, slurm_cli.POLL_SECONDS[0]):
            raise ClozeError(f"Slurm's job {job} does not end; look at it with `squeue -j {job}`")
    return cancel_result(path)


LAUNCHER: Launcher = SlurmLauncher()
