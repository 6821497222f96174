"""Fixtures of the tests of faults."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.disks import Disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Disk]:
    """A tmpfs of 8 MB; skips where it cannot be mounted."""
    path = tmp_path / "disk"
    path.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small filesystem takes root")
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "cloze-test", str(path)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)
