"""Execution of a stage: cache check, lock, claim, run, hashes and manifest.

A stage killed at any moment leaves a finished artifact or none. The scratch directory serves the
next attempt, so it is removed only after the manifest is written. After a kill between the two, the
next start removes it.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import posixpath
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloze.core import plugins, storage
from cloze.core.artifacts import artifact, claim, fingerprints, lineage
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
        UsageError: `out` contains something else, or another process is building there.
        DataError: an input is missing or damaged.
        NotFiniteError: a figure of the result is not finite; the artifact stays unfinished.
    """
    started = time.perf_counter()
    for role, spec in stage.inputs.items():
        if spec.required and role not in map(role_of, inputs):
            raise UsageError(f"stage {stage.name} needs the input {role!r}; give its artifact")
    config.check_inputs(inputs)
    # Sizes and times of all source files are noted as they are hashed, for the check at the end.
    with fingerprints.watching() as seen:
        fingerprint, parents = _lineage(stage, config, inputs)
    finished = None if force else _of(artifact.find_manifest(out), fingerprint)
    if finished is None:
        _check_not_own_input(out, inputs)
        # Before the lock, which would itself be a file in somebody else's directory.
        claim.check_not_foreign(out)
        with locked(out) as check_lock, storage.changing_after(out, check_lock):
            # another process may have finished it meanwhile
            present = artifact.find_manifest(out)
            finished = None if force else _of(present, fingerprint)
            if finished is None:
                # Under the lock, before the claim: the claim says which bytes this build reads.
                contents = lineage.input_contents(inputs)
                claimed = claim.claim_directory(
                    out,
                    claim.Claim(
                        stage.name, fingerprint, version=str(stage.version), inputs=contents
                    ),
                    present,
                    force=force,
                )
                build = BuildContext(
                    path=storage.absolute(out),
                    # workers may have another working directory
                    inputs={name: storage.absolute(path) for name, path in inputs.items()},
                    execution=execution or Execution(),
                    fingerprint=fingerprint,
                    build_id=claimed.build,
                    token=claimed.token,
                    report=SafeReporter(report),
                )
                build.report.build_started(build.build_id)

                # whoever takes the lock over first writes a claim with another token
                with storage.changing_after(build.path, build.fence.check):
                    # Figures and inputs are checked before the manifest, which makes it finished.
                    with build.cleanup:
                        result = stage.run(config, build)
                    stage.check_figures(result.summary)
                    _check_inputs_unchanged(stage, config, inputs, out, fingerprint, seen)
                    # Before the manifest: after a kill the next start reads the names in the claim.
                    claim.note_temporary(out, claimed, result.temporary)
                    manifest = _manifest(stage, config, build, result, parents, contents, started)
                    artifact.write_manifest(out, manifest)
                # A kill here leaves a finished artifact; the next start removes these files.
                _remove_temporary(out, result.temporary)
                return BuildResult(
                    artifact=out, cached=False, seconds=manifest.seconds, manifest=manifest
                )
    _remove_leftovers(out)
    stage.check_figures(finished.summary)  # a version before this check may have built it
    return BuildResult(
        artifact=out, cached=True, seconds=time.perf_counter() - started, manifest=finished
    )


