"""Slots: one file lock for each core and GPU of this host, shared by all runs on the host.

GPUs are listed with `nvidia-smi`, because a CUDA library would occupy them.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import math
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cloze.core import places, processes
from cloze.core.errors import UsageError
from cloze.core.records import Fields, read_record

_GPU_LINE = re.compile(r"^GPU (\d+):.*\(UUID: ([\w-]+)\)")


def visible_gpus() -> tuple[str, ...]:
    """Return the GPUs that this process may use: `$CUDA_VISIBLE_DEVICES`, or all by CUDA number."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(
            name.strip() for name in visible.split(",") if name.strip() and name.strip() != "-1"
        )
    if not Path("/proc/driver/nvidia").exists():
        return ()
    return tuple(_listed().values())


def number_of(name: str) -> str:
    """Return the CUDA number of a GPU, given a number, a UUID or its prefix; unknown names stay."""
    if name.isdecimal():
        return name
    numbers = [number for uuid, number in _listed().items() if uuid.startswith(name)]
    return numbers[0] if len(numbers) == 1 else name


def _listed() -> dict[str, str]:
    """Return the numbers of this host's GPUs by UUID. Not cached, because GPUs can fail."""
    matches = map(_GPU_LINE.match, nvidia_smi("-L"))
    return {match[2]: match[1] for match in matches if match}


def nvidia_smi(*words: str) -> list[str]:
    """Return the lines that the driver's command prints; none if it fails or does not answer."""
    command = ["nvidia-smi", *words]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=20
        ).stdout.splitlines()
    return []


POLL_SECONDS = 0.2
PATIENCE_SECONDS = 2.0  # before a node is reported as waiting
HELD_SECONDS = 60.0  # how long a node that waits for cores keeps its GPUs from others
CPU, GPU = "cpu", "gpu"
FIELDS: Fields = {"pid": int, "run": str, "node": str, "since": (int, float)}  # of a slot's file
MAX_LISTED = 4  # slots listed by name for one holder; more are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineResources:
    """Cores and GPUs of this host."""

    cores: tuple[str, ...]  # kernel numbers
    gpus: tuple[str, ...]  # CUDA numbers or UUIDs

    @property
    def cpus(self) -> int:
        return len(self.cores)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRequest:
    """Slots that a node occupies while it runs."""

    cpus: int = 0
    gpus: int = 0  # number of GPUs, any free ones
    gpu_ids: tuple[str, ...] = ()  # GPUs that the config names; they replace `gpus`


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """An occupied slot and the process that holds its lock."""

    slot: str
    pid: int
    run: str
    node: str
    since: float


def directory() -> Path:
    """Return `$CLOZE_SLOTS_DIR`; default: a directory that all users of this host share."""
    return places.local_setting("CLOZE_SLOTS_DIR", f"{tempfile.gettempdir()}/cloze-slots")


def machine() -> MachineResources:
    """Return the usable cores and GPUs, limited by `$CLOZE_CPUS` and `$CUDA_VISIBLE_DEVICES`."""
    limit = os.environ.get("CLOZE_CPUS", "").strip()
    if limit and not (limit.isdecimal() and 0 < int(limit) <= 1 << 16):
        raise UsageError(f"CLOZE_CPUS ({limit!r}) is no number of cores; set it to 1 or more")
    cores = range(int(limit)) if limit else processes.available_cpus()
    return MachineResources(cores=tuple(map(str, cores)), gpus=visible_gpus())


@contextlib.contextmanager
def acquire(
    request: ResourceRequest,
    machine: MachineResources,
    run: str,
    node: str,
    stop_requested: Callable[[], bool],
    report_waiting: Callable[[], None],
) -> Iterator[tuple[str, ...]]:
    """Acquire slots and yield the names of the granted GPUs.

    Args:
        run: name of the run, for other processes' messages.
        node: name of the node, for other processes' messages.
        report_waiting: called once if the slots are not free within 2 seconds.

    Raises KeyboardInterrupt: `stop_requested` returned true.
    """
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "run": run, "node": node}
    report, gpu_ids = functools.cache(report_waiting), request.gpu_ids
    gpus, count = gpu_ids or machine.gpus, len(gpu_ids) or request.gpus
    with contextlib.ExitStack() as stack:
        while True:
            with contextlib.ExitStack() as attempt:
                waits = functools.partial(_take, attempt, owner, stop_requested, report)
                granted = waits(GPU, gpus, count, math.inf) or []
                held = HELD_SECONDS if granted else math.inf
                if waits(CPU, machine.cores, request.cpus, held) is not None:
                    stack.push(attempt.pop_all().__exit__)
                    break
        yield tuple(granted)


