"""Stages: input keys, reporters, build contexts, and the definition of a stage.

A role with one input has the key `dataset`; each input of a role with several has a name and a key
such as `dataset/wiki`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any

from cloze.core import plugins, storage
from cloze.core.artifacts import artifact
from cloze.core.artifacts.fence import Fence
from cloze.core.config import StageConfig
from cloze.core.errors import UsageError
from cloze.core.figures import check_figures
from cloze.core.stages.cost import CostModel
from cloze.core.stages.execution import Execution

METRICS_LOG = "metrics.jsonl"  # in a training's artifact: one line per log entry
CHECKPOINT = "checkpoint"  # directory of what a stage trained; key of its path in the summary
BELOW = "/"
Figures = Mapping[str, Any]  # of a report, by name
_NAMED_REFERENCE = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]*)=(.+)", re.DOTALL)


def role_of(key: str) -> str:
    """Return `dataset` for `dataset/wiki`."""
    return key.partition(BELOW)[0]


def name_of(key: str) -> str:
    """Return `wiki` for `dataset/wiki`, and '' for `dataset`."""
    return key.partition(BELOW)[2]


def inputs_of_role(role: str, inputs: Mapping[str, str]) -> dict[str, str]:
    """Return the inputs of a role by name, sorted by name; a single input has the name ''."""
    return dict(
        sorted((name_of(key), path) for key, path in inputs.items() if role_of(key) == role)
    )


def split_name(text: str) -> tuple[str, str]:
    """Split `NAME=PATH` into (name, path); a path alone has the name ''."""
    match = _NAMED_REFERENCE.fullmatch(text)
    return (match[1], match[2]) if match else ("", text)


def assign_input_keys(
    role: str, texts: Sequence[str], default_name: Callable[[str], str]
) -> dict[str, str]:
    """Return the user's inputs, `PATH` or `NAME=PATH`, by input key; a single one needs no name.

    Raises UsageError: there are no texts, or two have the same name.
    """
    if not texts:
        raise UsageError(f"{role} is empty; give at least one node or path")
    paths: dict[str, str] = {}
    for text in texts:
        name, path = split_name(text)
        name = name or default_name(path)
        key = role if len(texts) == 1 else f"{role}{BELOW}{name}"
        if paths.get(key) == path:
            raise UsageError(f"{role} {name!r} is given twice; give it once")
        if key in paths:
            raise UsageError(
                f"{role} {name!r} is the name of two inputs, {paths[key]} and {path}; give them "
                f"different names as NAME=PATH"
            )
        paths[key] = path
    return paths


# Reports of a running stage: progress, metrics, checkpoints; and requests to stop.


class Reporter:
    """Receives the reports of a stage; this base class drops them.

    Called often, so it must be fast.
    """

    def build_started(self, build_id: str) -> None:
        """Report that the build starts in a claimed directory; not called if cached."""

    def progress(self, done: float, total: float | None, unit: str, figures: Figures) -> None:
        """Report the progress of the stage; `total` is None if unknown."""

    def queued(self, reason: str) -> None:
        """Report that the ranks wait for hosts or GPUs, until the next progress."""

    def metrics(self, values: Mapping[str, Any]) -> None:
        """Report a log entry: `step`, `time` (Unix seconds) and numbers by name."""

    def checkpoint(self, step: int, path: str) -> None:
        """Report a complete milestone checkpoint at the absolute `path`."""

    def predictions(self, values: Sequence[Mapping[str, Any]]) -> None:
        """Report predictions as JSON objects, in order; they must not be lost."""

    def processes(self, ids: Mapping[int, int]) -> None:
        """Report the stage's processes on this machine, by rank; empty: all have ended."""

    def shutdown_time(self, seconds: float) -> None:
        """Report the seconds that the stage needs to stop; repeated when the value changes."""

    def stop_requested(self) -> bool:
        """Return whether the stage must stop; asked about twice a second while processes run."""
        return False


log = logging.getLogger(__name__)

NULL_REPORTER = Reporter()


class SafeReporter(Reporter):
    """Forwards reports; a reporter's error is logged once per kind and never stops the stage.

    Predictions must not be lost, and `stop_requested` answers a question: their errors are raised.
    """

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._failed: set[str] = set()
        for kind in vars(Reporter):
            if not kind.startswith("_") and kind not in ("predictions", "stop_requested"):
                setattr(self, kind, functools.partial(self._report, kind))

    def predictions(self, values: Sequence[Mapping[str, Any]]) -> None:
        self._reporter.predictions(values)

    def stop_requested(self) -> bool:
        return self._reporter.stop_requested()

    def _report(self, kind: str, *values: Any) -> None:
        try:
            getattr(self._reporter, kind)(*values)
        except Exception as error:
            if kind not in self._failed:
                self._failed.add(kind)
                message = "reporting (%s) failed, the stage continues: %s: %s"
                log.warning(message, kind, type(error).__name__, error)


# The definition of a stage: `config + input artifacts -> output artifact`.

SCRATCH = "_scratch"


