"""Whose a directory is that is being built: the file `_building.json`, which says which artifact it will hold.

It is written when a build begins and removed after the manifest is written. So a directory with neither belongs to somebody else, and one
that has it but no manifest holds an unfinished build: the same artifact goes on with what is there, another one begins with nothing.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass

from pipeline.core import artifact, storage
from pipeline.core.checkpoints import STEPS
from pipeline.core.errors import DataError, UsageError
from pipeline.core.lock import LOCK

BUILDING = "_building.json"


@dataclass(frozen=True, slots=True)
class Claim:
    """What `_building.json` holds: the stage, the artifact's fingerprint, and the id of its making, the same in all tries."""

    stage: str = ""
    fingerprint: str = ""  # empty while what was there is removed
    build: str = ""


def read(out: str) -> Claim | None:
    """The claim on `out`, if there is one."""
    path = storage.join(out, BUILDING)
    if not storage.exists(path):
        return None
    try:
        content = json.loads(storage.read_text(path))
    except ValueError as error:
        raise DataError(f"{path} is damaged; remove its directory") from error
    known = content if isinstance(content, dict) else {}
    return Claim(*(str(known.get(name) or "") for name in ("stage", "fingerprint", "build")))


def is_unfinished(out: str) -> bool:
    """Whether `out` holds a build that has not come to its end."""
    return storage.exists(storage.join(out, BUILDING)) and not artifact.is_artifact(out)


def refuse_foreign(out: str) -> None:
    """Refuse a directory that is somebody else's before anything, a lock included, is written to it.

    Others may build there meanwhile, so only what none of them can have left is a reason: a builder's directory holds the lock, the
    claim or the manifest at any moment.

    Raises:
        UsageError: `out` is a file, or holds something else.
    """
    if storage.exists(out) and not storage.is_dir(out):
        raise UsageError(f"{out} is a file; name a directory that does not exist yet")
    foreign = _foreign(out)
    if foreign and not any(storage.exists(storage.join(out, name)) for name in (LOCK, BUILDING, artifact.MANIFEST)):
        raise _holds_something_else(out, foreign)


def _check(stage: str, out: str, fingerprint: str, *, force: bool) -> Claim | None:
    """Whether `stage` may build in `out`, which this process has locked; changes nothing.

    Returns:
        The claim of the build that was begun there; one without a fingerprint stands for a finished artifact.

    Raises:
        UsageError: what is there is not ours to touch, or not without `force`.
    """
    begun = read(out)
    if artifact.is_artifact(out):
        found = artifact.read_manifest(out)
        if found.stage != stage:
            raise UsageError(f"{out} holds a {found.stage} artifact, not a {stage} one; use another directory")
        if not force:
            raise UsageError(
                f"{out} holds a {stage} artifact made from other settings or inputs (fingerprint"
                f" {found.fingerprint[:12]}, wanted {fingerprint[:12]}); use another directory, or --force to replace it"
            )
        return Claim(stage)
    if begun is None:
        foreign = _foreign(out)
        if foreign:
            raise _holds_something_else(out, foreign)
    elif begun.fingerprint != fingerprint:
        if begun.stage != stage:
            raise UsageError(f"{out} holds an unfinished {begun.stage} artifact; use another directory")
        if begun.fingerprint and storage.exists(storage.join(out, STEPS)) and not force:
            raise UsageError(
                f"{out} holds checkpoints of a run with other settings; use another directory, or --force to drop them"
            )
    return begun


def take(stage: str, out: str, fingerprint: str, *, force: bool) -> str:
    """Make `out`, which this process has locked, ours to build in.

    An interrupted build of the same artifact goes on; all else that may be there is removed.

    Returns:
        The build id: that of the build which goes on, else a new one.

    Raises:
        UsageError: what is there is not ours to touch, or not without `force`.
    """
    begun = _check(stage, out, fingerprint, force=force)
    if begun is not None and begun.fingerprint != fingerprint:
        _write(out, Claim(stage))  # whoever finds what a kill leaves of the rest knows that it is ours to remove
        storage.remove(storage.join(out, artifact.MANIFEST))
        for name in {name.split("/", 1)[0] for name in storage.list_files(out)} - {LOCK, BUILDING}:  # no empty directory stays
            storage.remove(storage.join(out, name))
    same = begun is not None and begun.fingerprint == fingerprint
    build = (begun.build if begun is not None and same else "") or uuid.uuid4().hex
    storage.make_dirs(out)
    _write(out, Claim(stage, fingerprint, build))
    return build


def release(out: str) -> None:
    """The artifact is finished."""
    storage.remove(storage.join(out, BUILDING))


def _write(out: str, claim: Claim) -> None:
    storage.write_bytes(storage.join(out, BUILDING), artifact.canonical_json(asdict(claim)).encode())


def _foreign(out: str) -> list[str]:
    """The files in `out` but for what a builder leaves there before it has claimed the directory."""
    files = storage.list_files(out) if storage.exists(out) else []
    return [name for name in files if name != LOCK and not name.startswith(storage.TEMPORARY)]


def _holds_something_else(out: str, foreign: list[str]) -> UsageError:
    return UsageError(f"{out} holds something else ({foreign[0]}); use an empty or new directory")
