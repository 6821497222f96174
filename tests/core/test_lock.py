"""The lock of a directory on a disk: one holder at a time, however many come and go, and nothing left
behind.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import random
import time
from pathlib import Path

import pytest

from cloze.core.artifacts import lock
from cloze.core.artifacts.lock import LOCK, is_locked, locked
from cloze.core.errors import UsageError

FORK = multiprocessing.get_context("fork")


def _come_and_go(out: Path, often: int, queue: multiprocessing.Queue) -> None:
    """Take the lock and let go of it, again and again; nobody else may be inside meanwhile.

    Of a slow machine: between opening the lock file and locking it others come and go.
    """
    flock = fcntl.flock
    fcntl.flock = lambda *given: (time.sleep(random.random() / 500), flock(*given))[1]  # type: ignore[assignment]
    inside, times = out.with_name("inside"), 0
    while times < often:
        try:
            with locked(str(out)):
                os.close(os.open(inside, os.O_CREAT | os.O_EXCL))  # fails if another is there
                time.sleep(0.001)
                os.unlink(inside)
                times += 1
        except UsageError:
            continue
        except FileExistsError:
            queue.put("two at once")
            return
    queue.put(times)


def test_never_two_holders_although_the_lock_file_comes_and_goes(tmp_path: Path) -> None:
    queue = FORK.Queue()
    processes = [
        FORK.Process(target=_come_and_go, args=(tmp_path / "out", 12, queue)) for _ in range(4)
    ]
    for process in processes:
        process.start()
    assert [queue.get(timeout=120) for _ in processes] == [12] * len(processes)
    for process in processes:
        process.join()
    assert not (tmp_path / "out" / LOCK).exists()


def test_who_holds_it_is_told_and_a_failure_leaves_no_file(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    assert not is_locked(out)
    with pytest.raises(ZeroDivisionError), locked(out):
        assert is_locked(out)
        with (
            pytest.raises(
                UsageError,
                match=f"is being built by process {os.getpid()} on .*; wait for it or stop it",
            ),
            locked(out),
        ):
            pass
        assert is_locked(out)
        raise ZeroDivisionError
    assert not is_locked(out)
    assert os.listdir(out) == []


def test_a_look_at_the_lock_refuses_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cloze status` holds it for a moment to see whether it is held."""
    monkeypatch.setattr(lock, "PATIENCE_SECONDS", 20.0)  # a moment may be long on a busy machine
    out = tmp_path / "out"
    out.mkdir()
    with open(out / LOCK, "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_SH)
        looking = FORK.Process(target=_let_go_soon, args=(handle.fileno(),))
        looking.start()
    with locked(str(out)):
        pass
    looking.join()


def _let_go_soon(number: int) -> None:
    time.sleep(0.05)
    os.close(number)
