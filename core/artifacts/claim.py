"""Claims on build directories: `_building.json` names the future artifact of a directory.

A claim is written when a build begins and removed after the manifest is written. A non-empty
directory with neither is foreign. A directory with a claim but no manifest has an unfinished
build: the same artifact, from inputs of the same content, continues it; another artifact starts
from scratch.
"""

from __future__ import annotations

import uuid
from dataclasses import asdict, replace

from cloze.core import storage
from cloze.core.artifacts import artifact
from cloze.core.artifacts.artifact import BUILDING as BUILDING
from cloze.core.artifacts.artifact import Claim as Claim
from cloze.core.artifacts.checkpoints import STEPS
from cloze.core.artifacts.lock import LOCK
from cloze.core.errors import UsageError
from cloze.core.humanize import an

read = artifact.read_claim


def is_unfinished(out: str) -> bool:
    """Return whether `out` contains an unfinished build."""
    return storage.has_file(storage.join(out, BUILDING)) and not artifact.is_artifact(out)


def check_not_foreign(out: str) -> None:
    """Reject a foreign directory before anything, a lock included, is written to it.

    Other builders may be active there, so only files that none of them can have left count: a
    builder's directory always has the lock, the claim or the manifest.

    Raises UsageError: `out` is a file, or contains something else.
    """
    files = storage.list_files(out, follow=False)
    if files == [""]:
        raise UsageError(f"{out} is a file; name a directory that does not exist yet")
    foreign = _foreign(files)
    builders = {LOCK, BUILDING, artifact.MANIFEST}
    if foreign and builders.isdisjoint(name.split("/", 1)[0] for name in files):
        raise _foreign_content(out, foreign)


def check_version(claim: Claim | None, out: str, version: str) -> None:
    """Refuse to continue a build that another version of its stage began.

    Raises UsageError: the claim names another version, or none, as those before 0.1.0.
    """
    if claim is not None and claim.fingerprint and claim.version != version:
        raise UsageError(
            f"{out} was begun by another version of Cloze (version {claim.version or 'unknown'} of "
            f"the stage {claim.stage}, this one has {version}); finish it with that version, use "
            f"another directory, or --force to start again in this one"
        )


def _check(
    out: str, wanted: Claim, manifest: artifact.Manifest | None, *, force: bool
) -> Claim | None:
    """Check that `wanted` may be built in `out`, which this process has locked; change nothing.

    `manifest`: that of `out`, read under the lock.

    Returns:
        The claim of the unfinished build; a claim without a fingerprint means a finished
        artifact.

    Raises UsageError: the content is foreign, or may be replaced only with `force`.
    """
    claim, stage = read(out), wanted.stage
    if manifest is not None:
        # Even with `force`: a wrong directory must not cost another stage's work.
        if manifest.stage != stage:
            raise UsageError(
                f"{out} contains {an(manifest.stage)} artifact, not {an(stage)} one; use another "
                f"directory"
            )
        if not force:
            raise UsageError(
                f"{out} contains {an(stage)} artifact made from other settings or inputs "
                f"(fingerprint {manifest.fingerprint[:12]}, expected {wanted.fingerprint[:12]}); "
                f"use another directory, or --force to replace it"
            )
        return Claim(stage)
    if claim is None:
        foreign = _foreign(storage.list_files(out, follow=False))
        if foreign:
            raise _foreign_content(out, foreign)
    elif not _is_begun(claim, wanted):
        if claim.stage != stage:
            raise UsageError(
                f"{out} contains an unfinished {claim.stage} artifact; use another directory"
            )
        if claim.fingerprint and storage.exists(storage.join(out, STEPS)) and not force:
            check_version(claim, out, wanted.version)
            changed = artifact.changed_inputs(claim.inputs, wanted.inputs)
            other = f"other content of {' and '.join(changed)}" if changed else "other settings"
            raise UsageError(
                f"{out} contains checkpoints of a run with {other}; use another directory, or "
                f"--force to remove them"
            )
    return claim


def _is_begun(claim: Claim, wanted: Claim) -> bool:
    """Return whether a claim is that of the wanted artifact, from inputs of the same content."""
    return claim.fingerprint == wanted.fingerprint and not artifact.changed_inputs(
        claim.inputs, wanted.inputs
    )


def claim_directory(
    out: str, wanted: Claim, manifest: artifact.Manifest | None = None, *, force: bool
) -> Claim:
    """Claim `out`, which this process has locked, for a build.

    An interrupted build of the same artifact continues; everything else in `out` is removed.

    Args:
        wanted: stage, fingerprint, version, and the content hashes of the finished inputs.
        manifest: manifest of `out`, read under the lock; None: there is none.

    Returns: The claim, with a new token and the build id of the continued build, or else a new id.

    Raises UsageError: the content is foreign, or may be replaced only with `force`.
    """
    previous = _check(out, wanted, manifest, force=force)
    build = uuid.uuid4().hex
    if previous is not None and _is_begun(previous, wanted):
        build = previous.build or build
    elif previous is not None:
        _write(out, Claim(wanted.stage))  # after a kill, what remains is known to be removable
        # The manifest first: without it nobody takes what is half removed for finished.
        storage.remove_file(storage.join(out, artifact.MANIFEST))
        # top-level names, so that no empty directory stays
        names = {name.split("/", 1)[0] for name in storage.list_files(out, follow=False)}
        for name in names - {LOCK, BUILDING}:
            storage.remove(storage.join(out, name))
    storage.make_dirs(out)
    # The build id stays over attempts, as their work counts; the token is new each time.
    claim = replace(wanted, build=build, token=uuid.uuid4().hex)
    _write(out, claim)
    return claim


def note_temporary(out: str, claim: Claim, names: tuple[str, ...]) -> None:
    """Record the names to remove after the manifest; call it before the manifest is written."""
    if claim.temporary != names:
        _write(out, replace(claim, temporary=names))


def invalidate(out: str, stage: str) -> None:
    """Make the next attempt start from scratch: the inputs changed during this build."""
    _write(out, Claim(stage))


def release(out: str) -> None:
    """Remove the claim of a finished artifact."""
    storage.remove_file(storage.join(out, BUILDING))


def _write(out: str, claim: Claim) -> None:
    content = artifact.canonical_json(asdict(claim))
    storage.write_bytes(storage.join(out, BUILDING), content.encode())


def _foreign(files: list[str]) -> list[str]:
    """Return the files of a directory, except those that a builder writes before its claim."""
    return [
        name
        for name in files
        if name.split("/", 1)[0] != LOCK and not name.startswith(storage.TEMPORARY)
    ]


def _foreign_content(out: str, foreign: list[str]) -> UsageError:
    return UsageError(f"{out} contains other files ({foreign[0]}); use an empty or new directory")
