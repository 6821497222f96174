"""A host of a test whose clock jumps, or whose disk is full or stalls for it alone: a library
(`faulty_host.c`) that its processes preload.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
COMPILER = shutil.which("gcc") or shutil.which("cc")
_LAYOUT = struct.Struct("<qqq")


def missing() -> str | None:
    """Why there can be no such host here; None: there can."""
    return (
        None
        if COMPILER
        else (
            "what makes a host faulty is built by a C compiler, which is not installed (apt-get "
            "install gcc)"
        )
    )


class FaultyHost:
    """What is wrong on one host, for all its processes at once.

    Args:
        directory: for the library and what it looks at; nothing of it may be on the disk that is
            full.
    """

    def __init__(self, directory: Path) -> None:
        assert COMPILER is not None
        directory.mkdir(parents=True, exist_ok=True)
        library, state = directory / "faulty_host.so", directory / "faults"
        subprocess.run(
            [COMPILER, "-O2", "-Wall", "-shared", "-fPIC", "-o", str(library), str(SOURCE)],
            check=True,
        )
        state.write_bytes(bytes(_LAYOUT.size))
        with state.open("r+b") as stream:
            self._faults = mmap.mmap(stream.fileno(), _LAYOUT.size)
        self.environment = {"LD_PRELOAD": str(library), "FAULTY_HOST": str(state)}

    def has(self, *, seconds_ahead: int = 0, full: bool = False, stalls: bool = False) -> None:
        """From now on: its clock is so many seconds ahead; nothing can be written to a file, or
        who writes waits.
        """
        _LAYOUT.pack_into(self._faults, 0, seconds_ahead, full, stalls)
