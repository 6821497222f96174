"""The fence of an artifact: of all starts that build it, only the newest may change it.

Each start writes a new token beside the artifact. Work of an earlier start, on any machine,
compares its own token before a change, finds another one, and stops. Where a token stands follows
from how long the processes that have it may live:

    ID               `_building.json`   an attempt whose processes end with it: those of one process
                                        on this host; `claim.py` draws the id
    LAUNCH.ATTEMPT   `_logs/fence`      ranks, which may outlive their coordinator: in a detached
                                        batch job, or on a host that counted as lost and resumes

The lock of the directory (`lock.py`) keeps a second builder out while the first one lives. Under
it, the process that starts ranks draws the random id LAUNCH. ATTEMPT counts the starts of ranks in
the launch: a restart or a requeued job raises it. Coordinators pass the token to their ranks.

On a disk a rank keeps a shared kernel lock on the file while it publishes or removes a checkpoint
file or appends a log entry. A new token is written under an exclusive lock, so no change of an
older launch follows it. A store has no such locks, so an object of an older launch may still appear
right after the comparison. It is complete, and belongs to a valid state of the same training.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from cloze.core import storage
from cloze.core.accounts import open_unlinked
from cloze.core.artifacts import artifact
from cloze.core.artifacts.lock import awake_or_asleep, flock_within
from cloze.core.errors import ClozeError, DataError, SupersededError, naming

FENCE = "_logs/fence"  # in the directory of the artifact
TOKEN = "CLOZE_FENCE"  # environment variable with a rank's token
PATIENCE_SECONDS = 60.0  # for a rank of an earlier launch to finish publishing
FRESH_SECONDS = 1.0  # for which an attempt's check in a store counts: a request may take as long
_FRESH_UNTIL: dict[str, float] = {}  # by token, on the clock of `awake_or_asleep`


@dataclass(frozen=True, slots=True)
class Fence:
    """The right of one start to change an artifact. Without a token nothing is compared."""

    path: str = ""
    token: str = ""

    def check(self) -> None:
        """Raise SupersededError if the token is not the newest, or the build is finished."""
        with self.locked():
            pass

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Compare the token, and block newer launches during the block, which must be short.

        Raises SupersededError: the token is not the newest, or the build is finished.
        """
        if "." not in self.token:
            self._check_claim()
            yield
            return
        with _locked(self.path, fcntl.LOCK_SH) as handle:
            if (newest := _read(self.path, handle)) != self.token:
                raise _superseded(self.path, newest, self.token)
            yield

    def _check_claim(self) -> None:
        now = awake_or_asleep()
        if not self.token or now < _FRESH_UNTIL.get(self.token, now):
            return
        claim = artifact.read_claim(self.path)
        if claim is None:
            raise SupersededError(f"{self.path} was finished; this attempt writes nothing more")
        if claim.token != self.token:
            raise SupersededError(
                f"{self.path} is being built by another attempt (build {claim.build[:12]}); this "
                f"attempt writes nothing more"
            )
        if not storage.is_local(self.path):
            _FRESH_UNTIL[self.token] = now + FRESH_SECONDS


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


def start_attempt(path: str, launch: str) -> Fence:
    """Supersede the earlier attempts of the launch, and return the fence of the new attempt.

    Raises SupersededError: a newer launch was started.
    """
    with _locked(path, fcntl.LOCK_EX) as handle:
        newest = _read(path, handle)
        owner, _, attempt = newest.rpartition(".")
        # A restart may not take back what a newer launch has taken over.
        if owner != launch:
            raise _superseded(path, newest, launch)
        fence = Fence(path, f"{launch}.{int(attempt) + 1:06d}")
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
        try:
            flock_within(PATIENCE_SECONDS, handle, operation)
        except BlockingIOError as error:
            raise ClozeError(
                f"a rank of an earlier launch has been publishing a checkpoint in {path} for "
                f"{PATIENCE_SECONDS:.0f} s; wait for it, or end it, and run again"
            ) from error
        except OSError:  # a file system without locks: the comparison alone must suffice
            pass
        yield handle
    finally:
        os.close(handle)
