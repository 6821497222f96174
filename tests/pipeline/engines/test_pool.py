"""The worker pool by itself: what it holds once it is left."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.engines.pool import WorkerPool


def pipes() -> set[str]:
    """The pipes that this process holds an end of."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(os.readlink(entry))
    return {name for name in found if name.startswith("pipe:")}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc/self/fd is Linux's")
def test_a_pool_that_is_left_holds_no_pipe():
    """A process may start one pool after another: a pipe kept by each would end in `Too many open files`."""
    before = pipes()
    with WorkerPool() as pool:
        assert pipes() > before
    assert pipes() == before
    assert not pool.deaths
