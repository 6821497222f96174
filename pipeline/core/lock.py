"""Who builds in a directory: one process at a time.

On a disk it is the kernel's lock on the file `_lock`: the system lets go of it when its holder dies, so none goes stale.

An object store has no such thing. There the lock is an object that is put only if there is none (`If-None-Match: *` on S3,
`ifGenerationMatch=0` on GCS), and its holder writes it again every `RENEW_SECONDS`. A second builder who sees it renewed is refused; one
who sees it stand still for `LEASE_SECONDS` takes it over, because its holder is dead. A holder that was cut off for so long finds another's
name in it and stops. Should two ever build at the same time all the same, nothing is spoilt: names and bytes of an artifact
follow from its fingerprint, every object appears whole, and the manifest comes last.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import IO, Any

from pipeline.core import storage
from pipeline.core.errors import ClozeError, UsageError

LOCK = "_lock"
LEASE_SECONDS = 30.0
RENEW_SECONDS = 5.0
POLL_SECONDS = 0.5
PATIENCE_SECONDS = 1.0  # with one who lets go just now, or only looks whether the lock is held


@contextlib.contextmanager
def locked(out: str) -> Iterator[Callable[[], None]]:
    """Hold `out` for this process. What it yields is to be called before the manifest is written.

    That call raises ClozeError if another builder has taken the lock over.

    Raises:
        UsageError: another process is building there; who it is.
    """
    with _local(out) if storage.is_local(out) else _remote(out) as check:
        yield check


@contextlib.contextmanager
def _local(out: str) -> Iterator[Callable[[], None]]:
    _, inner = storage.filesystem(out)
    os.makedirs(inner, exist_ok=True)
    name = os.path.join(inner, LOCK)
    handle = _open_locked(out, name)
    try:
        handle.truncate(0)
        handle.write(_myself())
        handle.flush()
        yield lambda: None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)  # while it is locked; see `_open_locked`
        handle.close()


def _open_locked(out: str, name: str) -> IO[str]:
    """The lock file, locked by this process.

    Its holder unlinks it before letting go, so that a finished artifact holds no lock file. Whoever had opened it before that then
    gets the lock of a file without a name, which guards nothing; such a one opens the name anew.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        handle = open(name, "a+", encoding="utf-8")  # noqa: SIM115
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if has_name(handle, name):
                return handle
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                handle.seek(0)
                with handle:
                    raise _refused(out, handle.read().strip()) from error
            time.sleep(PATIENCE_SECONDS / 50)
        except OSError as error:  # a network disk without locks
            handle.close()
            raise ClozeError(
                f"{out} lies on a file system that cannot lock files ({error.strerror}); use another, or mount it with locks"
            ) from error
        handle.close()


def has_name(handle: IO[Any], name: str) -> bool:
    """Whether the open file is the one that has that name now."""
    try:
        return os.path.samestat(os.fstat(handle.fileno()), os.stat(name))
    except FileNotFoundError:
        return False


def is_held(out: str) -> bool:
    """Whether a process of this machine builds in the local directory `out` just now."""
    try:
        with open(os.path.join(storage.filesystem(out)[1], LOCK), encoding="utf-8") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


@contextlib.contextmanager
def _remote(out: str) -> Iterator[Callable[[], None]]:
    lease = _Lease(out)
    lease.take()
    try:
        yield lease.check
    finally:
        lease.release()


class _Lease:
    """The lock object of one builder."""

    def __init__(self, out: str) -> None:
        self._out, self._path = out, storage.join(out, LOCK)
        self._token, self._count = uuid.uuid4().hex, 0
        self._ended = threading.Event()
        self._lost_to: str | None = None
        self._thread = threading.Thread(target=self._renew, name="cloze-lease", daemon=True)

    def take(self) -> None:
        watched, since = None, time.monotonic()
        while not storage.create(self._path, self._content()):
            found = _read(self._path)
            if found is None:  # released, or removed, between the two
                continue
            if watched is not None and found != watched and found.get("token") == watched.get("token"):
                raise _refused(self._out, str(found.get("holder", "")))
            if watched is None or found.get("token") != watched.get("token"):
                watched, since = found, time.monotonic()
            if _is_dead(found) or time.monotonic() - since > LEASE_SECONDS:
                storage.remove(self._path)
                watched = None
                continue
            time.sleep(POLL_SECONDS)
        self._thread.start()

    def check(self) -> None:
        if self._lost_to is None:
            found = _read(self._path) or {}
            if found.get("token") == self._token:
                return
            self._lost_to = str(found.get("holder") or "nobody")
        raise ClozeError(f"{self._out} was taken over by {self._lost_to} while this process could not reach it; run again")

    def release(self) -> None:
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(Exception):  # the next builder takes it over when the lease is out
            if (_read(self._path) or {}).get("token") == self._token:
                storage.remove(self._path)

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            with contextlib.suppress(Exception):  # the store may be away for a while; `check` says if that was too long
                found = _read(self._path) or {}
                if found.get("token") != self._token:
                    self._lost_to = str(found.get("holder") or "nobody")
                    return
                self._count += 1
                storage.write_bytes(self._path, self._content())

    def _content(self) -> bytes:
        mine = {
            "token": self._token,
            "holder": _myself(),
            "count": self._count,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        return json.dumps({**mine, "boot": _boot_id()}).encode()


def _read(path: str) -> dict[str, Any] | None:
    store, inner = storage.filesystem(path)
    try:
        content = json.loads(store.cat_file(inner))  # in one request: an open file is refused once its holder has renewed it
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _is_dead(found: dict[str, Any]) -> bool:
    """Whether the holder was a process of this machine that is no more; of others' processes only their silence tells."""
    if not found.get("boot") or found["boot"] != _boot_id() or found.get("host") != socket.gethostname():
        return False
    return not os.path.exists(f"/proc/{found.get('pid')}")


def _boot_id() -> str:
    """Names this machine's run; empty in a container's process namespace, whose process numbers mean nothing outside."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
        return f"{stream.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _myself() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _refused(out: str, holder: str) -> UsageError:
    return UsageError(f"{out} is being built by {holder or 'another process'}; wait for it or stop it")
