"""One server under a guardian: started, seen to end, started again after a pause, and given up when it dies as soon as it is up."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from flows.servers import processes
from flows.servers.services import Service
from pipeline.core.processes import PARENT_PID, ending

QUICK_SECONDS = 60.0  # a server that dies before that, or before it was up, has died quickly
QUICK_DEATHS = 5  # in a row; then it is given up
PATIENCE_SECONDS = 150.0  # for a server to come up
MOST_CHARACTERS = 200  # of a log's last words
_ERROR = re.compile(r"\(?[\w.]*(Error|Exception)\b.*")  # a traceback's last line; what libraries add below it says less
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0


class Child:
    """A service and its process.

    Attributes:
        state: `waiting` (for what it needs, or before it is started again), `starting`, `up`, `silent` (it runs, and does not answer),
            `given up`, `ended`.
        told: what is to be told of it, a sentence each; the supervisor takes them away.
    """

    def __init__(self, service: Service, logs: Path, environment: Mapping[str, str]) -> None:
        self.service, self.log = service, logs / f"{service.name}.log"
        self.environment = {**os.environ, **environment, processes.SERVICE: service.name, PARENT_PID: str(os.getpid())}
        self.process: subprocess.Popen[bytes] | None = None
        self.state, self.restarts, self.since, self.last = "waiting", 0, 0.0, ""
        self.has_been_up = False
        self.server: int | None = None  # its number, below its guardian's
        self.told: list[str] = []
        self._quick, self._not_before, self._begun = 0, 0.0, 0.0
        self._up_since_begun = False
        self._cleaning: threading.Thread | None = None

    def tend(self, ready: bool) -> None:
        """Start it if it is time and what it needs is `ready`, and note if it has ended. From the thread that stays, at every tick."""
        if self.process is not None and self.process.poll() is not None:
            self._died(self.process.returncode)
        due = self.process is None and self.state == "waiting" and time.monotonic() >= self._not_before
        if due and ready and not (self._cleaning is not None and self._cleaning.is_alive()):
            self._start()

    def look(self) -> None:
        """Ask it whether it is up; takes up to two seconds."""
        process = self.process
        if process is None or process.poll() is not None or self.state not in ("starting", "up", "silent"):
            return
        self.server = _server_of(process.pid)
        fine = self.server is not None and (self.service.health is None or answers(self.service.health))
        if self.process is process and self.state in ("starting", "up", "silent"):
            if fine:
                self.state, self.has_been_up, self._up_since_begun = "up", True, True
            elif self.state == "up":
                self.state = "silent"

    @property
    def is_slow(self) -> bool:
        """Whether it has been coming up for so long, or has failed at it, that others need not wait for it."""
        return not self.has_been_up and (self.restarts > 0 or time.monotonic() > self._begun + PATIENCE_SECONDS)

    def ask_to_end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within that time, or was not running."""
        if self.process is not None:
            try:
                self.process.wait(max(0.0, seconds))
            except subprocess.TimeoutExpired:
                return False
        self.state = "ended"
        return True

    def kill(self) -> None:
        """End the whole group at once."""
        if self.process is not None and self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.state = "ended"

    def describe(self) -> dict[str, Any]:
        """Its entry in `state.json`."""
        guardian = self.process.pid if self.process is not None and self.process.poll() is None else None
        return {
            "title": self.service.title,
            "state": self.state,
            "address": self.service.address,
            "port": self.service.port,
            "guardian": guardian,
            "started": processes.started(guardian) if guardian else None,
            "pid": self.server if guardian else None,
            "since": self.since,
            "restarts": self.restarts,
            "last": self.last,
            "log": str(self.log),
        }

    def _start(self) -> None:
        guardian = [sys.executable, "-m", "flows.servers.guardian", str(self.service.grace)]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [*guardian, *self.service.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,  # Ctrl-C in the terminal reaches the supervisor alone
            )
        self._begun, self.since, self.server = time.monotonic(), time.time(), None
        self._up_since_begun = False
        self.state = "starting"

    def _died(self, code: int) -> None:
        assert self.process is not None
        self.process = None
        self._cleaning = threading.Thread(target=self._end_leftovers, daemon=True)
        self._cleaning.start()
        how = ending(128 - code if code > 128 else code)
        quickly = not self._up_since_begun or time.monotonic() < self._begun + QUICK_SECONDS
        self._quick = self._quick + 1 if quickly else 1
        self.last = f"{how}{last_words(self.log)}"
        if self._quick >= QUICK_DEATHS:
            self.state = "given up"
            self.told.append(
                f"{self.service.title} {how} {QUICK_DEATHS} times in a row and is given up{last_words(self.log)}; see {self.log}"
            )
            return
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self._quick - 1))
        self._not_before, self.state = time.monotonic() + pause, "waiting"
        self.restarts += 1
        self.told.append(f"{self.service.title} {how}; it is started again")

    def _end_leftovers(self) -> None:
        """What has stayed because the guardian was killed together with its server."""
        processes.end(processes.marked(self.log.parent, self.service.name), self.service.grace)


def answers(url: str) -> bool:
    """Whether a server answers a GET of `url`, be it that it wants to know who asks."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except urllib.error.HTTPError as error:
        return error.code in (401, 403)
    except (OSError, ValueError):
        return False


def last_words(log: Path) -> str:
    """The last error that a log names, else its last line, in brackets and cut to a line."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 16384))
            lines = [line.strip() for line in stream.read().decode("utf-8", "replace").splitlines() if line.strip()]
    except OSError:
        return ""
    told = next((line for line in reversed(lines) if _ERROR.match(line)), lines[-1] if lines else "")
    return f" ({told[:MOST_CHARACTERS]})" if told else ""


def _server_of(guardian: int) -> int | None:
    with suppress(psutil.Error):
        return next((child.pid for child in psutil.Process(guardian).children()), None)
    return None
