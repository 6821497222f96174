"""Any other runner of Beam's, by name, with Beam's own options: Spark, Dataflow, … (docs/engines.md has their lines)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.core.errors import UsageError
from pipeline.core.execution import Execution
from pipeline.engines.base import Engine

# Beam takes any module path as a runner's name, and would import it; these are the names that it documents.
RUNNERS = ("DirectRunner", "FnApiRunner", "PrismRunner", "PortableRunner", "SparkRunner", "DataflowRunner", "DaskRunner")
TEMPLATE = "--template_location"


class BeamRunnerEngine:
    """See `Engine`."""

    workers = 1
    retries = 0

    def __init__(self, execution: Execution, logs: Path) -> None:
        del logs  # the runner has its own
        known = {name.lower(): name for name in RUNNERS}
        known |= {name.lower().removesuffix("runner"): name for name in RUNNERS}
        name = known.get(execution.runner.lower())
        if name is None:
            raise UsageError(f"runner ({execution.runner}) is not known; use local, flink, or one of {', '.join(RUNNERS)}")
        asked = [flag.split("=")[0] for flag in execution.beam_options]
        if TEMPLATE in asked:
            raise UsageError(
                f"beam_options ({TEMPLATE}) makes a template of one pipeline; a stage is several, each planned by what the one before"
                " has found; leave it out"
            )
        self._flags = [f"--runner={name}", *execution.beam_options]
        if not {"--save_main_session", "--no_save_main_session"} & set(asked):
            self._flags.append("--no_save_main_session")  # Dataflow would send it, and what workers run is imported by name

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def run(self, construct: Callable[[Any], None], units: int, name: str) -> None:
        own_name = any(flag.startswith("--job_name") for flag in self._flags)
        flags = self._flags if own_name else [*self._flags, f"--job_name=cloze-{name}"]
        try:
            pipeline = beam.Pipeline(options=PipelineOptions(flags))
        except (ValueError, ImportError) as error:  # the runner's own validation
            raise UsageError(f"beam_options: {' '.join(str(error).split())}") from error
        with pipeline:
            construct(pipeline)
