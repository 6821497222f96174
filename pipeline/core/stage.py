"""What a stage is, and how one is run: `config + input artifacts -> output artifact`.

A stage is a config model, a version and a function. `execute` does what all of them share: find out whether
anything is to do, lock the directory, run, count, hash, and write the manifest last. A stage killed at any
moment leaves a finished artifact or none; what it left in its scratch directory serves the next try.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.core import artifact, fingerprints, storage
from pipeline.core.artifact import Manifest
from pipeline.core.config import StageConfig
from pipeline.core.errors import DataError, UsageError
from pipeline.core.execution import Execution
from pipeline.core.lock import LOCK as LOCK
from pipeline.core.lock import locked
from pipeline.core.reporting import SILENT, GuardedReporter, Reporter

SCRATCH = "_scratch"
BUILDING = "_building.json"
JOIN_SECONDS = 600.0  # how long other machines wait for the first one to begin


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
    fingerprint, parents = stage.lineage(config, {name: fingerprints.input_fingerprint(path) for name, path in inputs.items()})
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
            report=GuardedReporter(report),
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
    parents = {name: fingerprints.input_fingerprint(path) for name, path in inputs.items()}
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
        report=GuardedReporter(report),
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
