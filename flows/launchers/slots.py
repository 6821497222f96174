"""Who computes where: a slot for each core and each GPU of this machine, shared by all runs on it.

A slot is a file that whoever uses it has locked (`cpu-0`, `gpu-1` … below `directory()`). The kernel lets go of the lock when its
holder dies, so none is ever left behind; the file says who holds it. Who waits for slots of one kind stands in a queue, the file
`cpu-queue` or `gpu-queue`, so that one who wants many is not passed by others for ever. GPUs are taken before cores, by everybody.
What a node of a run wants is in `flows.graph.demand`; what a host's part of a launch, in `flows.launchers.agent`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from flows.launchers import gpus
from pipeline.core import processors

POLL_SECONDS = 0.2
PATIENCE_SECONDS = 2.0  # before it is told that a node waits
CPU, GPU = "cpu", "gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What there is to share. Attributes: cores: by the kernel's numbers; gpus: by CUDA's."""

    cores: tuple[str, ...]
    gpus: tuple[str, ...]

    @property
    def cpus(self) -> int:
        """How many cores."""
        return len(self.cores)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a node takes while it runs. Attributes: devices: GPUs that the config names; else `gpus` of those that are free."""

    cpus: int = 0
    gpus: int = 0
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A slot that is taken, and by whom."""

    slot: str
    pid: int
    run: str
    node: str
    since: float


def directory() -> Path:
    """`$CLOZE_SLOTS`, by default a directory that all users of this machine share."""
    return Path(os.environ.get("CLOZE_SLOTS") or Path(tempfile.gettempdir()) / "cloze-slots")


def machine() -> Machine:
    """The cores that this process may use and the GPUs; `$CLOZE_CPUS` says how many cores are to be shared, `$CUDA_VISIBLE_DEVICES` which GPUs."""
    told = os.environ.get("CLOZE_CPUS")
    cores = range(max(int(told), 1)) if told else processors.usable()
    return Machine(cores=tuple(map(str, cores)), gpus=gpus.numbers())


@contextlib.contextmanager
def taken(
    wanted: Demand, there: Machine, run: str, node: str, stop_asked: Callable[[], bool], waiting: Callable[[], None]
) -> Iterator[tuple[str, ...]]:
    """Hold slots; yields the numbers of the GPUs.

    Args:
        stop_asked: asked while waiting.
        waiting: told once, if there are not enough free ones for a while.

    Raises:
        KeyboardInterrupt: `stop_asked` was true.
    """
    with contextlib.ExitStack() as held:
        gpus = list(wanted.devices) or [*there.gpus]
        granted = _take(held, GPU, gpus, len(wanted.devices) or wanted.gpus, run, node, stop_asked, waiting)
        _take(held, CPU, [*there.cores], wanted.cpus, run, node, stop_asked, waiting)
        yield tuple(granted)


def _take(
    held: contextlib.ExitStack,
    kind: str,
    names: list[str],
    count: int,
    run: str,
    node: str,
    stop_asked: Callable[[], bool],
    waiting: Callable[[], None],
) -> list[str]:
    if count == 0:
        return []
    first, told, began = False, False, time.monotonic()
    with contextlib.ExitStack() as queue:
        while True:
            if stop_asked():
                raise KeyboardInterrupt
            first = first or _locked(queue, f"{kind}-queue") is not None
            found = _try(held, kind, names, count) if first else None
            if found is not None:
                break
            if not told and time.monotonic() - began > PATIENCE_SECONDS:
                told = True
                waiting()
            time.sleep(POLL_SECONDS)
        me = {"pid": os.getpid(), "host": socket.gethostname(), "run": run, "node": node, "since": time.time()}
        for _, stream in found:
            stream.seek(0)
            stream.truncate()
            stream.write(json.dumps(me))
            stream.flush()
        return [name for name, _ in found]


def _try(held: contextlib.ExitStack, kind: str, names: list[str], count: int) -> list[tuple[str, IO[str]]] | None:
    """`count` of the slots, all of them or none."""
    with contextlib.ExitStack() as attempt:
        found = []
        for name in names:
            stream = _locked(attempt, f"{kind}-{name}")
            if stream is not None:
                found.append((name, stream))
            if len(found) == count:
                held.push(attempt.pop_all().__exit__)
                return found
    return None


def _locked(stack: contextlib.ExitStack, name: str) -> IO[str] | None:
    """The slot's file, locked until the stack ends; None: another holds it."""
    place = directory()
    if not place.is_dir():
        place.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            place.chmod(0o1777)
    handle = os.open(place / name.replace("/", "_"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with contextlib.suppress(OSError):  # others, too, whatever this user's umask; only the owner may say so
        os.fchmod(handle, 0o666)
    stream = os.fdopen(handle, "r+", encoding="utf-8")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        stream.close()
        return None
    stack.callback(stream.close)
    return stream


def who_holds(kind: str) -> str:
    """Who has the slots of that kind, in words."""
    held = [one for one in holders() if one.slot.startswith(f"{kind}-")]
    named = [f"{kind.upper()} {one.slot.partition('-')[2]} is held by {one.run} (process {one.pid})" for one in held]
    return ", ".join(named) or f"no {kind.upper()} is held just now"


def holders() -> list[Holder]:
    """The slots that are taken just now."""
    found = []
    for path in sorted(directory().glob("?pu-*")):
        if path.name.endswith("-queue"):
            continue
        with contextlib.suppress(OSError, ValueError, KeyError), path.open(encoding="utf-8") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                told: dict[str, Any] = json.loads(stream.read())
                found.append(
                    Holder(slot=path.name, pid=told["pid"], run=told["run"], node=told["node"], since=float(told["since"]))
                )
    return found
