"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from flows.servers import processes

T = TypeVar("T")


def until(found: Callable[[], T | None], seconds: float = 30.0) -> T:
    """What `found` gives, as soon as that is true."""
    deadline = time.monotonic() + seconds
    while True:
        value = found()
        if value:
            return value
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def number(path: Path, besides: int = 0) -> int:
    """The process number that a toy writes, once it is there and another one than `besides`."""
    return until(lambda: (found if (found := int(path.read_text())) != besides else None) if path.exists() else None)


def is_gone(pid: int) -> bool:
    return processes.started(pid) is None
