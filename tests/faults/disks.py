"""A disk that can be filled, for tests that run as root."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path


class Disk:
    """A small filesystem of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def remount(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(self.path)], check=True)


def fill(disk: Disk, leave: int) -> None:
    """Leave `leave` bytes free."""
    free = os.statvfs(disk.path)
    try:
        with open(disk.path / "filler", "wb") as handle:
            handle.write(b"\0" * max(0, free.f_bavail * free.f_frsize - leave))
    except OSError as error:  # what runs there has filled it meanwhile
        if error.errno != errno.ENOSPC:
            raise