def _take(
    stack: contextlib.ExitStack,
    owner: Mapping[str, Any],
    stop_requested: Callable[[], bool],
    report_waiting: Callable[[], None],
    kind: str,
    names: Sequence[str],
    count: int,
    seconds: float,
) -> list[str] | None:
    """Take slots of a kind; return None if they are not free within so many seconds."""
    if count == 0:
        return []
    is_first, start = False, time.monotonic()
    with contextlib.ExitStack() as queue:
        while True:
            if stop_requested():
                raise KeyboardInterrupt
            is_first = is_first or _locked(queue, f"{kind}-queue") is not None
            locked_slots = _try(stack, kind, names, count) if is_first else None
            if locked_slots is not None:
                break
            if time.monotonic() - start > seconds:
                return None
            if time.monotonic() - start > PATIENCE_SECONDS:
                report_waiting()
            time.sleep(POLL_SECONDS)
        for _, stream in locked_slots:
            content = json.dumps({**owner, "since": time.time()}).encode()
            # the lock counts; a full disk only hides the holder's name. Unbuffered, because a
            # stream would fail again when it is closed
            with contextlib.suppress(OSError):
                os.ftruncate(stream.fileno(), 0)
                os.pwrite(stream.fileno(), content, 0)
        return [name for name, _ in locked_slots]


def _try(
    stack: contextlib.ExitStack, kind: str, names: Sequence[str], count: int
) -> list[tuple[str, IO[str]]] | None:
    """Lock `count` of the slots; return None, and lock none, if fewer are free."""
    with contextlib.ExitStack() as attempt:
        locked_slots = []
        for name in names:
            # a GPU has several names
            stream = _locked(attempt, f"{kind}-{number_of(name) if kind == GPU else name}")
            if stream is not None:
                locked_slots.append((name, stream))
            if len(locked_slots) == count:
                stack.push(attempt.pop_all().__exit__)
                return locked_slots
    return None


def _locked(stack: contextlib.ExitStack, name: str) -> IO[str] | None:
    """Return the slot's file, locked until the stack closes; None if another process holds it."""
    slots_directory = directory()
    try:
        if not slots_directory.is_dir():
            slots_directory.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):
                slots_directory.chmod(0o1777)
        handle = _opened(slots_directory / name.replace("/", "_"))
        stream = os.fdopen(handle, "r+", encoding="utf-8")
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        return None
    except OSError as error:
        raise UsageError(
            f"no slots can be taken in {slots_directory} ({error.strerror}); name a directory in "
            f"CLOZE_SLOTS_DIR that you may write, or set run.oversubscribe=true to start without"
        ) from error
    stack.callback(stream.close)
    return stream


def _opened(path: Path) -> int:
    """Open the slot's file; create it if it is missing.

    In a sticky directory, Linux may refuse O_CREAT for an existing file of another user
    (fs.protected_regular).
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags)
        with contextlib.suppress(FileExistsError):  # another process created it meanwhile
            handle = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(handle, 0o666)  # despite the umask: other users take the slot, too
            return handle


def describe_holders(*kinds: str) -> str:
    """Return a message that names the holders of all slots of these kinds."""
    slots_by_holder: dict[tuple[str, str, int], list[str]] = {}
    for holder in holders():
        kind, _, name = holder.slot.partition("-")
        if kind in kinds:
            slots_by_holder.setdefault((kind.upper(), holder.run, holder.pid), []).append(name)
    descriptions = [
        (f"{kind} {', '.join(names)}" if len(names) <= MAX_LISTED else f"{len(names)} {kind}s")
        + f" {'is' if len(names) == 1 else 'are'} held by {run} (process {pid})"
        for (kind, run, pid), names in slots_by_holder.items()
    ]
    return ", ".join(descriptions) or f"no {' or '.join(kinds).upper()} is held just now"


def holders() -> list[Holder]:
    """Return the occupied slots and their holders."""
    active = []
    for path in sorted(directory().glob("?pu-*")):
        if path.name.endswith("-queue"):
            continue
        with contextlib.suppress(OSError), path.open("rb") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                if record := read_record(stream.read(), FIELDS):
                    fields = {name: record[name] for name in FIELDS}
                    active.append(Holder(slot=path.name, **fields))
    return active
