"""Checkpoint directories: their names, readers' pins, pruning and quarantine.

The content of checkpoints is not used here. Who may change them: `fence.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from cloze.core import storage
from cloze.core.artifacts.lock import Lease, flock_or_say, has_name, is_dead
from cloze.core.artifacts.lock import read as read_lease
from cloze.core.errors import DataError

STEPS = "checkpoints"  # below a training's artifact: one step-XXXXXXXX per checkpoint
COMPLETE = "checkpoint.json"  # in each checkpoint, written last
REMOVED = "_removed-"  # prefix of a checkpoint that is being removed, no part of the artifact
DAMAGED = "_damaged-"  # prefix of a damaged checkpoint, kept until the training ends
READER_LEASE = "_held-"  # prefix of a reader's lease in an object store
REMOVAL_SECONDS = 600.0  # a reader waits for a removal, which may take long on a network disk
RENEW_SECONDS, READER_LEASE_SECONDS = 30.0, 180.0  # renewal and expiry of a reader's lease
_PREFIX = "step-"


def step_name(step: int) -> str:
    """Return `step-00000200`; names sort in the order of their steps."""
    return f"{_PREFIX}{step:08d}"


def parse_step(directory: str) -> int:
    """Return the step in a checkpoint directory's name; -1 if there is none."""
    name = directory.rstrip("/").rsplit("/", 1)[-1]
    digits = name.removeprefix(_PREFIX)
    return int(digits) if name.startswith(_PREFIX) and digits.isdecimal() else -1


def is_checkpoint(path: str) -> bool:
    """Return whether `path` is a complete checkpoint directory; its bytes are not read."""
    return storage.has_file(storage.join(path, COMPLETE))


def complete_steps(path: str) -> list[str]:
    """Return the complete checkpoint directories of the training at `path`, oldest first."""
    steps = storage.join(path, STEPS)
    return [
        storage.join(steps, name)
        for name, is_complete in _entries(steps).items()
        if is_complete and parse_step(name) >= 0
    ]


def _entries(steps: str) -> dict[str, bool]:
    """Return the sorted names in the directory of checkpoints, and whether each is complete."""
    if storage.is_local(steps):
        return {
            name: is_checkpoint(storage.join(steps, name)) for name in storage.list_names(steps)
        }
    files = set(storage.list_files(steps))  # one request
    names = sorted({file.split("/", 1)[0] for file in files})
    return {name: f"{name}/{COMPLETE}" in files for name in names}


@contextlib.contextmanager
def pinned(path: str) -> Iterator[None]:
    """Protect the checkpoint directory at `path` from pruning; several readers may do so at once.

    Raises DataError: the checkpoint is missing or incomplete, or is being removed.
    """
    if not storage.is_local(path):
        with _pinned_remotely(path):
            yield
        return
    name = os.path.join(storage.filesystem(path)[1], COMPLETE)
    try:
        handle = open(name, "rb")  # noqa: SIM115
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _missing_checkpoint(path) from error
    with handle:
        with contextlib.suppress(OSError):  # no locks, so no training runs here
            flock_or_say(REMOVAL_SECONDS, handle, fcntl.LOCK_SH)  # a removal in progress
        # A removal renames the directory: then the file that is open here is no longer this one.
        if not has_name(handle, name):
            raise _missing_checkpoint(path)
        yield


def remove(path: str) -> bool:
    """Remove the checkpoint at `path` unless a reader pins it; return whether it was removed.

    The directory is renamed first (in a store `checkpoint.json` is removed first), so a kill leaves
    no partial checkpoint.
    """
    if not storage.is_local(path):
        return _remove_remotely(path)
    directory = Path(storage.filesystem(path)[1])
    try:
        # NFS grants exclusive locks only on files open for writing
        handle = (directory / COMPLETE).open("r+b")
    except FileNotFoundError:
        return False
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        removed = directory.with_name(f"{REMOVED}{directory.name}")
        storage.remove(str(removed))
        directory.rename(removed)
        storage.remove(str(removed))  # of a link, the link
    return True


def remove_leftovers(path: str) -> None:
    """Remove the remains of killed saves and removals below the training at `path`.

    No process may be saving there.
    """
    steps = storage.join(path, STEPS)
    for name, is_complete in _entries(steps).items():
        if name.startswith(REMOVED) or (parse_step(name) >= 0 and not is_complete):
            storage.remove(storage.join(steps, name))


def quarantine(directory: str) -> None:
    """Rename a damaged checkpoint, so that its step can be saved again."""
    steps, _, name = directory.rstrip("/").rpartition("/")
    storage.move(directory, storage.join(steps, f"{DAMAGED}{name}"))


def delete_quarantined(path: str) -> None:
    """Remove what `quarantine` moved below the training at `path`."""
    steps = storage.join(path, STEPS)
    for name in storage.list_names(steps):
        if name.startswith(DAMAGED):
            storage.remove(storage.join(steps, name))


@contextlib.contextmanager
def _pinned_remotely(path: str) -> Iterator[None]:
    """Implement `pinned` for an object store."""
    lease = Lease(f"{_marks(path)}{uuid.uuid4().hex}", RENEW_SECONDS)
    lease.put()
    lease.keep()
    try:
        if not is_checkpoint(path):
            raise _missing_checkpoint(path)
        yield
    finally:
        lease.end()


def _remove_remotely(path: str) -> bool:
    complete = storage.join(path, COMPLETE)
    try:
        content = storage.read_at_once(complete)
    except FileNotFoundError:
        return False
    if _is_read(path):
        return False
    storage.remove_file(complete)
    # A reader writes its lease, then looks; this removes, then looks. One of them sees the other.
    if _is_read(path):
        storage.write_bytes(complete, content)
        return False
    storage.remove(path)
    return True


def _marks(path: str) -> str:
    """Return the path prefix of the leases of readers of the checkpoint at `path`."""
    steps, _, name = path.rstrip("/").rpartition("/")
    return storage.join(steps, f"{READER_LEASE}{name}-")


def _is_read(path: str) -> bool:
    """Return whether a reader's lease is alive, and remove dead ones."""
    steps, _, prefix = _marks(path).rpartition("/")
    for name in storage.list_names(steps):
        lease = storage.join(steps, name)
        if name.startswith(prefix) and (facts := read_lease(lease)) is not None:
            if not is_dead(lease, facts, READER_LEASE_SECONDS):
                return True
            storage.remove_file(lease)
    return False


def _missing_checkpoint(path: str) -> DataError:
    return DataError(
        f"{path} has no complete checkpoint ({COMPLETE} is missing): it was never written, or its "
        f"training has removed it; name a newer one, or have the training keep it (milestones)"
    )
