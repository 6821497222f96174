"""Locks of build directories: kernel locks on disks, leases in object stores.

A store has no locks that the system releases when their owner dies. A lease is an object that its
owner writes, rewrites every few seconds and removes at the end. A lease that was not rewritten for
some time, by the store's own clock, is dead, and anyone may remove it. A removed lease is lost: its
owner does not rewrite it.

Leases of builders are numbered, and the one with the highest number has the lock. Whoever finds
none, or a dead one, creates the next number by a conditional write: of several at once the store
lets one succeed. The dead ones are removed only then. In a store without conditional writes the
last one has the lock, and the others stop at their next check: each check asks the store there.

Readers of checkpoints (`checkpoints.py`) first write a lease of their own name, and then look
whether the checkpoint is complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from cloze.core import storage
from cloze.core.accounts import open_unlinked
from cloze.core.errors import ClozeError, UsageError, naming
from cloze.core.records import read_record


class Lease:
    """A lease of this process at `path`; other processes can read `facts`."""

    def __init__(self, path: str, renew_seconds: float) -> None:
        self.path = path
        self.facts: dict[str, Any] = {
            "token": uuid.uuid4().hex,
            "holder": _this_process(),
            **process_identity(),
            "count": 0,
        }
        self.is_lost, self._is_exclusive, self._written = False, True, 0.0
        self._seconds, self._ended = renew_seconds, threading.Event()
        self._thread = threading.Thread(target=self._keep, name="cloze-lease", daemon=True)

    def create(self) -> bool:
        """Write the object unless there is one; return whether it was written."""
        self._written, content = awake_or_asleep(), json.dumps(self.facts).encode()
        if not storage.create_bytes(self.path, content):
            return False
        # A store that writes other facts there has no conditions, and others may have replaced it.
        self.facts["count"] += 1
        again = json.dumps(self.facts).encode()
        # Only a store that ignores the condition lets it be created twice.
        self._is_exclusive = not storage.create_bytes(self.path, again)
        return True

    def put(self) -> None:
        self.facts["count"] += 1
        storage.write_bytes(self.path, json.dumps(self.facts).encode())

    def renew(self) -> None:
        """Write the object again, unless it was removed or replaced: then the lease is lost."""
        began = awake_or_asleep()
        self.is_lost = self.is_lost or not self._is_own(read(self.path))
        if not self.is_lost:
            self.put()
            self._written = began  # the write may be late: then the object was taken meanwhile

    def keep(self) -> None:
        """Start a thread that renews the lease."""
        self._thread.start()

    def end(self) -> None:
        """Stop renewing, and remove the object."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        with contextlib.suppress(Exception):  # otherwise the lease expires
            if self.is_sure or self._is_own(read(self.path)):
                self.is_lost = True  # before another process can take it
                storage.remove_file(self.path)

    @property
    def is_sure(self) -> bool:
        """Whether it was written so lately that to nobody it can be dead."""
        lately = awake_or_asleep() - self._written < SURE_SECONDS
        return lately and self._is_exclusive and not self.is_lost

    def _is_own(self, facts: dict[str, Any] | None) -> bool:
        return facts is not None and facts.get("token") == self.facts["token"]

    def _keep(self) -> None:
        while not self._ended.wait(self._seconds):
            with contextlib.suppress(Exception):  # the store may be unreachable for a while
                self.renew()


def awake_or_asleep() -> float:
    """Return seconds by a clock that, like those of others, goes on while this machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def read(path: str) -> dict[str, Any] | None:
    """Return the facts of a lease; None: it was removed."""
    with contextlib.suppress(FileNotFoundError):
        return read_record(storage.read_at_once(path)) or {}
    return None


def is_here(facts: Mapping[str, Any]) -> bool:
    """Return whether the process id in a lease means a process of this machine."""
    boot, named = boot_id(), (facts.get("boot"), facts.get("host"))
    return bool(boot or sys.platform == "darwin") and named == (boot, socket.gethostname())


def is_this_machine(facts: Mapping[str, Any]) -> bool:
    """Return whether facts are of this machine, perhaps of an earlier boot or host name."""
    own = process_identity()
    return any(own[key] and facts.get(key) == own[key] for key in ("host", "boot"))


def process_identity(pid: int | None = None) -> dict[str, Any]:
    """Return what identifies this process, or `pid`: host, pid, boot with namespace, start time."""
    pid = os.getpid() if pid is None else pid
    return {"host": socket.gethostname(), "pid": pid, "boot": boot_id(), "start": _start(pid)}


def is_running(facts: Mapping[str, Any]) -> bool:
    """Return whether the process of this identity runs here; its id alone may be another's."""
    start = _start(facts.get("pid"))
    return bool(start) and is_here(facts) and start in (HIDDEN, facts.get("start", start))


