"""The head: runs a stage in processes of its own, one a rank, by any launcher, and brings progress, outcome and errors back.

On a stop (SIGTERM, Ctrl-C, a cancelled flow, `cloze cancel`) the ranks get SIGTERM and `execution.grace_seconds` to save a
checkpoint. When one rank fails, dies or hangs, the others are ended too, so nothing waits for a peer that will never answer. A rank
that SIGTERM ended before it could heed it was asked to stop, and so are all. What was lost is
started again where `execution` allows it, see `restarts.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from flows.launchers import cancelling, restarts, table, torchrun
from flows.launchers.course import Course
from flows.launchers.protocol import Launcher, Started, Work
from pipeline.core.config import StageConfig
from pipeline.core.errors import ClozeError, Stopped
from pipeline.core.stage import Build, Outcome, Stage
from pipeline.core.worker import LOGS, Job, local_directory

PEER_SECONDS = 5.0  # for the other ranks to notice that one has failed
LOOK_SECONDS = 0.5


def in_process(stage: Stage, reference: str) -> Callable[[StageConfig, Build], Outcome]:
    """A `Stage.run` that runs the stage by its package's worker, with `execution.processes` ranks a node if it is parallel.

    Args:
        reference: `module:STAGE`, for the worker to load.
    """

    def run(config: StageConfig, build: Build) -> Outcome:
        job = Job(
            stage=stage.name,
            reference=reference,
            config=config.model_dump(mode="json"),
            path=build.path,
            inputs=dict(build.inputs),
            execution=build.execution.model_dump(mode="json"),
            fingerprint=build.fingerprint,
            build_id=build.build_id,
        )
        processes = build.execution.processes if stage.parallel else 1
        work = Work(job=job, worker=f"{stage.worker}.worker", processes=processes, build=build)
        launcher = table.launcher(build.execution.launcher if stage.parallel else "local")
        launcher.check(build.execution)
        if build.execution.node_rank == 0 and not torchrun.joins(build.execution):  # the others have no say in the directory
            cancelling.clear(build.path)
        return restarts.patiently(work, lambda tried: Head(launcher, tried).run())

    return run


class Head:
    """One try: begins the ranks, follows them to the end, ends them."""

    def __init__(self, launcher: Launcher, work: Work) -> None:
        self.launcher, self.work, self.build = launcher, work, work.build
        minutes = work.execution.timeout_minutes
        self.deadline = None if minutes is None else time.monotonic() + 60.0 * minutes
        self.asked = cancelling.Asked(work.build.path)

    def run(self) -> Outcome:
        """To the end; see `Course.outcome`."""
        started = self.launcher.begin(self.work)
        course = Course(self.work.job.stage, self.build, started, local_directory(self.build.path) / LOGS)
        try:
            self._watch(started, course)
        except BaseException as error:
            started.stop(course.grace)
            self._drain(started, course)
            asked = not isinstance(error, Exception)  # KeyboardInterrupt and Prefect's termination; anything else is a fault
            if asked and course.stopped:
                raise Stopped(course.stopped_sentence()) from None
            raise
        finally:
            started.stop(0)
            self._drain(started, course)
            started.close()
        return course.outcome()

    @staticmethod
    def _drain(started: Started, course: Course) -> None:
        """The last words of ranks that have ended; they do not matter more than why they were ended."""
        with suppress(Exception):
            while told := started.events(0):
                course.take(told)

    def _watch(self, started: Started, course: Course) -> None:
        """Until every rank has ended; breaks off soon after the first failure, and after the last outcome."""
        deadline: float | None = None
        while not started.over:
            course.take(started.events(LOOK_SECONDS))
            self._look_whether_to_stop()
            if course.hung and not course.failed:
                return
            if course.terminated:
                started.stop(course.grace)
                return
            if deadline is None and (course.failed or course.done):
                # one that has told its outcome only has to end; on a busy machine that takes a while
                patient = course.stopping or not course.failed
                deadline = time.monotonic() + (course.grace if patient else PEER_SECONDS)
            if deadline is not None and time.monotonic() > deadline:
                return

    def _look_whether_to_stop(self) -> None:
        """Raises KeyboardInterrupt where the run was asked to end, ClozeError where the stage has had its time."""
        if self.build.report.stop_asked() or self.asked():
            raise KeyboardInterrupt
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise ClozeError(
                f"{self.work.job.stage} took longer than timeout_minutes ({self.work.execution.timeout_minutes:g}) and was stopped; give"
                " it more, or run again to go on"
            )
