"""The base class of runner backends, and the table of backends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from pkgutil import resolve_name
from typing import Any

from cloze.core.errors import ClozeError, UsageError
from cloze.core.stages.stage import BuildContext
from cloze.core.stages.worker import LOGS, local_directory

CONTINUE = "run again to continue: what is finished is kept"  # end of messages about lost work


class WorkerLostError(ClozeError):
    """A worker or a part of the engine was lost during a pipeline; a retry may succeed."""


class RunnerBackend(ABC):
    """Context manager that runs pipelines one after the other."""

    workers = 1  # number of workers that take a pipeline's elements in turn; 1 if unknown
    retries = 0  # maximum number of new runs of the unfinished rest after `WorkerLostError`

    def __init__(self) -> None:
        self._stack = ExitStack()  # closed at the end of the context

    def __enter__(self) -> RunnerBackend:
        return self

    def __exit__(self, *error: Any) -> bool | None:
        return self._stack.__exit__(*error)

    @abstractmethod
    def run(self, construct: Callable[[Any], None], units: int, name: str) -> None:
        """Run the pipeline that `construct` builds, to its end.

        Args:
            construct: applies transforms to a `beam.Pipeline`; with None it runs the elements here.
            units: number of work units.
            name: name of the job, for consoles.

        Raises:
            WorkerLostError: a worker died; the message names it.
            ClozeError: the engine cannot continue.
            Exception: any error of the runner for a failed element; its text contains the text of
                the element's exception.
        """


# The table of backends, and the backend of a build.

LOCAL = "local"
# Runner name -> `module:CLASS`, called with the execution and the log directory. All other names
# are Beam's own.
BACKENDS = {
    LOCAL: "cloze.pipeline.runners.beam_runner:LocalBackend",
    "flink": "cloze.pipeline.runners.flink:FlinkBackend",
    "flinkrunner": "cloze.pipeline.runners.flink:FlinkBackend",
}
ANY_OTHER = "cloze.pipeline.runners.beam_runner:BeamRunnerBackend"


def open_backend(build: BuildContext) -> RunnerBackend:
    """Return the backend of this build, shared by all its pipelines and closed with the build.

    Raises:
        UsageError: the runner is unknown, or something that it needs is missing.
    """
    if build.runner is None:
        build.runner = build.cleanup.enter_context(_create_backend(build))
    backend: RunnerBackend = build.runner
    return backend


def _create_backend(build: BuildContext) -> RunnerBackend:
    runner = build.execution.runner.lower()
    if runner != LOCAL and build.path.startswith("memory:"):  # private to this process
        raise UsageError(
            f"{build.path} is not visible to the workers of runner {build.execution.runner}; use a "
            f"path that all workers can read and write"
        )
    create = resolve_name(BACKENDS.get(runner, ANY_OTHER))
    backend: RunnerBackend = create(build.execution, local_directory(build.path) / LOGS)
    return backend
