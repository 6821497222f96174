"""How a stage makes its artifact: what all stages share.

Find out whether anything is to do, take the directory's lock, claim the directory, run, count, hash, and write the manifest last. A stage
killed at any moment leaves a finished artifact or none; what it left in its scratch directory serves the next try.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.core import artifact, claim, fingerprints, storage
from pipeline.core.artifact import Manifest
from pipeline.core.config import StageConfig
from pipeline.core.errors import UsageError
from pipeline.core.execution import Execution
from pipeline.core.lock import locked
from pipeline.core.reporting import SILENT, GuardedReporter, Reporter
from pipeline.core.roles import role_of
from pipeline.core.stage import Build, Outcome, Stage

JOIN_SECONDS = 600.0  # how long other machines wait for the first one to begin


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
    given = set(map(role_of, inputs))
    missing = [name for name, wanted in stage.inputs.items() if wanted.required and name not in given]
    if missing:
        raise UsageError(f"stage {stage.name} needs the input {missing[0]!r}; name its artifact")
    config.check_inputs(inputs)
    fingerprint, parents = stage.lineage(config, {name: fingerprints.input_fingerprint(path) for name, path in inputs.items()})
    finished = None if force else _finished(out, fingerprint)
    if finished is None:
        _refuse_own_input(out, inputs)
        claim.refuse_foreign(out)
        with locked(out) as still_ours:
            finished = None if force else _finished(out, fingerprint)  # by another process, in between
            if finished is None:
                build = Build(
                    path=storage.absolute(out),
                    # workers stand elsewhere: no path may depend on where this process stands
                    inputs={name: storage.absolute(path) for name, path in inputs.items()},
                    execution=execution,
                    fingerprint=fingerprint,
                    build_id=claim.take(stage.name, out, fingerprint, force=force),
                    report=GuardedReporter(report),
                )
                build.report.begin(build.build_id)
                with build.cleanup:
                    outcome = stage.run(config, build)
                manifest = _finish(stage, config, build, outcome, parents, started)
                still_ours()
                artifact.write_manifest(out, manifest)
                claim.release(out)
                return Result(artifact=out, cached=False, seconds=manifest.seconds, manifest=manifest)
    return Result(artifact=out, cached=True, seconds=time.perf_counter() - started, manifest=finished)


def _refuse_own_input(out: str, inputs: Mapping[str, str]) -> None:
    """Refuse to build over what is read: a phase with --force over the training that it goes on from, say.

    Raises:
        UsageError: an input is `out`, or lies in it.
    """
    place = _real(out)
    name = next((name for name, path in inputs.items() if f"{_real(path)}/".startswith(f"{place}/")), None)
    if name is not None:
        raise UsageError(f"{out} holds the input {name} ({inputs[name]}), which making it would remove; use another directory")


def _real(path: str) -> str:
    return os.path.realpath(storage.filesystem(path)[1]) if storage.is_local(path) else path.rstrip("/")


def _finished(out: str, fingerprint: str) -> Manifest | None:
    """The manifest of the artifact at `out`, if it is the one that is wanted."""
    if not artifact.is_artifact(out):
        return None
    manifest = artifact.read_manifest(out)
    return manifest if manifest.fingerprint == fingerprint else None


def _finish(
    stage: Stage, config: StageConfig, build: Build, outcome: Outcome, parents: dict[str, str], started: float
) -> Manifest:
    """Clear away what is no part of the artifact, and hash the rest."""
    storage.remove(build.scratch)
    storage.remove_torn_files(build.path)
    return Manifest(
        stage=stage.name,
        version=stage.version,
        fingerprint=build.fingerprint,
        build=build.build_id,
        parents=parents,
        config=config.model_dump(mode="json"),
        files=artifact.hash_files(build.path, artifact.data_files(build.path), stage.volatile),
        rows=outcome.rows,
        tokens=outcome.tokens,
        counters=dict(sorted(build.counters.items())),
        summary=outcome.summary,
        execution=build.execution.model_dump(mode="json"),
        seconds=round(time.perf_counter() - started, 3),
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        packages=artifact.package_versions(),
    )


def join_execution(
    stage: Stage, config: StageConfig, inputs: Mapping[str, str], out: str, *, execution: Execution, report: Reporter = SILENT
) -> None:
    """Take part in a stage that another machine executes at the same `out` (a shared directory), without owning it.

    For the machines with `node_rank` above 0: they bring their ranks, the first machine writes the artifact.
    """
    parents = {name: fingerprints.input_fingerprint(path) for name, path in inputs.items()}
    fingerprint = stage.fingerprint(config, parents)
    deadline = time.monotonic() + JOIN_SECONDS
    while (begun := claim.read(out)) is None or begun.fingerprint != fingerprint:  # the owner claims it first
        if _finished(out, fingerprint) is not None:
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
        build_id=begun.build,
        report=GuardedReporter(report),
    )
    stage.run(config, build)
