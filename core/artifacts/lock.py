"""Locks of build directories: kernel locks on disks, leases in object stores.

A store has no locks that the system releases when their owner dies. A lease is an object that its
owner writes, rewrites every few seconds and removes at the end. A lease that was not rewritten for
some time, by the store's own clock, is dead, and anyone may remove it. Names of leases are never
reused, so a living lease cannot be removed by mistake. A removed lease is lost: its owner does not
rewrite it.

Builders and readers of checkpoints (`checkpoints.py`) first write their lease and then look for
others: of two that start at the same time, at least one sees the other.
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

from cloze.core import storage
from cloze.core.errors import ClozeError, UsageError


class Lease:
    """A lease of this process below `directory`; other processes can read `facts`."""

    def __init__(self, directory: str, prefix: str, renew_seconds: float, **facts: Any) -> None:
        self.token = uuid.uuid4().hex
        self.path = storage.join(directory, f"{prefix}{self.token}")
        self.facts: dict[str, Any] = {
            **facts,
            "holder": _this_process(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "boot": _boot_id(),
            "count": 0,
        }
        self.is_lost = False
        self._seconds, self._ended = renew_seconds, threading.Event()
        self._thread = threading.Thread(target=self._keep, name="cloze-lease", daemon=True)

    def put(self) -> float:
        """Write the object, and return the time of the store's clock."""
        self.facts["count"] += 1
        storage.write_bytes(self.path, json.dumps(self.facts).encode())
        return storage.mtime(self.path)

    def renew(self) -> None:
        """Write the object again, unless it was removed: then the lease is lost."""
        self.is_lost = self.is_lost or read(self.path) is None
        if not self.is_lost:
            self.put()

    def keep(self) -> None:
        """Start a thread that renews the lease."""
        self._thread.start()

    def end(self) -> None:
        """Stop renewing, and remove the object."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        with contextlib.suppress(Exception):  # otherwise the lease expires
            storage.remove_file(self.path)

    def _keep(self) -> None:
        while not self._ended.wait(self._seconds):
            with contextlib.suppress(Exception):  # the store may be unreachable for a while
                self.renew()


def others(directory: str, prefix: str = "", own: str = "") -> dict[str, dict[str, Any]]:
    """Return the facts of the leases below `directory` by path, without the one at `own`."""
    leases = {}
    for name in storage.list_names(directory):
        path = storage.join(directory, name)
        if name.startswith(prefix) and path != own and (facts := read(path)) is not None:
            leases[path] = facts
    return leases


def read(path: str) -> dict[str, Any] | None:
    """Return the facts of a lease; None: it was removed."""
    try:
        content = json.loads(storage.read_at_once(path))
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def is_dead(path: str, facts: dict[str, Any], now: float, seconds: float) -> bool:
    """Return whether the lease expired, or its owner, a process of this machine, has ended."""
    boot = _boot_id()
    is_local = bool(boot) and (facts.get("boot"), facts.get("host")) == (boot, socket.gethostname())
    if is_local and not os.path.exists(f"/proc/{facts.get('pid')}"):
        return True
    return now - storage.mtime(path) > seconds


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _boot_id() -> str:
    """Identify this machine's boot and process namespace; empty if that is impossible.

    Process ids mean nothing outside their namespace.
    """
    with (
        contextlib.suppress(OSError),
        open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream,
    ):
        return f"{stream.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    return ""


# Locks of build directories: one builder at a time.

LOCK = "_lock"
LEASE_SECONDS = 30.0
RENEW_SECONDS = 10.0
POLL_SECONDS = 0.5
PATIENCE_SECONDS = 1.0  # for a holder that is releasing the lock, or only tests it


@contextlib.contextmanager
def locked(out: str) -> Iterator[Callable[[], None]]:
    """Hold the lock of `out`; call the yielded check before the manifest is written.

    The check raises ClozeError if another builder has taken the lock over.

    Raises:
        UsageError: another process is building there; the message names it.
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
        handle.write(_this_process())
        handle.flush()
        yield lambda: None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)  # while it is locked; see `_open_locked`
        handle.close()


