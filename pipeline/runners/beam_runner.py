"""Backends for Beam's own local runner and for other Beam runners by name
(docs/how-to/beam-runners.md).
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloze.core.errors import UsageError
from cloze.core.stages.execution import BeamOptions
from cloze.pipeline.runners.base import RunnerBackend

if TYPE_CHECKING:  # Beam is imported where a pipeline runs: a single worker needs none
    from cloze.pipeline.runners.pool import WorkerPool

TEMPLATE = "--template_location"


class BeamRunnerBackend(RunnerBackend):
    """Any other Beam runner, by name, such as Spark or Dataflow; see `RunnerBackend`."""

    def __init__(self, execution: BeamOptions, logs: Path) -> None:
        from apache_beam.options.pipeline_options import StandardOptions

        del logs  # the runner has its own logs
        super().__init__()
        # Beam itself would import any module path that is given as a runner's name.
        names = {name.lower(): name for name in StandardOptions.KNOWN_RUNNER_NAMES}
        name = names.get(f"{execution.runner.lower().removesuffix('runner')}runner")
        if name is None:
            raise UsageError(
                f"runner ({execution.runner}) is unknown; use local, flink, or one of "
                f"{', '.join(names.values())}"
            )
        option_names = [flag.split("=")[0] for flag in execution.beam_options]
        if TEMPLATE in option_names:
            raise UsageError(
                f"beam_options ({TEMPLATE}) makes a template of a single pipeline, but a stage "
                f"runs several, each planned from the results of the previous one; remove it"
            )
        self._flags = [f"--runner={name}", *execution.beam_options]
        if not {"--save_main_session", "--no_save_main_session"} & set(option_names):
            # Dataflow would send it, but workers import code by name
            self._flags.append("--no_save_main_session")

    def run(self, construct: Callable[[Any], None], units: int, name: str) -> None:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions

        has_job_name = any(flag.startswith("--job_name") for flag in self._flags)
        flags = self._flags if has_job_name else [*self._flags, f"--job_name=cloze-{name}"]
        try:
            pipeline = beam.Pipeline(options=PipelineOptions(flags))
        except (ValueError, ImportError) as error:  # the runner's own validation
            raise UsageError(f"beam_options: {' '.join(str(error).split())}") from error
        with pipeline:
            construct(pipeline)


# Monitored runs: a check ends the wait for failures that Beam's client misses, such as dead
# workers.

POLL_SECONDS = 0.1


def run_monitored(pipeline: Any, check: Callable[[], None], name: str) -> BaseException | None:
    """Run a Beam pipeline to its end, and return its exception, if any.

    Args:
        pipeline: a constructed pipeline that has not run yet.
        check: called several times a second; its exception ends the wait and is raised.
    """
    failure: list[BaseException] = []

    def run() -> None:
        try:
            pipeline.run().wait_until_finish()
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(POLL_SECONDS)
            check()
    finally:
        # Beam removes it only at a regular end
        shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)
    return failure[0] if failure else None


# This process for one worker, and Beam's own runner for several worker processes.


class LocalBackend(RunnerBackend):
    """This process, or Beam's own runner; see `RunnerBackend`."""

    def __init__(self, execution: BeamOptions, logs: Path) -> None:
        del logs  # workers write to the stage's log
        super().__init__()
        self.workers = execution.workers
        self._options = execution.beam_options
        self._pool: WorkerPool | None = None  # started on first use

    def run(self, construct: Callable[[Any], None], units: int, name: str) -> None:
        count = min(self.workers, units)
        if count <= 1 and not self._options:
            construct(None)
            return
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
        from apache_beam.runners.portability.fn_api_runner import fn_runner, worker_handlers
        from apache_beam.transforms.environments import ExternalEnvironment

        from cloze.pipeline.runners.pool import WorkerPool

        # Beam sends workers the host's own name, which not every machine or container can resolve.
        worker_handlers.ExternalWorkerHandler.host_from_worker = lambda _: "localhost"
        if self._pool is None:
            self._pool = self._stack.enter_context(WorkerPool())
        # The runner warns that it has no mode for this number of workers; the environment
        # determines that they are processes.
        options = PipelineOptions([f"--direct_num_workers={count}", *self._options])
        environment = ExternalEnvironment(self._pool.address, self._pool.params)
        runner = fn_runner.FnApiRunner(default_environment=environment)
        pipeline = beam.Pipeline(runner=runner, options=options)
        construct(pipeline)
        # In a thread: the runner does not notice the death of a worker.
        failure = run_monitored(pipeline, self._pool.raise_if_dead, "cloze-beam")
        if failure is not None:
            raise failure