def send_signal(facts: Mapping[str, Any], number: int) -> bool:
    """Send a signal to the process of this identity, and to no other; False: it is not here."""
    if is_here := is_running(facts):
        with contextlib.suppress(ProcessLookupError):
            os.kill(facts["pid"], number)
    return is_here


def _start(pid: Any) -> str:
    """Return a process's start in clock ticks after the boot; empty: there is none."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8") as stream:
        # Field 22 of proc(5), `starttime`, is number 19 behind the name.
        return stream.read().rpartition(")")[2].split()[19]  # the name may hold blanks and ")"
    if isinstance(pid, int) and pid > 0:  # others are groups
        with contextlib.suppress(ProcessLookupError, OverflowError):
            with contextlib.suppress(PermissionError):  # it is another account's, and there
                os.kill(pid, 0)
            return HIDDEN
    return ""


def is_dead(path: str, facts: dict[str, Any], seconds: float) -> bool:
    """Return whether the lease expired, or its owner, a process of this machine, has ended."""
    if is_here(facts) and not is_running(facts):
        return True
    # Both times are by the store's clock: the clocks of two hosts may differ.
    probe = storage.join(path.rpartition("/")[0], f"{PROBE}{uuid.uuid4().hex}")
    storage.write_bytes(probe, b"")
    try:
        return storage.mtime(probe) - storage.mtime(path) > seconds
    finally:
        storage.remove_file(probe)


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def boot_id() -> str:
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
HIDDEN = "0"  # start of a process without /proc (macOS), or hidden there (hidepid): the id is all
PROBE = "_probe-"  # prefix of an object that is written to read the store's clock
LEASE_SECONDS = 30.0
RENEW_SECONDS = 10.0
SURE_SECONDS = 15.0  # by this machine's clock, half of what others wait for
POLL_SECONDS = 0.5
PATIENCE_SECONDS = 1.0  # for a holder that is releasing the lock, or only tests it


def locked(out: str) -> contextlib.AbstractContextManager[Callable[[], None]]:
    """Hold the lock of `out`; call the yielded check before the manifest is written.

    The check raises ClozeError if another builder has taken the lock over.

    Raises UsageError: another process is building there; the message names it.
    """
    return _local(out) if storage.is_local(out) else _remote(out)


@contextlib.contextmanager
def _local(out: str) -> Iterator[Callable[[], None]]:
    _, inner = storage.filesystem(out)
    name = os.path.join(inner, LOCK)
    handle = _open_locked(out, name)
    try:
        content = f"{_this_process()}\n{json.dumps(process_identity())}".encode()
        with naming(name):  # unbuffered: a full disk would fail again when the file is closed
            handle.truncate(0)
            os.write(handle.fileno(), content)
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
    while True:
        os.makedirs(os.path.dirname(name), exist_ok=True)  # `cloze clean` may remove it meanwhile
        handle = open(name, "a+", encoding="utf-8", opener=open_unlinked)  # noqa: SIM115
        try:
            flock_within(PATIENCE_SECONDS, handle, fcntl.LOCK_EX)
            if has_name(handle, name):
                return handle
        except BlockingIOError as error:
            handle.seek(0)
            with handle:
                raise _is_locked(out, handle.readline().strip()) from error
        except OSError as error:  # a network disk without locks
            handle.close()
            raise ClozeError(
                f"{out} is on a file system that cannot lock files ({error.strerror}); use another "
                f"one, or mount it with locks"
            ) from error
        handle.close()


def flock_within(seconds: float, handle: IO[Any] | int, operation: int) -> None:
    """Lock an open file; BlockingIOError: another process holds it for longer."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return fcntl.flock(handle, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(min(PATIENCE_SECONDS, seconds) / 50)


