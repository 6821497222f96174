"""Work units that misbehave, importable by name, as workers want them."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloze.core.errors import DataError
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext


def build(path: Path, **execution: Any) -> BuildContext:
    return BuildContext(
        path=str(path), inputs={}, execution=Execution(**execution), fingerprint="f"
    )


def within(seconds: float, what: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if what():
            return True
        time.sleep(0.05)
    return what()


def numbered(directory: Path, count: int, **more: Any) -> list[tuple[str, Any]]:
    directory.mkdir(parents=True, exist_ok=True)
    return [(f"unit-{n}", {"number": n, "directory": str(directory), **more}) for n in range(count)]


def work(unit: dict[str, Any]) -> dict[str, Any]:
    """Sleeps `seconds`, after a note of who does it; a trace says how often each unit was done."""
    directory = Path(unit["directory"])
    (directory / f"began-{unit['number']}").write_text(str(os.getpid()))
    time.sleep(unit.get("seconds", 0))
    with (directory / f"done-{unit['number']}").open("a") as stream:
        stream.write("x")
    return {"number": unit["number"], "process": os.getpid()}


def long_build(directory: Path, **execution: Any) -> str:
    """A program that is busy with four units for a minute, two at a time, below `directory`."""
    return (
        "from pathlib import Path; from tests.pipeline.runners.units import *; from "
        "cloze.pipeline.runners.fan_out import fan_out\n"
        f"place = Path({str(directory)!r})\n"
        f"begun = build(place / 'out', workers=2, **{execution!r})\n"
        "with begun.cleanup:\n"
        "    fan_out(begun, 'work', numbered(place / 'notes', 4, seconds=60), work, "
        "unit_name='units')\n"
    )


def misbehave(unit: dict[str, Any]) -> dict[str, Any]:
    """Unit 1 fails as its `fault` says."""
    if unit["number"] == 1:
        fault = unit["fault"]
        if fault == "memory":
            raise MemoryError("Unable to allocate 9.31 TiB")
        if fault == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/part-1.arrow")
        if fault == "closed":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), "/data/part-1.arrow")
        if fault == "bug":
            raise KeyError('a "quoted" key,\nover two lines')
        raise DataError("/data/in.txt is no text; leave it out")
    return work(unit)