def _open_locked(out: str, name: str) -> IO[str]:
    """Open and lock the lock file.

    The holder unlinks the file before it releases the lock, so that a finished artifact has no lock
    file. A process that opened the file before the unlink then locks a file without a name, and
    opens the name again.
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
                    raise _is_locked(out, handle.read().strip()) from error
            time.sleep(PATIENCE_SECONDS / 50)
        except OSError as error:  # a network disk without locks
            handle.close()
            raise ClozeError(
                f"{out} is on a file system that cannot lock files ({error.strerror}); use another "
                f"one, or mount it with locks"
            ) from error
        handle.close()


def has_name(handle: IO[Any], name: str) -> bool:
    """Return whether the open file is still the one with that name."""
    try:
        return os.path.samestat(os.fstat(handle.fileno()), os.stat(name))
    except FileNotFoundError:
        return False


def is_locked(out: str) -> bool:
    """Return whether a process of this machine builds in the local directory `out` now."""
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
    lease = _take_lease(out)
    lease.keep()
    try:
        yield lambda: _check(out, lease)
    finally:
        lease.end()


def _take_lease(out: str) -> Lease:
    """Return the lease of this process, once no other builder of `out` is alive."""
    directory = storage.join(out, LOCK)
    lease = Lease(directory, "", RENEW_SECONDS, is_holder=False, over=[])
    initial_counts: dict[str, int] = {}
    try:
        while True:
            living, dead = _rivals(directory, lease, lease.put())
            if not living:
                tokens = {_token(path) for path in dead}.union(
                    *(facts.get("over", ()) for facts in dead.values())
                )
                lease.facts |= {"is_holder": True, "over": sorted(tokens)}
                living, _ = _rivals(directory, lease, lease.put())
                if not any(facts.get("is_holder") for facts in living.values()):
                    for path in dead:
                        storage.remove_file(path)
                    return lease
                # this process was suspended after its check
                lease.facts |= {"is_holder": False, "over": []}
            for path, facts in living.items():
                if facts.get("is_holder") and initial_counts.setdefault(
                    path, facts.get("count", 0)
                ) != facts.get("count", 0):
                    raise _is_locked(out, str(facts.get("holder", "")))
            if any(
                facts.get("is_holder") or _token(path) < lease.token
                for path, facts in living.items()
            ):
                storage.remove_file(lease.path)  # of several that start together, one stays
            time.sleep(POLL_SECONDS)
    except BaseException:
        lease.end()
        raise


def _rivals(
    directory: str, own: Lease, now: float
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the living and the dead leases of others; those `own` took over count as dead."""
    living, dead = {}, {}
    for path, facts in others(directory, own=own.path).items():
        if _token(path) in own.facts["over"] or is_dead(path, facts, now, LEASE_SECONDS):
            dead[path] = facts
        else:
            living[path] = facts
    return living, dead


def _check(out: str, own: Lease) -> None:
    """Raise ClozeError if the lease was removed, or another builder holds the lock."""
    names = set(storage.list_names(storage.join(out, LOCK)))
    rivals = {
        token: read(storage.join(out, LOCK, token))
        for token in names - {own.token, *own.facts["over"]}
    }
    holders = [facts.get("holder") for facts in rivals.values() if facts and facts.get("is_holder")]
    if holders or own.is_lost or own.token not in names:
        owner = holders[0] if holders else "another builder"
        raise ClozeError(
            f"{out} was taken over by {owner} while this process could not reach it; run again"
        )


def _token(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def holder(out: str) -> str:
    """Return a description of the lock's holder; empty: none, or a dead process on a disk."""
    name = storage.join(out, LOCK)
    if storage.is_local(out):
        with contextlib.suppress(OSError):
            return storage.read_at_once(name).decode(errors="replace").strip()
        return ""
    for facts in others(name).values():
        if facts.get("is_holder"):
            return str(facts.get("holder"))
    return ""


def _is_locked(out: str, holder: str) -> UsageError:
    return UsageError(
        f"{out} is being built by {holder or 'another process'}; wait for it or stop it"
    )