@dataclass(slots=True)
class BuildContext:
    """A stage's view of the artifact that it builds.

    Write files below `path` (relative names without a leading `_`). Write scratch files, which the
    next attempt may use, below `scratch`. Count what is dropped in `counters`, under names such as
    `dropped/too_short`. All attempts at one unfinished artifact have the same `build_id`.
    """

    path: str
    inputs: Mapping[str, str]  # by input key
    execution: Execution
    fingerprint: str
    build_id: str = ""
    token: str = ""  # of this attempt, or of the launch where processes may outlive it
    report: Reporter = NULL_REPORTER
    counters: Counter[str] = field(default_factory=Counter)
    # runs the build's pipelines (`cloze.pipeline.runners.base.open_backend`); None before the first
    runner: Any = None
    # closed when the stage ends
    cleanup: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def scratch(self) -> str:
        return storage.join(self.path, SCRATCH)

    @property
    def fence(self) -> Fence:
        """Return the check whether this attempt, or its launch (`LAUNCH.ATTEMPT`), may write."""
        return Fence(self.path, self.token)

    def file(self, *parts: str) -> str:
        return storage.join(self.path, *parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """The result of a stage's function, in addition to the files it wrote.

    `temporary` names files and directories below the artifact that only another attempt would need,
    such as the checkpoints of a fine-tuning. They are no part of the artifact, and are removed once
    its manifest is written. `written`: see `storage.hashing_written`.
    """

    rows: int = 0
    tokens: int = 0
    summary: dict[str, Any] = field(default_factory=dict)
    temporary: tuple[str, ...] = ()
    written: Mapping[str, Sequence[Any]] = field(default_factory=dict)


def deferred(reference: str) -> Callable[[Any, BuildContext], StageResult]:
    """Return a stage's function that imports `module:name` when it runs: torch takes seconds."""
    return lambda config, build: resolve_name(reference)(config, build)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """The input that a stage reads under a role: an artifact, or a directory or file instead."""

    # stages whose artifacts are accepted, and those that stand for them (`plugins.Row`). The
    # nearest such node before this one in the graph is the default input; empty: no default.
    kinds: tuple[str, ...] = ()
    # further accepted stages, only if the run's config names the node
    explicit_kinds: tuple[str, ...] = ()
    required: bool = False
    explicit_only: bool = False  # the input is used only if the run's config names it
    multiple: bool = False  # the role takes several inputs, which then have names
    # config fields whose values are taken from the node that provides this input, unless the run's
    # config sets them. Example: an evaluation reads its model's training data.
    inherited_fields: tuple[str, ...] = ()
    option: str = ""  # option of the stage's command. Default: `--ROLE`.
    help: str = ""  # help of that option, if the command has none for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The definition of a stage; `flows/graph/stages.py` has the table of all stages."""

    name: str
    # raised when the same input gives other output, or a default of the config changes; a golden
    # test checks both
    version: int
    config: type[StageConfig]
    run: Callable[[Any, BuildContext], StageResult]
    inputs: Mapping[str, InputSpec] = field(default_factory=dict)
    # the stage reads every node of the run that does not itself do so; the inputs have the names of
    # the nodes
    reads_all_nodes: bool = False
    # patterns of files that contain times, excluded from the content hash
    unhashed_files: tuple[str, ...] = ()
    # package whose module `worker` runs the stage in its own process; None: run in the caller's
    # process, or by the worker of `cloze.flows` where a launcher starts it
    worker: str | None = None
    parallel: bool = False  # the stage runs as several processes, one per rank
    # fields of `Execution` that a parallel stage does not read
    unread: frozenset[str] = frozenset()
    on_gpu: bool = False  # the stage computes on a GPU if there is one
    # keys of the summary whose values are paths relative to the artifact
    outputs: tuple[str, ...] = ()
    # returns a short line for the terminal from the summary
    headline: Callable[[Mapping[str, Any]], str] = lambda summary: ""
    cost_model: CostModel | None = None  # estimates duration, disk and memory; None: no estimate
    # keys of numbers in the summary, or nested in it, for comparing runs
    comparison_metrics: tuple[str, ...] = ()

    @property
    def worker_package(self) -> str:
        """Return the package whose worker can run the stage in its own process."""
        return self.worker or "cloze.flows"

    def compared_metrics(self, summary: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics by which runs of the stage are compared, from its summary."""
        metrics: dict[str, float] = {}
        for key in self.comparison_metrics:
            value = summary.get(key)
            values = value if isinstance(value, Mapping) else {key: value}
            metrics |= {
                metric: float(number)
                for metric, number in values.items()
                if isinstance(number, (int, float)) and not isinstance(number, bool)
            }
        return metrics

    def check_figures(self, summary: Mapping[str, Any]) -> None:
        """Check that the metrics are finite.

        Raises NotFiniteError: one is not. A training's last `loss` may be that of a skipped step.
        """
        metrics = self.compared_metrics(summary).items()
        check_figures(self.name, {name: value for name, value in metrics if name != "loss"})

    def fingerprint(self, config: StageConfig, parents: Mapping[str, str]) -> str:
        """Return the fingerprint; `parents`: fingerprints of the input artifacts by key."""
        return self.lineage(config, parents)[0]

    def lineage(
        self, config: StageConfig, parents: Mapping[str, str]
    ) -> tuple[str, dict[str, str]]:
        """Return the fingerprint, and those of all its input artifacts and named files."""
        inputs = {**parents, **config.external_fingerprints()}
        fields = config.fingerprint_fields() | plugins.row_versions(config.plugin_rows())
        return artifact.fingerprint(self.name, self.version, fields, inputs), inputs
