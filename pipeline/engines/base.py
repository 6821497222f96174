"""What an engine is."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from pipeline.core.errors import ClozeError


class WorkerLost(ClozeError):
    """A worker, or something of the engine's, went away in the middle of a pipeline: to run what is left may help."""


class Engine(Protocol):
    """Runs pipelines, one after the other, until it is left.

    Attributes:
        workers: how many workers share the elements of a pipeline in turn, 1 where that is not known.
        retries: how often what is left of a pipeline is worth running again after `WorkerLost`.
    """

    workers: int
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
            WorkerLost: a worker died; one sentence that names it.
            ClozeError: the engine itself cannot go on.
            Exception: whatever the runner raises for a failed element; its text holds that of the element's exception.
        """
