"""What a stage is, and how one is run: `config + input artifacts -> output artifact`.

A stage is a config model, a version and a function. `execute` does what all of them share: find out whether
anything is to do, lock the directory, run, count, hash, and write the manifest last. A stage killed at any
moment leaves a finished artifact or none; what it left in its scratch directory serves the next try.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline import artifact, hashing, storage
from pipeline.artifact import Manifest
from pipeline.errors import DataError, UsageError, did_you_mean
from pipeline.lock import LOCK as LOCK
from pipeline.lock import locked

SCRATCH = "_scratch"
BUILDING = "_building.json"
JOIN_SECONDS = 600.0  # how long other machines wait for the first one to begin

log = logging.getLogger(__name__)

ConfigT = TypeVar("ConfigT", bound=BaseModel)


class StageConfig(BaseModel):
    """Base of every stage's config: unknown keys are refused, values never change after validation.

    A field that names a path is no part of the result: subclasses list such fields in `path_fields`, and the
    fingerprint takes the content behind them instead.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def path_fields(cls) -> tuple[str, ...]:
        return ()

    def identity(self) -> dict[str, Any]:
        """What of the config takes part in the fingerprint."""
        return self.model_dump(mode="json", exclude=set(self.path_fields()))

    def external_fingerprints(self) -> dict[str, str]:
        """The fingerprints of the inputs that the config names by path, by field."""
        named = ((name, getattr(self, name)) for name in self.path_fields())
        return {name: hashing.input_fingerprint(path) for name, path in named if path is not None}


class Execution(BaseModel):
    """How stages are run. None of it may change a result, so none of it takes part in a fingerprint."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workers: int = 1  # Beam worker processes
    runner: str = "local"  # local | flink | another Beam runner's name
    flink_master: str | None = None  # HOST:PORT of a Flink cluster; None: an embedded one
    worker_pool: str = "localhost:50000"  # where the cluster's task managers find a worker pool, as each of them sees it
    beam_options: tuple[str, ...] = ()  # passed to Beam as they are, such as --region=europe-west4
    processes: int = 1  # training processes on this machine
    nodes: int = 1  # machines that train together
    node_rank: int = 0
    master: str = "127.0.0.1:0"  # HOST:PORT of the first machine; port 0 lets the system choose on one machine
    zero: int = 1  # DeepSpeed ZeRO stage, 0 to 3
    micro_batch: int | None = None  # sequences a process takes at once; None: chosen from the global batch
    threads: int | None = None  # intra-op threads of a process; None: the cores divided by the processes
    device: str = "auto"  # auto | cpu | cuda
    checkpoint_every: int = 0  # steps between checkpoints; 0: only at the end
    keep_checkpoints: int = 2
    # Seconds to save a checkpoint in after SIGTERM, before SIGKILL. Kubernetes and Prefect allow 30 by default: give them more, too,
    # where a checkpoint is large (BERT-large with Adam's state: four gigabytes) or the disk slow.
    grace_seconds: float = Field(default=25.0, ge=0)
    compile: bool | None = None  # torch.compile the training step; None: where it pays


class Reporter:
    """Takes what a stage tells of itself while it is made; this one drops it. Called often, so it must be quick."""

    def begin(self, build_id: str) -> None:
        """The directory is ours and building starts; never called for an artifact that is there already."""

    def progress(self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]) -> None:
        """How far the stage has come; `total` is None where nobody knows."""

    def metrics(self, values: Mapping[str, Any]) -> None:
        """One logged line: `step`, `time` (Unix seconds, when the line was made), and numbers by name."""


SILENT = Reporter()


class _Guarded(Reporter):
    """Passes reports on. A fault in one is told once a kind and never reaches the stage, which is worth more than its records."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._told: set[str] = set()

    def begin(self, build_id: str) -> None:
        self._pass_on("begin", build_id)

    def progress(self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]) -> None:
        self._pass_on("progress", done, total, unit, figures)

    def metrics(self, values: Mapping[str, Any]) -> None:
        self._pass_on("metrics", values)

    def _pass_on(self, kind: str, *values: Any) -> None:
        try:
            getattr(self._reporter, kind)(*values)
        except Exception as error:
            if kind not in self._told:
                self._told.add(kind)
                log.warning("reporting (%s) failed, the stage goes on: %s: %s", kind, type(error).__name__, error)


