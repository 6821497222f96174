"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

T = TypeVar("T")


def until(found: Callable[[], T | None], seconds: float = 180.0) -> T:
    """Return the value of `found` as soon as it is true; the deadline is generous, since a busy
    machine is slow.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = found()
        if value:
            return value
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def number(path: Path, besides: int = 0) -> int:
    """The process number that a toy writes, once it is there and another one than `besides`."""
    return until(
        lambda: (
            (found if (found := int(path.read_text() or 0)) != besides else None)
            if path.exists()
            else None
        )
    )


def is_gone(pid: int) -> bool:
    """Return whether a process does not run; a zombie does not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