def flock_or_say(
    seconds: float, handle: IO[Any], operation: int, error: type[Exception] = UsageError
) -> None:
    """Lock an open file within that time, or raise an error that names it and who holds it."""
    try:
        flock_within(seconds, handle, operation)
    except BlockingIOError:
        raise error(
            f"{handle.name} is held by {_flock_holders(handle)} for more than {seconds:.0f} s; "
            f"wait for that, continue it with kill -CONT, or end it"
        ) from None


def _flock_holders(handle: IO[Any]) -> str:
    """Name the processes that hold a lock on the open file; Linux lists those of this machine."""
    inode, pids = os.fstat(handle.fileno()).st_ino, set[str]()
    with contextlib.suppress(OSError), open("/proc/locks", encoding="ascii") as stream:
        # 1: FLOCK  ADVISORY  WRITE 708 00:1b:4028684 0 EOF; "1: ->" is one that waits
        lines = [line.split() for line in stream]
        pids = {each[4] for each in lines if each[1] == "FLOCK" and each[5].endswith(f":{inode}")}
    names = f"process {', '.join(sorted(pids, key=int))} on {socket.gethostname()}"
    return names if pids else "another process, perhaps of another host"


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
    initial_count: dict[Any, Any] = {}
    while True:
        names = storage.list_names(directory)
        newest, facts = _newest(directory, names)
        if facts is None or is_dead(storage.join(directory, newest), facts, LEASE_SECONDS):
            # The next number, not the dead lease's: its owner may still write that one late.
            lease = Lease(storage.join(directory, f"{int(newest) + 1:08d}"), RENEW_SECONDS)
            if lease.create():
                for name in names:
                    if name.isdecimal() or name.startswith(PROBE):
                        storage.remove_file(storage.join(directory, name))
                return lease
        # Renewed while this process waits: the holder is alive, whatever clocks say.
        elif initial_count.setdefault(facts.get("token"), facts.get("count")) != facts.get("count"):
            raise _is_locked(out, str(facts.get("holder", "")))
        else:  # it is alive, or died a moment ago
            time.sleep(POLL_SECONDS)


def _newest(directory: str, names: list[str]) -> tuple[str, dict[str, Any] | None]:
    """Return name and facts of the builder's lease that counts; "0" and None: there is none."""
    name = max(filter(str.isdecimal, names), default="0")
    return name, None if name == "0" else read(storage.join(directory, name))


def _check(out: str, own: Lease) -> None:
    """Raise ClozeError if the lease was removed, or another builder holds the lock."""
    if own.is_sure:
        return
    facts = _newest(directory := storage.join(out, LOCK), storage.list_names(directory))[1] or {}
    if own.is_lost or facts.get("token") != own.facts["token"]:
        raise ClozeError(
            f"{out} was taken over by {facts.get('holder') or 'another builder'} while this "
            f"process could not reach it; run again"
        )


def holder_facts(out: str) -> dict[str, Any]:
    """Return the facts of the holder of `out`; empty if there is none that is alive."""
    if storage.is_local(out):
        return written_facts(out) if is_locked(out) else {}
    directory = storage.join(out, LOCK)
    newest, facts = _newest(directory, storage.list_names(directory))
    if facts is None or is_dead(storage.join(directory, newest), facts, LEASE_SECONDS):
        return {}
    return facts


def is_copy(out: str) -> bool:
    """Return whether the local directory is a copy of one that a process of this machine holds."""
    # the file goes with a copy, its lock does not; a holder that ends removes the file
    return not is_locked(out) and is_running(written_facts(out))


def written_facts(out: str) -> dict[str, Any]:
    """Return the facts of a local directory's holder, perhaps a dead one; empty: none."""
    with contextlib.suppress(OSError, IndexError):
        return read_record(storage.read_at_once(storage.join(out, LOCK)).splitlines()[1]) or {}
    return {}


def holder(out: str) -> str:
    """Return a description of the lock's holder, on a disk perhaps a dead one; empty: none."""
    name = storage.join(out, LOCK)
    if storage.is_local(out):
        with contextlib.suppress(OSError):
            return storage.read_at_once(name).decode(errors="replace").partition("\n")[0].strip()
    return "" if storage.is_local(out) else str(holder_facts(out).get("holder", ""))


def _is_locked(out: str, holder: str) -> UsageError:
    who = holder or "another process"
    return UsageError(f"{out} is being built by {who}; wait for it or stop it")