@dataclass(slots=True)
class Build:
    """A stage's view of the artifact it is making.

    Write files below `path` (relative names without a leading `_`), scratch that a next try may use below
    `scratch`, and count what is dropped in `counters`, under names such as `dropped/too_short`. `build_id` names
    this artifact's making: every try at the same unfinished artifact has the same.
    """

    path: str
    inputs: Mapping[str, str]  # input's name -> path
    execution: Execution
    fingerprint: str
    build_id: str = ""
    report: Reporter = SILENT
    counters: Counter[str] = field(default_factory=Counter)
    shared: dict[str, Any] = field(default_factory=dict)  # what the build's steps hold in common, such as an engine
    cleanup: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)  # ends it; left when the stage ends

    @property
    def scratch(self) -> str:
        return storage.join(self.path, SCRATCH)

    def file(self, *parts: str) -> str:
        return storage.join(self.path, *parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a stage's function returns, beside the files it wrote."""

    rows: int = 0
    tokens: int = 0
    summary: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A row in the table of stages.

    Attributes:
        inputs: the names of the artifacts it reads; a name is that of the stage that makes it.
        version: raised when the same input gives other output; beside the function, checked by a golden test.
        volatile: patterns of files whose bytes hold times, left out of the content hash.
    """

    name: str
    version: int
    config: type[StageConfig]
    run: Callable[[Any, Build], Outcome]
    inputs: tuple[str, ...] = ()
    optional_inputs: tuple[str, ...] = ()
    volatile: tuple[str, ...] = ()

    def fingerprint(self, config: StageConfig, parents: Mapping[str, str]) -> str:
        """Args: parents: the fingerprints of the input artifacts by name."""
        return self.lineage(config, parents)[0]

    def lineage(self, config: StageConfig, parents: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        """The fingerprint, and the fingerprints of everything it follows from: input artifacts and files that the config names."""
        everything = {**parents, **config.external_fingerprints()}
        return artifact.fingerprint(self.name, self.version, config.identity(), everything), everything


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What `execute` returns: where the artifact is, whether it was there before, and its manifest."""

    artifact: str
    cached: bool
    seconds: float
    manifest: Manifest

    def as_json(self) -> dict[str, Any]:
        return {
            "stage": self.manifest.stage,
            "artifact": self.artifact,
            "fingerprint": self.manifest.fingerprint,
            "cached": self.cached,
            "seconds": round(self.seconds, 3),
            **self.manifest.summary,
        }


def parse_config(model: type[ConfigT], values: Mapping[str, Any], where: str) -> ConfigT:
    """Validate `values` as `model`; the first fault becomes one sentence with the field, the value and the remedy.

    Args:
        where: the section that the values come from, for the message.

    Raises:
        UsageError: an unknown key (with the nearest known one), a wrong type, or a value out of range.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in (where, *fault["loc"]) if part != "")
        if fault["type"] == "extra_forbidden":
            known = _fields_at(model, fault["loc"][:-1])
            hint = did_you_mean(str(fault["loc"][-1]), known) if known else "remove it"
            raise UsageError(f"unknown config key {place}; {hint}") from error
        message = str(fault["msg"]).removeprefix("Value error, ")
        found = "" if fault["type"] == "missing" else f" (found {fault['input']!r})"
        raise UsageError(f"{place}{found}: {message}") from error


def _fields_at(model: type[BaseModel], location: tuple[int | str, ...]) -> set[str]:
    """The known keys of the model, or of the nested model, that `location` leads to."""
    for part in location:
        annotation = model.model_fields[part].annotation if isinstance(part, str) and part in model.model_fields else None
        nested = [t for t in (annotation, *getattr(annotation, "__args__", ())) if isinstance(t, type)]
        models = [t for t in nested if issubclass(t, BaseModel)]
        if not models and not isinstance(part, int):
            return set()
        model = models[0] if models else model
    return set(model.model_fields)


def execute(
    stage: Stage,
    config: StageConfig,
    inputs: Mapping[str, str],
    out: str,
    *,
    execution: Execution | None = None,
    force: bool = False,
    report: Reporter = SILENT,
) -> Result:
    """Make the artifact of `stage` at `out`, unless it is there already.

    Raises:
        UsageError: `out` holds something else, or another process is building there.
        DataError: an input is missing or damaged.
    """
    started = time.perf_counter()
    execution = execution or Execution()
    missing = [name for name in stage.inputs if name not in inputs]
    if missing:
        raise UsageError(f"stage {stage.name} needs the input {missing[0]!r}; name its artifact")
    fingerprint, parents = stage.lineage(config, {name: hashing.input_fingerprint(path) for name, path in inputs.items()})
    if artifact.is_artifact(out) and not force:
        manifest = artifact.read_manifest(out)
        if manifest.fingerprint == fingerprint:
            return Result(artifact=out, cached=True, seconds=time.perf_counter() - started, manifest=manifest)
    build_id = _claim(stage, out, fingerprint, force)
    with locked(out) as still_ours:
        # workers stand elsewhere: no path may depend on where this process stands
        places = {name: storage.absolute(path) for name, path in inputs.items()}
        build = Build(
            path=storage.absolute(out),
            inputs=places,
            execution=execution,
            fingerprint=fingerprint,
            build_id=build_id,
            report=_Guarded(report),
        )
        build.report.begin(build_id)
        with build.cleanup:
            outcome = stage.run(config, build)
        storage.remove(build.scratch)
        _remove_torn_files(out)
        manifest = artifact.Manifest(
            stage=stage.name,
            version=stage.version,
            fingerprint=fingerprint,
            build=build_id,
            parents=parents,
            config=config.model_dump(mode="json"),
            files=artifact.hash_files(out, artifact.data_files(out), stage.volatile),
            rows=outcome.rows,
            tokens=outcome.tokens,
            counters=dict(sorted(build.counters.items())),
            summary=outcome.summary,
            execution=execution.model_dump(mode="json"),
            seconds=round(time.perf_counter() - started, 3),
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            packages=artifact.package_versions(),
        )
        still_ours()
        artifact.write_manifest(out, manifest)
        storage.remove(storage.join(out, BUILDING))
    return Result(artifact=out, cached=False, seconds=manifest.seconds, manifest=manifest)


def join_execution(
    stage: Stage, config: StageConfig, inputs: Mapping[str, str], out: str, *, execution: Execution, report: Reporter = SILENT
) -> None:
    """Take part in a stage that another machine executes at the same `out` (a shared directory), without owning it.

    For the machines with `node_rank` above 0: they bring their ranks, the first machine writes the artifact.
    """
    parents = {name: hashing.input_fingerprint(path) for name, path in inputs.items()}
    fingerprint = stage.fingerprint(config, parents)
    deadline = time.monotonic() + JOIN_SECONDS
    while (begun := _read_building(storage.join(out, BUILDING)) or {}).get("fingerprint") != fingerprint:  # the owner claims it
        if artifact.is_artifact(out) and artifact.read_manifest(out).fingerprint == fingerprint:
            return
        if time.monotonic() > deadline:
            raise UsageError(
                f"{out} is not being built with these settings by the first machine; start it there with the same options"
            )
        time.sleep(0.2)
    build = Build(
        path=out,
        inputs=dict(inputs),
        execution=execution,
        fingerprint=fingerprint,
        build_id=begun.get("build", ""),
        report=_Guarded(report),
    )
    stage.run(config, build)


def _remove_torn_files(out: str) -> None:
    """Remove what writers that were killed have left under temporary names."""
    for name in storage.list_files(out):
        if name.rsplit("/", 1)[-1].startswith(storage.TEMPORARY):
            storage.remove(storage.join(out, name))


def _claim(stage: Stage, out: str, fingerprint: str, force: bool) -> str:
    """Make `out` ours to build in, keeping the scratch and the build id of an interrupted build of the same artifact.

    Returns:
        The build id.
    """
    building = storage.join(out, BUILDING)
    if storage.exists(out) and not storage.is_dir(out):
        raise UsageError(f"{out} is a file; name a directory that does not exist yet")
    begun = _read_building(building)
    if artifact.is_artifact(out):
        found = artifact.read_manifest(out)
        if found.stage != stage.name:
            raise UsageError(f"{out} holds a {found.stage} artifact, not a {stage.name} one; use another directory")
        if not force:
            raise UsageError(
                f"{out} holds a {stage.name} artifact made from other settings or inputs (fingerprint"
                f" {found.fingerprint[:12]}, wanted {fingerprint[:12]}); use another directory, or --force to replace it"
            )
        storage.remove(storage.join(out, artifact.MANIFEST))
        begun = {"stage": stage.name}
    elif begun is None and storage.exists(out) and storage.list_files(out):
        first = storage.list_files(out)[0]
        raise UsageError(f"{out} holds something else ({first}); use an empty or new directory")
    if begun is not None and begun.get("fingerprint") != fingerprint:
        if begun.get("stage") != stage.name:
            raise UsageError(f"{out} holds an unfinished {begun.get('stage')} artifact; use another directory")
        if storage.exists(storage.join(out, "checkpoints")) and not force:
            raise UsageError(
                f"{out} holds checkpoints of a run with other settings; use another directory, or --force to drop them"
            )
        with locked(out):
            for name in {name.split("/", 1)[0] for name in storage.list_files(out)} - {LOCK}:  # no empty directory stays
                storage.remove(storage.join(out, name))
    storage.make_dirs(out)
    build_id = _build_id(begun, fingerprint)
    mark = {"stage": stage.name, "fingerprint": fingerprint, "build": build_id}
    storage.write_bytes(building, artifact.canonical_json(mark).encode())
    return build_id


def _build_id(begun: Mapping[str, Any] | None, fingerprint: str) -> str:
    """That of the interrupted build which goes on, else a new one."""
    if begun is not None and begun.get("fingerprint") == fingerprint and begun.get("build"):
        return str(begun["build"])
    return uuid.uuid4().hex


def _read_building(path: str) -> dict[str, Any] | None:
    if not storage.exists(path):
        return None
    try:
        content = json.loads(storage.read_text(path))
    except ValueError as error:
        raise DataError(f"{path} is damaged; remove its directory") from error
    return content if isinstance(content, dict) else {}
