"""Beam's own runner: one worker in this process, or several in processes of their own.

The processes come from our worker pool rather than from Beam's `multi_processing` mode. That one waits for ever when a worker
is killed; here the death of a worker ends the pipeline with a sentence that names it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.transforms.environments import ExternalEnvironment

from pipeline.core.execution import Execution
from pipeline.engines.base import Engine
from pipeline.engines.monitored import run_monitored
from pipeline.engines.pool import WorkerPool


class LocalEngine:
    """See `Engine`."""

    retries = 0

    def __init__(self, execution: Execution, logs: Path) -> None:
        del logs  # workers write to the stage's own
        self.workers = execution.workers
        self._options = execution.beam_options
        self._stack = ExitStack()
        self._pool: WorkerPool | None = None  # started when it is wanted

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._stack.__exit__(kind, error, trace)

    def run(self, construct: Callable[[Any], None], units: int, name: str) -> None:
        count = min(self.workers, units)
        if count <= 1:
            with beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions(list(self._options))) as pipeline:
                construct(pipeline)
            return
        if self._pool is None:
            self._pool = self._stack.enter_context(WorkerPool())
        # The runner warns that it knows of no mode for so many workers; that they are processes follows from the environment.
        options = PipelineOptions([f"--direct_num_workers={count}", *self._options])
        runner = FnApiRunner(default_environment=ExternalEnvironment(self._pool.address))
        pipeline = beam.Pipeline(runner=runner, options=options)
        construct(pipeline)
        # In a thread: the runner does not notice the death of a worker.
        failure = run_monitored(pipeline, self._pool.raise_if_dead, "cloze-beam")
        if failure is not None:
            raise failure
