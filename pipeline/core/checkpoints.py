"""Where a training's checkpoints lie, and who reads them; nothing here knows what is in one.

    ARTIFACT/checkpoints/step-00008000/checkpoint.json    a checkpoint is complete if and only if its `checkpoint.json` is there

A training prunes its older checkpoints while others read them: the night evaluates them, a fine-tuning begins from one. A reader
holds what it reads, by the kernel's shared lock on `checkpoint.json`; who prunes asks for that lock alone and leaves alone what is
held, until it prunes again. The system lets go of a lock when its holder dies, so a dead reader holds nothing.

In an object store nothing is locked. There a reader puts an object beside the checkpoint, and puts it again as long as it reads; who
prunes leaves alone what has such an object that was put in the last minutes, by the store's own clock. The reader looks for
`checkpoint.json` after that, and who prunes looks for readers once more after taking it away, and puts it back if there is one: so
one of the two sees the other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

from pipeline.core import storage
from pipeline.core.errors import DataError
from pipeline.core.lock import has_name

STEPS = "checkpoints"  # below a training's artifact: one step-XXXXXXXX a checkpoint
COMPLETE = "checkpoint.json"  # in each, written last
REMOVED = "_removed-"  # opens the name of one that is being removed: no part of the artifact
DAMAGED = "_damaged-"  # likewise, of one that is kept to be looked at until the training ends
HELD = "_held-"  # opens the name of a reader's mark in an object store
RENEW_SECONDS, HELD_SECONDS = 30.0, 180.0  # a mark is put so often, and counts for so long
_PREFIX = "step-"


def step_name(step: int) -> str:
    """`step-00000200`: names sort as their steps do."""
    return f"{_PREFIX}{step:08d}"


def step_of(directory: str) -> int:
    """The step that a checkpoint directory's name says; -1: it says none."""
    name = directory.rstrip("/").rsplit("/", 1)[-1]
    digits = name.removeprefix(_PREFIX)
    return int(digits) if name.startswith(_PREFIX) and digits.isdecimal() else -1


def step_directories(path: str) -> list[str]:
    """What there is of checkpoints of the training at `path`, complete or not, oldest first."""
    steps = storage.join(path, STEPS)
    return [storage.join(steps, name) for name in storage.names_in(steps) if step_of(name) >= 0]


def is_checkpoint(path: str) -> bool:
    """Whether `path` is a complete checkpoint directory (its bytes are not looked at)."""
    return storage.exists(storage.join(path, COMPLETE))


def complete_steps(path: str) -> list[str]:
    """The complete checkpoint directories of the training at `path`, finished or not, oldest first; their bytes are not read."""
    return [directory for directory in step_directories(path) if is_checkpoint(directory)]


@contextlib.contextmanager
def held(path: str) -> Iterator[None]:
    """Read the complete checkpoint directory at `path` without its being pruned meanwhile. Any number of readers may hold one.

    Raises:
        DataError: there is none, or its training removes it just now.
    """
    if not storage.is_local(path):
        with _held_remotely(path):
            yield
        return
    name = os.path.join(storage.filesystem(path)[1], COMPLETE)
    try:
        handle = open(name, "rb")  # noqa: SIM115
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _gone(path) from error
    with handle:
        with contextlib.suppress(OSError):  # a file system without locks, on which nothing can be trained either
            fcntl.flock(handle, fcntl.LOCK_SH)  # waits while it is being removed
        if not has_name(handle, name):
            raise _gone(path)
        yield


def remove(path: str) -> bool:
    """Remove the checkpoint directory at `path` unless somebody holds it. Returns whether it went.

    It loses its name first (in a store its `checkpoint.json`): a kill leaves no half of a checkpoint.
    """
    if not storage.is_local(path):
        return _remove_remotely(path)
    place = Path(storage.filesystem(path)[1])
    try:
        handle = (place / COMPLETE).open("r+b")  # a network disk locks for one alone only what is open for writing
    except FileNotFoundError:
        return False
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        gone = place.with_name(f"{REMOVED}{place.name}")
        shutil.rmtree(gone, ignore_errors=True)
        place.rename(gone)
        shutil.rmtree(gone)
    return True


def sweep(path: str) -> None:
    """Clear away below the training at `path` what kills have left: of saves that were not finished, and of `remove`.

    Nobody may be saving there.
    """
    steps = storage.join(path, STEPS)
    for name in storage.names_in(steps):
        directory = storage.join(steps, name)
        if name.startswith(REMOVED) or (step_of(name) >= 0 and not is_checkpoint(directory)):
            storage.remove(directory)


def set_aside(directory: str) -> None:
    """Move a damaged checkpoint out of the way of its step's next one."""
    steps, _, name = directory.rstrip("/").rpartition("/")
    storage.move(directory, storage.join(steps, f"{DAMAGED}{name}"))


def drop_set_aside(path: str) -> None:
    """Remove what `set_aside` has moved below the training at `path`."""
    steps = storage.join(path, STEPS)
    for name in storage.names_in(steps):
        if name.startswith(DAMAGED):
            storage.remove(storage.join(steps, name))


@contextlib.contextmanager
def _held_remotely(path: str) -> Iterator[None]:
    """`held` in an object store."""
    mark, ended = f"{_marks(path)}{uuid.uuid4().hex}", threading.Event()
    storage.write_bytes(mark, b"{}")

    def renew() -> None:
        while not ended.wait(RENEW_SECONDS):
            with contextlib.suppress(Exception):  # the store may be away for a while
                storage.write_bytes(mark, b"{}")

    thread = threading.Thread(target=renew, name="cloze-hold", daemon=True)
    thread.start()
    try:
        if not is_checkpoint(path):
            raise _gone(path)
        yield
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(Exception):  # it counts no more when it is old
            storage.remove(mark)


def _remove_remotely(path: str) -> bool:
    complete = storage.join(path, COMPLETE)
    if not storage.exists(complete) or _is_read(path):
        return False
    with storage.open_input(complete) as handle:
        content = handle.read()
    storage.remove(complete)
    if _is_read(path):
        storage.write_bytes(complete, content)
        return False
    storage.remove(path)
    return True


def _marks(path: str) -> str:
    """What the names of the objects begin with that readers of the checkpoint at `path` put."""
    steps, _, name = path.rstrip("/").rpartition("/")
    return storage.join(steps, f"{HELD}{name}-")


def _is_read(path: str) -> bool:
    """Whether a reader's mark is young; old ones go."""
    steps, _, prefix = _marks(path).rpartition("/")
    marks = [storage.join(steps, name) for name in storage.names_in(steps) if name.startswith(prefix)]
    if not marks:
        return False
    probe = storage.join(steps, f"{HELD}now-{uuid.uuid4().hex}")
    storage.write_bytes(probe, b"{}")
    now = storage.modified(probe)
    storage.remove(probe)
    old = [mark for mark in marks if now - storage.modified(mark) > HELD_SECONDS]
    for mark in old:
        storage.remove(mark)
    return len(old) < len(marks)


def _gone(path: str) -> DataError:
    return DataError(
        f"{path} holds no complete checkpoint ({COMPLETE} is missing): it was never written, or its training has removed it;"
        " name a newer one, or have the training keep it (milestones)"
    )