def _lineage(
    stage: Stage, config: StageConfig, inputs: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    return stage.lineage(
        config, {name: fingerprints.input_fingerprint(path) for name, path in inputs.items()}
    )


def _check_inputs_unchanged(
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
        own_prefix = os.path.join(os.path.abspath(_real_path(out)), "")
        external = {
            path: file
            for path, file in now.items()
            if not os.path.realpath(path).startswith(own_prefix)
        }
        change = fingerprints.difference(seen, external)
        if change is None and len(external) < len(now):  # `out` is inside the directory of an input
            return
        claim.invalidate(out, stage.name)
        change = change or "an input changed while it was read"
        raise DataError(f"{change}; wait until the inputs are complete, and run again")


def _check_not_own_input(out: str, inputs: Mapping[str, str]) -> None:
    """Reject a build over its own input, such as --force on the training that a phase continues.

    Raises UsageError: an input is `out`, or is inside `out`.
    """
    directory = _real_path(out)
    for name, path in inputs.items():
        if f"{_real_path(path)}/".startswith(f"{directory.rstrip('/')}/"):
            raise UsageError(
                f"{out} contains the input {name} ({path}), which the build would remove; use "
                f"another directory"
            )


def _real_path(path: str) -> str:
    if storage.is_local(path):
        return os.path.realpath(storage.filesystem(path)[1])
    return path.rstrip("/")


def _of(manifest: Manifest | None, fingerprint: str) -> Manifest | None:
    """Return the manifest if it has `fingerprint`, else None."""
    return manifest if manifest is not None and manifest.fingerprint == fingerprint else None


def _manifest(
    stage: Stage,
    config: StageConfig,
    build: BuildContext,
    result: StageResult,
    parents: dict[str, str],
    contents: dict[str, str],
    started: float,
) -> Manifest:
    """Return the manifest of the finished files; a kill here costs only the hashing."""
    return Manifest(
        stage=stage.name,
        version=stage.version,
        fingerprint=build.fingerprint,
        build=build.build_id,
        parents=parents,
        inputs=contents,
        config=redact(config.model_dump(mode="json")),
        files=artifact.hash_files(
            build.path,
            artifact.data_files(build.path, result.temporary),
            stage.unhashed_files,
            known=result.written,
        ),
        rows=result.rows,
        tokens=result.tokens,
        counters=dict(sorted(build.counters.items())),
        summary=result.summary,
        execution=redact(build.execution.model_dump(mode="json")),
        seconds=round(time.perf_counter() - started, 3),
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        packages=artifact.package_versions(),
        plugins=plugins.described(
            {**config.plugin_rows(), **plugins.owner_of(plugins.STAGE_TABLES, stage.name)},
            lineage.input_plugins(build.inputs),
        ),
    )


def _remove_temporary(out: str, names: tuple[str, ...]) -> None:
    """Remove the build's own files from the finished artifact, the claim last."""
    for name in (SCRATCH, *names):
        storage.remove(storage.join(out, name))
    left = storage.list_files(out, follow=False) if storage.is_local(out) else ()
    for name in left:  # of killed writers
        if posixpath.basename(name).startswith(storage.TEMPORARY):
            storage.remove(storage.join(out, name))
    claim.release(out)


def _remove_leftovers(out: str) -> None:
    """Remove what a kill after the manifest left, unless the builder is doing so now."""
    claimed = claim.read(out)
    if claimed is not None:
        with (
            contextlib.suppress(UsageError),  # the builder has the lock
            locked(out) as check_lock,
            storage.changing_after(out, check_lock),
        ):
            _remove_temporary(out, claimed.temporary)


def join_execution(
    stage: Stage, config: StageConfig, inputs: Mapping[str, str], out: str, *, execution: Execution
) -> None:
    """Run a stage that another process executes at the same shared `out`, as a helper.

    For torchrun's ranks above 0; the process of rank 0 writes the artifact.
    """
    fingerprint, _ = _lineage(stage, config, inputs)
    deadline = time.monotonic() + JOIN_SECONDS
    while True:  # the owner claims it first
        if _of(artifact.find_manifest(out), fingerprint) is not None:
            return
        claimed = claim.read(out)
        if claimed is not None and claimed.fingerprint == fingerprint:
            break
        if time.monotonic() > deadline:
            raise UsageError(
                f"rank 0 is not building {out} with these settings; start all ranks with the same "
                f"options"
            )
        time.sleep(0.2)
    build = BuildContext(
        path=out,
        inputs=dict(inputs),
        execution=execution,
        fingerprint=fingerprint,
        build_id=claimed.build,
        token=claimed.token,
        report=NULL_REPORTER,
    )
    stage.run(config, build)
