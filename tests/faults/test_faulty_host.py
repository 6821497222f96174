"""What makes a host of the other tests faulty does that, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import faulty_host

pytestmark = pytest.mark.skipif(
    faulty_host.missing() is not None, reason=str(faulty_host.missing())
)
LOOK = """
import sys, time
ahead = time.time(), time.monotonic()
time.sleep(0.05)  # which other such libraries break
print(*ahead, "written to a pipe", flush=True)
with open(sys.argv[1], "w") as stream:
    stream.write("written to a file")
"""


def looked(host: faulty_host.FaultyHost, path: Path) -> tuple[float, float, str]:
    """The time of day and the monotonic clock there, and what went wrong."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(path)], env={**os.environ, **host.environment},
            capture_output=True, text=True, check=False
    )  # fmt: skip
    day, monotonic, said = done.stdout.split(maxsplit=2)
    assert said == "written to a pipe\n"
    return float(day), float(monotonic), done.stderr


def test_a_clock_that_is_an_hour_ahead_and_a_full_disk(tmp_path: Path) -> None:
    host = faulty_host.FaultyHost(tmp_path / "host")
    for seconds, full in ((0, False), (3600, False), (3600, True)):
        host.has(seconds_ahead=seconds, full=full)
        before = time.time(), time.monotonic()
        day, monotonic, errors = looked(host, tmp_path / "file")
        after = time.time(), time.monotonic()
        assert before[0] <= day - seconds <= after[0]
        assert before[1] <= monotonic <= after[1]
        assert ("No space left on device" in errors) is full
    assert (tmp_path / "file").read_text() == ""
    assert time.time() < after[0] + 1800  # this process has none of it
