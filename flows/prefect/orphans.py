"""A flow's process does not outlive the worker that started it: when that is killed, it ends as if it was told to, with checkpoints."""

from __future__ import annotations

import ctypes
import os
import signal
import threading

_PR_SET_PDEATHSIG = 1
_SIGNAL = signal.SIGUSR2
_parent = 0


def watch_parent() -> None:
    """From now on the kernel tells this process when its parent dies. Only a main thread can be told."""
    global _parent
    if threading.current_thread() is not threading.main_thread():
        return
    _parent = os.getppid()
    signal.signal(_SIGNAL, _look)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(_SIGNAL))


def is_orphan() -> bool:
    """Whether the parent that was watched is gone."""
    return _parent not in (0, os.getppid())


def _look(*_: object) -> None:
    if not is_orphan():  # the kernel tells of the end of a thread of the parent's, too
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # pipes that nobody reads any more: writing there would end this process before its trainings
        os.dup2(nowhere, stream)
    os.kill(os.getpid(), signal.SIGTERM)
