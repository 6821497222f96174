"""Execution of a stage: cache check, lock, claim, run, hashes and manifest.

A stage killed at any moment leaves a finished artifact or none. The scratch directory serves the
next attempt, so it is removed only after the manifest is written. After a kill between the two, the
next start removes it.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloze.core import storage
from cloze.core.artifacts import artifact, claim, fingerprints
from cloze.core.artifacts.artifact import Manifest
from cloze.core.artifacts.lock import locked
from cloze.core.config import StageConfig
from cloze.core.errors import DataError, UsageError
from cloze.core.secrets import redact
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import (
    NULL_REPORTER,
    SCRATCH,
    BuildContext,
    Reporter,
    SafeReporter,
    Stage,
    StageResult,
    role_of,
)

JOIN_SECONDS = 600.0  # maximum wait of the other ranks for rank 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """The result of `execute`: path, cache state, duration and manifest of the artifact."""

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
    report: Reporter = NULL_REPORTER,
) -> BuildResult:
    """Build the artifact of `stage` at `out`, unless it is cached.

    Raises:
        UsageError: `out` holds something else, or another process is building there.
        DataError: an input is missing or damaged.
    """
    started = time.perf_counter()
    execution = execution or Execution()
    given = set(map(role_of, inputs))
    missing = [
        name for name, wanted in stage.inputs.items() if wanted.required and name not in given
    ]
    if missing:
        raise UsageError(f"stage {stage.name} needs the input {missing[0]!r}; name its artifact")
    config.check_inputs(inputs)
    with fingerprints.watching() as seen:
        fingerprint, parents = _lineage(stage, config, inputs)
    finished = None if force else _finished(out, fingerprint)
    if finished is None:
        _refuse_own_input(out, inputs)
        claim.check_not_foreign(out)
        with locked(out) as still_ours, storage.changing_after(still_ours):
            # by another process meanwhile
            finished = None if force else _finished(out, fingerprint)
            if finished is None:
                taken = claim.claim_directory(stage.name, out, fingerprint, force=force)
                build = BuildContext(
                    path=storage.absolute(out),
                    # workers may have another working directory
                    inputs={name: storage.absolute(path) for name, path in inputs.items()},
                    execution=execution,
                    fingerprint=fingerprint,
                    build_id=taken.build,
                    token=taken.token,
                    report=SafeReporter(report),
                )
                build.report.build_started(build.build_id)

                def check() -> None:
                    still_ours()
                    build.fence.check()

                with storage.changing_after(check):
                    with build.cleanup:
                        outcome = stage.run(config, build)
                    _refuse_changed(stage, config, inputs, out, fingerprint, seen)
                    claim.note_temporary(out, outcome.temporary)
                    manifest = _finish(stage, config, build, outcome, parents, started)
                    artifact.write_manifest(out, manifest)
                _clear_away(out)
                return BuildResult(
                    artifact=out, cached=False, seconds=manifest.seconds, manifest=manifest
                )
    if claim.read(out) is not None:
        with (
            contextlib.suppress(UsageError),
            locked(out) as still_ours,
            storage.changing_after(still_ours),
        ):
            _clear_away(out)  # refused while its builder does the same
    return BuildResult(
        artifact=out, cached=True, seconds=time.perf_counter() - started, manifest=finished
    )


def _lineage(
    stage: Stage, config: StageConfig, inputs: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    return stage.lineage(
        config, {name: fingerprints.input_fingerprint(path) for name, path in inputs.items()}
    )


def _refuse_changed(
    stage: Stage,
    config: StageConfig,
    inputs: Mapping[str, str],
    out: str,
    fingerprint: str,
    seen: Mapping[str, fingerprints.Seen],
) -> None:
    """Reject a result whose input files changed during the build, such as an unfinished download.

    Files with unchanged size and time are not read again.

    Raises:
        DataError: a file changed, was added or was removed; the next attempt starts from scratch.
    """
    with fingerprints.watching(seen) as now:
        try:
            is_same = _lineage(stage, config, inputs)[0] == fingerprint
        except DataError:  # a whole input was removed: it existed as long as it was needed
            return
    if not is_same:
        own = os.path.join(os.path.abspath(_real(out)), "")
        now_beside = {
            path: file for path, file in now.items() if not os.path.realpath(path).startswith(own)
        }
        what = fingerprints.difference(seen, now_beside)
        if what is None and len(now_beside) < len(now):  # `out` is inside the directory of an input
            return
        claim.spoil(out, stage.name)
        what = what or "an input changed while it was read"
        raise DataError(f"{what}; wait until the inputs are complete, and run again")


def _refuse_own_input(out: str, inputs: Mapping[str, str]) -> None:
    """Reject a build over its own input, such as --force on the training that a phase continues.

    Raises:
        UsageError: an input is `out`, or is inside `out`.
    """
    place = _real(out)
    name = next(
        (name for name, path in inputs.items() if f"{_real(path)}/".startswith(f"{place}/")), None
    )
    if name is not None:
        raise UsageError(
            f"{out} holds the input {name} ({inputs[name]}), which making it would remove; use "
            f"another directory"
        )


def _real(path: str) -> str:
    return (
        os.path.realpath(storage.filesystem(path)[1])
        if storage.is_local(path)
        else path.rstrip("/")
    )


def _finished(out: str, fingerprint: str) -> Manifest | None:
    """Return the manifest of the artifact at `out` if it has `fingerprint`, else None."""
    if not artifact.is_artifact(out):
        return None
    manifest = artifact.read_manifest(out)
    return manifest if manifest.fingerprint == fingerprint else None


def _finish(
    stage: Stage,
    config: StageConfig,
    build: BuildContext,
    outcome: StageResult,
    parents: dict[str, str],
    started: float,
) -> Manifest:
    """Return the manifest of the finished files; a kill here costs only the hashing."""
    return Manifest(
        stage=stage.name,
        version=stage.version,
        fingerprint=build.fingerprint,
        build=build.build_id,
        parents=parents,
        config=redact(config.model_dump(mode="json")),
        files=artifact.hash_files(
            build.path, artifact.data_files(build.path, outcome.temporary), stage.unhashed_files
        ),
        rows=outcome.rows,
        tokens=outcome.tokens,
        counters=dict(sorted(build.counters.items())),
        summary=outcome.summary,
        execution=build.execution.model_dump(mode="json"),
        seconds=round(time.perf_counter() - started, 3),
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        packages=artifact.package_versions(),
    )


def _clear_away(out: str) -> None:
    """Remove the build's own files from the finished artifact, the claim last."""
    begun = claim.read(out)
    for name in (SCRATCH, *(() if begun is None else begun.temporary)):
        storage.remove(storage.join(out, name))
    storage.remove_partial_files(out)
    claim.release(out)


def join_execution(
    stage: Stage, config: StageConfig, inputs: Mapping[str, str], out: str, *, execution: Execution
) -> None:
    """Run a stage that another process executes at the same shared `out`, as a helper.

    For torchrun's ranks above 0; the process of rank 0 writes the artifact.
    """
    parents = {name: fingerprints.input_fingerprint(path) for name, path in inputs.items()}
    fingerprint = stage.fingerprint(config, parents)
    deadline = time.monotonic() + JOIN_SECONDS
    while True:  # the owner claims it first
        if _finished(out, fingerprint) is not None:
            return
        begun = claim.read(out)
        if begun is not None and begun.fingerprint == fingerprint:
            break
        if time.monotonic() > deadline:
            raise UsageError(
                f"{out} is not being built with these settings by the process of rank 0; start all "
                f"ranks with the same options"
            )
        time.sleep(0.2)
    build = BuildContext(
        path=out,
        inputs=dict(inputs),
        execution=execution,
        fingerprint=fingerprint,
        build_id=begun.build,
        token=begun.token,
        report=NULL_REPORTER,
    )
    stage.run(config, build)
