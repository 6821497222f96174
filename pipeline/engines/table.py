"""The table of engines, and the one that a build asks for."""

from __future__ import annotations

from contextlib import AbstractContextManager

from pipeline.core import storage
from pipeline.core.errors import UsageError
from pipeline.core.registry import load
from pipeline.core.stage import Build
from pipeline.core.worker import LOGS, local_directory
from pipeline.engines.base import Engine

LOCAL = "local"
# The runner's name -> `module:CLASS`, called with the execution and the directory of logs. All other names are Beam's own.
ENGINES = {
    LOCAL: "pipeline.engines.local:LocalEngine",
    "flink": "pipeline.engines.flink:FlinkEngine",
    "flinkrunner": "pipeline.engines.flink:FlinkEngine",
}
ANY_OTHER = "pipeline.engines.beam_runner:BeamRunnerEngine"
_SHARED = "engine"  # its name among the things that a build shares between its pipelines


def open_engine(build: Build) -> Engine:
    """The engine of this build, the same for all of its pipelines; it ends with the build.

    Raises:
        UsageError: the runner is not known, or what it needs is missing.
    """
    if _SHARED not in build.shared:
        build.shared[_SHARED] = build.cleanup.enter_context(_make(build))
    engine: Engine = build.shared[_SHARED]
    return engine


def _make(build: Build) -> AbstractContextManager[Engine]:
    runner = build.execution.runner.lower()
    if runner != LOCAL and not storage.is_shared(build.path):
        raise UsageError(
            f"{build.path} cannot be seen by the workers of runner {build.execution.runner}; use a path that all of them see"
        )
    engine = load(ENGINES.get(runner, ANY_OTHER))
    made: AbstractContextManager[Engine] = engine(build.execution, local_directory(build.path) / LOGS)
    return made
