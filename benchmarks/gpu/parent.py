"""Hands rows out to a child, keeps to the minutes, and writes each answer down as it comes.

A child that dies, takes too long, or fails costs the row that it was at: the next row gets a new
one. A kernel's fault leaves a process whose every later call to the GPU fails likewise, and a row
that ran out of memory one that may hold some still.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloze.core.processes import PARENT_PID

CHECKS_SHARE = 0.4  # of the time, at most
LEAST = 10.0  # seconds that no row is begun with less of
MEASURED = 0.3  # of a row's time is measured; the rest begins and warms up
LONGEST, SHORTEST = 8.0, 0.2  # seconds of measuring
# seconds that a row may take at least, where there are so many: the first one starts a device
SLOW = 90.0

Row = dict[str, Any]


@dataclass
class Child:
    """The process that runs rows, begun when it is needed."""

    command: Sequence[str]
    log: Path
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def ask(self, row: str, seconds: float, limit: float) -> Row:
        """The answer to a row that may take so many seconds."""
        began = time.monotonic()
        if self.process is None or self.process.poll() is not None:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                    env={**self.environment, PARENT_PID: str(os.getpid())},
                    start_new_session=True,
                )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write((json.dumps({"row": row, "seconds": seconds}) + "\n").encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            return self._failed(row, began, "the process ended before it began")
        line = self._line(self.process.stdout.fileno(), began + limit)
        if line is None:
            self.end()
            return self._failed(row, began, f"took longer than {limit:.0f} s")
        if not line:
            code = self.process.wait()
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return self._failed(row, began, f"the process ended ({how}): {self._last_words()}")
        found: Row = json.loads(line)
        if found["ok"] is False:
            self.end()
        return found

    def end(self) -> None:
        """Kill it, and all that it began."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process = None

    def _line(self, number: int, until: float) -> bytes | None:
        """The next line; empty at the end; None where it does not come in time."""
        found = b""
        while not found.endswith(b"\n"):
            left = until - time.monotonic()
            if left <= 0 or not select.select([number], [], [], left)[0]:
                return None
            part = os.read(number, 1 << 16)
            if not part:
                return b""
            found += part
        return found

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else ""

    def _failed(self, row: str, began: float, error: str) -> Row:
        return {"row": row, "ok": False, "error": error, "took": round(time.monotonic() - began, 2)}


def run_rows(
    checks: tuple[Sequence[str], Child],
    speeds: tuple[Sequence[str], Child],
    seconds: float,
    written: Callable[[Row], None],
    longest: float = LONGEST,
) -> list[Row]:
    """All rows in their order, each with its share of the time that is left; those that there is no
    time for say so.

    Args:
        checks, speeds: names, and who runs them.
        seconds: of all together, from now.
        written: is given each row as it comes.
        longest: seconds of measuring, of a row.
    """
    began, found = time.monotonic(), list[Row]()
    for rows, child, share in ((*checks, CHECKS_SHARE if speeds[0] else 1.0), (*speeds, 1.0)):
        try:
            for number, row in enumerate(rows):
                left = began + share * seconds - time.monotonic()
                whole = began + seconds - time.monotonic()
                if left < min(LEAST, seconds / 10):
                    answer: Row = {
                        "row": row,
                        "ok": None,
                        "error": "there was no time left",
                        "took": 0.0,
                    }
                else:
                    own = left / (len(rows) - number)
                    measured = min(longest, max(SHORTEST, MEASURED * own))
                    answer = child.ask(row, measured, min(whole, max(SLOW, 3 * own)))
                found.append(answer)
                written(answer)
        finally:
            child.end()
    return found


def child_of(device: str, tiny: bool, scratch: Path, log: Path, **environment: str) -> Child:
    """One that runs rows on that device, with these variables beside those of a
    training's ranks.
    """
    from cloze.flows.launch.local import RANK_ENVIRONMENT

    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu.child",
        "--device",
        device,
        "--scratch",
        str(scratch),
        *(["--tiny"] if tiny else []),
    ]
    compiled = {
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "compiled")
    }  # a child that is killed leaves halves of files, for nobody else
    return Child(command, log, {**RANK_ENVIRONMENT, **environment, **os.environ, **compiled})
