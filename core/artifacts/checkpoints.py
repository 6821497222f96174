"""Checkpoints of trainings: launch fences, readers' pins, pruning and quarantine.

Of all launches of one build, only the newest may change the artifact's checkpoints and log entries.
The lock of the directory (`lock.py`) keeps a second coordinator out while the first one lives.
Ranks may outlive their coordinator: in a detached batch job, or on a host that counted as lost and
resumes later. Therefore the file `_logs/fence` of the artifact has a token, `LAUNCH.ATTEMPT`:

    LAUNCH     a random id, drawn by the process that starts ranks, under the directory's lock
    ATTEMPT    counts the starts of ranks in the launch: a restart or a requeued job raises it

Coordinators pass the token to their ranks. A rank compares it with the file before it publishes a
checkpoint file, removes a checkpoint or appends a log entry. It stops if the two differ. On a disk
it keeps a shared kernel lock on the file meanwhile. A new token is written under an exclusive lock,
so no change of an older launch follows the new token. A store has no such locks, so an object of an
older launch may still appear right after the comparison. Such an object is complete, and belongs to
a valid state of the same training.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cloze.core import storage
from cloze.core.accounts import open_unlinked
from cloze.core.artifacts.lock import Lease, flock_or_say, flock_within, has_name, is_dead
from cloze.core.artifacts.lock import read as read_lease
from cloze.core.errors import ClozeError, DataError, SupersededError, naming

FENCE = "_logs/fence"  # in the directory of the artifact
TOKEN = "CLOZE_FENCE"  # environment variable with a rank's token
PATIENCE_SECONDS = 60.0  # for a rank of an earlier launch to finish publishing


@dataclass(frozen=True, slots=True)
class LaunchFence:
    """The right of one launch to change an artifact. Without a token nothing is compared.

    `claim.Fence` is its counterpart for stages whose processes end with their attempt: those of one
    process on this host.
    """

    path: str = ""
    token: str = ""

    def check(self) -> None:
        """Raise SupersededError if the token is not the newest."""
        with self.locked():
            pass

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Compare the token, and block newer launches during the block, which must be short.

        Raises SupersededError: the token is not the newest.
        """
        if not self.token:
            yield
            return
        with _locked(self.path, fcntl.LOCK_SH) as handle:
            if (newest := _read(self.path, handle)) != self.token:
                raise _superseded(self.path, newest, self.token)
            yield


def read(path: str) -> str:
    """Return the newest token of the artifact at `path`; empty if there is none."""
    with _locked(path, fcntl.LOCK_SH) as handle:
        return _read(path, handle)


def start_launch(path: str) -> str:
    """Supersede all launches of the artifact at `path`, and return the id of the new launch.

    The caller holds the lock of the directory.
    """
    launch = uuid.uuid4().hex
    with _locked(path, fcntl.LOCK_EX) as handle:
        _write(path, handle, f"{launch}.{0:06d}")
    return launch


def start_attempt(path: str, launch: str) -> LaunchFence:
    """Supersede the earlier attempts of the launch, and return the fence of the new attempt.

    Raises SupersededError: a newer launch was started.
    """
    with _locked(path, fcntl.LOCK_EX) as handle:
        newest = _read(path, handle)
        owner, _, attempt = newest.rpartition(".")
        # A restart may not take back what a newer launch has taken over.
        if owner != launch:
            raise _superseded(path, newest, launch)
        fence = LaunchFence(path, f"{launch}.{int(attempt) + 1:06d}")
        _write(path, handle, fence.token)
    return fence


def _superseded(path: str, newest: str, own: str) -> SupersededError:
    return SupersededError(
        f"another launch has taken over {path} (token {newest or 'none'}, this launch has {own}); "
        f"this one stops and leaves its checkpoints as they are"
    )


def _read(path: str, handle: int | None) -> str:
    """Return the token; `handle`: of the local file, None if missing or in a store."""
    if handle is not None:
        return os.pread(handle, 100, 0).decode("ascii")
    if storage.is_local(path):
        return ""
    try:
        return storage.read_text(storage.join(path, FENCE))
    except DataError:
        return ""


def _write(path: str, handle: int | None, token: str) -> None:
    if handle is None:
        storage.write_bytes(storage.join(path, FENCE), token.encode())
        return
    with naming(storage.join(path, FENCE)):
        # in place, because the lock is on this file; all tokens have equal length
        os.pwrite(handle, token.encode(), 0)
        os.fsync(handle)


@contextlib.contextmanager
def _locked(path: str, operation: int) -> Iterator[int | None]:
    """Lock the token file of a local artifact, and yield its handle, or None if there is none."""
    if not storage.is_local(path):
        yield None
        return
    name = storage.join(path, FENCE)
    inner = storage.filesystem(name)[1] if "://" in name else name
    is_exclusive = operation == fcntl.LOCK_EX
    if is_exclusive:
        os.makedirs(os.path.dirname(inner), exist_ok=True)
    try:
        handle = open_unlinked(inner, os.O_RDWR | (os.O_CREAT if is_exclusive else 0))
    except FileNotFoundError:  # the directory was given to another build
        yield None
        return
    try:
        _lock(handle, operation, path)
        yield handle
    finally:
        os.close(handle)


def _lock(handle: int, operation: int, path: str) -> None:
    try:
        flock_within(PATIENCE_SECONDS, handle, operation)
    except BlockingIOError as error:
        raise ClozeError(
            f"a rank of an earlier launch has been publishing a checkpoint in {path} for "
            f"{PATIENCE_SECONDS:.0f} s; wait for it, or end it, and run again"
        ) from error
    except OSError:  # a file system without locks: the comparison alone must suffice
        return


# Checkpoint directories and their readers; the content of checkpoints is not used here.

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
