"""Where a training's checkpoints lie, and who reads them; nothing here knows what is in one.

    ARTIFACT/checkpoints/step-00008000/checkpoint.json    a checkpoint is complete if and only if its `checkpoint.json` is there

A training prunes its older checkpoints while others read them: the night evaluates them, a fine-tuning begins from one. A reader
holds what it reads, by the kernel's shared lock on `checkpoint.json`; who prunes asks for that lock alone and leaves alone what is
held, until it prunes again. The system lets go of a lock when its holder dies, so a dead reader holds nothing. In an object store
nothing is locked: trainings write to disks, so nobody prunes there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from pipeline.core import storage
from pipeline.core.errors import DataError
from pipeline.core.lock import has_name

STEPS = "checkpoints"  # below a training's artifact: one step-XXXXXXXX a checkpoint
COMPLETE = "checkpoint.json"  # in each, written last
REMOVED = "_removed-"  # opens the name of one that is being removed: no part of the artifact
_PREFIX = "step-"


def step_name(step: int) -> str:
    """`step-00000200`: names sort as their steps do."""
    return f"{_PREFIX}{step:08d}"


def step_of(directory: str) -> int:
    """The step that a checkpoint directory's name says; -1: it says none."""
    name = directory.rstrip("/").rsplit("/", 1)[-1]
    digits = name.removeprefix(_PREFIX)
    return int(digits) if name.startswith(_PREFIX) and digits.isdecimal() else -1


def is_checkpoint(path: str) -> bool:
    """Whether `path` is a complete checkpoint directory (its bytes are not looked at)."""
    return storage.exists(storage.join(path, COMPLETE))


def complete_steps(path: str) -> list[str]:
    """The complete checkpoint directories of the training at `path`, finished or not, oldest first; their bytes are not read."""
    steps = storage.join(path, STEPS)
    if not storage.is_dir(steps):
        return []
    names = {name.split("/", 1)[0] for name in storage.list_files(steps) if name.endswith("/" + COMPLETE)}
    found = (storage.join(steps, name) for name in sorted(names) if step_of(name) >= 0)
    return [directory for directory in found if is_checkpoint(directory)]


@contextlib.contextmanager
def held(path: str) -> Iterator[None]:
    """Read the complete checkpoint directory at `path` without its being pruned meanwhile. Any number of readers may hold one.

    Raises:
        DataError: there is none, or its training removes it just now.
    """
    if not storage.is_local(path):
        if not is_checkpoint(path):
            raise _gone(path)
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
    """Remove the local checkpoint directory at `path` unless somebody holds it. Returns whether it went.

    It loses its name first, at once: a kill leaves no half of a checkpoint.
    """
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
    """Clear away below the training at `path` what a kill in `remove` has left."""
    for leftover in (Path(storage.filesystem(path)[1]) / STEPS).glob(f"{REMOVED}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _gone(path: str) -> DataError:
    return DataError(
        f"{path} holds no complete checkpoint ({COMPLETE} is missing): it was never written, or its training has removed it;"
        " name a newer one, or have the training keep it (milestones)"
    )
