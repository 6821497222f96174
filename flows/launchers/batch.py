"""`python -m flows.launchers.batch DIRECTORY`: the head of a stage inside a batch job of Slurm's, on its first node.

It is what the batch script becomes. It trains on all nodes of the job by the launcher `srun`, and writes what it hears to a box of events
for whoever follows (`slurm.py`). SIGTERM (the time limit comes, a preemption) stops the ranks with a checkpoint and queues the job again;
`cloze cancel` stops them and does not. The last event of a start says which ("again"), before Slurm is asked: that ends this process.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

from flows.launchers import cancelling, mailbox, restarts, slurm_queue, table
from flows.launchers.head import Head
from flows.launchers.protocol import Work
from flows.launchers.slurm import WORK, box
from pipeline.core import checkpoints, storage
from pipeline.core.errors import ClozeError, Stopped
from pipeline.core.execution import Execution
from pipeline.core.reporting import GuardedReporter, Reporter
from pipeline.core.stage import Build, Outcome
from pipeline.core.system_errors import os_sentence
from pipeline.core.worker import Events, Job

IDLE = "idle.json"  # how often in a row the job was queued again without a new checkpoint
MOST_IDLE = 3


class _Box(Events):
    """Writes what a stage reports to a box, as the events that a worker would send."""

    def __init__(self, path: str) -> None:
        storage.make_dirs(path.rpartition("/")[0])
        self._out = mailbox.Outbox(path)

    def send(self, event: Mapping[str, Any]) -> None:
        self._out.send([event])


def _run(place: str, report: Reporter) -> tuple[Outcome, Build]:
    """The stage on the nodes that the job has."""
    content = mailbox.get(storage.join(place, WORK))
    assert content is not None  # written before the job was submitted
    job, hosts = Job(**content["job"]), slurm_queue.nodes()
    execution = Execution.model_validate({**job.execution, "launcher": "srun", "nodes": len(hosts), "slurm_options": ()})
    build = Build(
        path=job.path,
        inputs=job.inputs,
        execution=execution,
        fingerprint=job.fingerprint,
        build_id=job.build_id,
        report=GuardedReporter(report),
    )
    job = replace(job, execution=execution.model_dump(mode="json"))
    work = Work(job=job, worker=content["worker"], processes=content["processes"], build=build)
    launcher = table.launcher(execution.launcher)
    launcher.check(execution)
    if cancelling.asked(job.path):
        raise KeyboardInterrupt
    with build.cleanup:
        return restarts.patiently(work, lambda tried: Head(launcher, tried).run()), build


def _why_not_again(place: str, path: str) -> str | None:
    """Why the job is not to be queued again: it was cancelled, or gets nowhere; None: it is."""
    if cancelling.asked(path):
        return "it was cancelled"
    saved, file = checkpoints.complete_steps(path), storage.join(place, IDLE)
    newest = saved[-1] if saved else None
    before = mailbox.get(file)
    times = before["times"] + 1 if before is not None and before["newest"] == newest else 0
    if times >= MOST_IDLE:
        return f"it was queued {times} times without a new checkpoint; give it more time (--slurm-option --time=…)"
    mailbox.put(file, {"newest": newest, "times": times})
    return None


def _interrupt(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # who asks twice is not quicker
    raise KeyboardInterrupt


def main(place: str) -> int:
    """The whole of it; returns the exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    number, start = os.environ["SLURM_JOB_ID"], int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    report = _Box(box(place, number, start))
    report.send({"begun": {"job": number, "start": start, "nodes": os.environ.get("SLURM_JOB_NODELIST", "")}})
    try:
        outcome, build = _run(place, report)
    except KeyboardInterrupt:
        return _stopped(place, report, number, ClozeError("it was stopped before it had anything to save; run again"))
    except Stopped as error:
        return _stopped(place, report, number, error)
    except ClozeError as error:
        return _failed(report, str(error), error.exit_code)
    except OSError as error:
        return _failed(report, os_sentence(error, "input or output") + " and run again", 1)
    except Exception as error:
        return _failed(report, f"{type(error).__name__}: {error}", 1)
    report.send({"outcome": asdict(outcome), "counters": dict(build.counters)})
    return 0


def _failed(report: _Box, sentence: str, code: int) -> int:
    traceback.print_exc()
    report.send({"error": sentence, "exit_code": code})
    return code


def _stopped(place: str, report: _Box, number: str, error: ClozeError) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # to be queued again ends this process
    last: dict[str, Any] = {"error": str(error), "exit_code": error.exit_code}
    why = _why_not_again(place, str(Path(place).parents[1]))
    report.send({**last, "again": why is None})
    if why is None and (why := slurm_queue.requeue(number)) is not None:
        report.send({**last, "again": False})
    print(f"{error}; " + ("the job is queued again" if why is None else f"the job is not queued again: {why}"), flush=True)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
