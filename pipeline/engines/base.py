"""What an engine is, and which one an `Execution` asks for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol

from pipeline.core import storage
from pipeline.core.errors import ClozeError, UsageError
from pipeline.core.execution import Execution
from pipeline.core.stage import Build
from pipeline.core.worker import LOGS, local_directory

LOCAL, FLINK = "local", "flink"
ENGINE = "engine"  # its name among the things that a build shares between its pipelines


class Lost(ClozeError):
    """A worker, or something of the engine's, went away in the middle of a pipeline: to run what is left may help."""


class Engine(Protocol):
    """Runs pipelines, one after the other, until it is left.

    Attributes:
        hands: how many workers share the elements of a pipeline in turn, 1 where that is not known.
        retries: how often what is left of a pipeline is worth running again after `Lost`.
    """

    hands: int
    retries: int

    def __enter__(self) -> Engine: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None: ...

    def run(self, construct: Callable[[Any], None], units: int, name: str) -> None:
        """Run the pipeline that `construct` builds, to its end.

        Args:
            construct: takes a `beam.Pipeline` and applies transforms to it.
            units: how many work units it has.
            name: of the job, for consoles.

        Raises:
            Lost: a worker died; one sentence that names it.
            ClozeError: the engine itself cannot go on.
            Exception: whatever the runner raises for a failed element; its text holds that of the element's exception.
        """


def open_engine(build: Build) -> Engine:
    """The engine of this build, the same for all of its pipelines; it ends with the build.

    Raises:
        UsageError: the runner is not known, or what it needs is missing.
    """
    if ENGINE not in build.shared:
        build.shared[ENGINE] = build.cleanup.enter_context(make_engine(build.execution, build.path))
    engine: Engine = build.shared[ENGINE]
    return engine


def make_engine(execution: Execution, path: str) -> AbstractContextManager[Engine]:
    """Args: path: of the artifact that is made; logs go below it."""
    if execution.runner == LOCAL:
        from pipeline.engines.local import LocalEngine

        return LocalEngine(execution)
    if not storage.is_shared(path):
        raise UsageError(f"{path} cannot be seen by the workers of runner {execution.runner}; use a path that all of them see")
    if execution.runner.lower() in (FLINK, "flinkrunner"):
        from pipeline.engines.flink import FlinkEngine

        return FlinkEngine(execution, local_directory(path) / LOGS)
    from pipeline.engines.by_name import OtherEngine

    return OtherEngine(execution)
