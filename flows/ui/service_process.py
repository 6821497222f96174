"""A supervised server: start, health check, restart with exponential backoff, stop."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cloze.core.accounts import open_unlinked
from cloze.core.artifacts import lock
from cloze.core.errors import describe_os_error
from cloze.core.processes import PARENT_PID, describe_exit
from cloze.flows.run.server_addresses import answers
from cloze.flows.ui import processes
from cloze.flows.ui.services import Service

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds before a restart
STABLE_SECONDS = 60.0  # after this uptime, the backoff starts over
HUNG_SECONDS = 600.0  # that a start may take, with a migration of its database on a busy machine
MOST_CHARACTERS = 300  # of the error in a message
GIVE_UP = 8  # starts in a row that ended before the server was up: some three minutes
REMEDIES = {  # by words of the last error: starts after which nothing else helps, and what does
    "newer MLflow made it": (1, "do that, or name another database in MLFLOW_TRACKING_URI"),
    "out-of-date database": (1, "run `mlflow db upgrade`, or upgrade MLflow here if it is older"),
    "locate revision": (1, "a newer version made its database: upgrade it here, or name another"),
    "No module named": (1, "run `pip install 'cloze-pretraining-base[flows]'`"),
    "already in use": (GIVE_UP, "end the program on its port, or name another port"),
    "disk is full": (GIVE_UP, "free some space"),
    "No space left": (GIVE_UP, "free some space"),
    "": (GIVE_UP, "mend what the log says"),
}
_ERROR = re.compile(r"\(?[\w.]*(Error|Exception)\b.*")  # last line of a traceback


class ServiceProcess:
    """A service and its process. The main thread calls `supervise`, another one `check_health`.

    Attributes:
        state: `waiting` (for its start or restart), `starting`, `up`, `silent` (runs but does not
            answer), `broken` (not started again), `ended`.
        last: how the process ended last time.
        messages: messages for the terminal; the supervisor removes them.
    """

    def __init__(self, service: Service, logs: Path, environment: Mapping[str, str]) -> None:
        self.service, self.log = service, logs / f"{service.name}.log"
        self.environment = {
            **os.environ,
            **environment,
            processes.SERVICE: service.name,
            PARENT_PID: str(os.getpid()),
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.state, self.restarts, self.since, self.last = "waiting", 0, 0.0, ""
        self.has_been_up = False
        self.messages: list[str] = []
        self._pause, self._not_before, self._early_ends = FIRST_PAUSE, 0.0, 0
        self._cleaning = threading.Thread()

    def supervise(self, ready: bool) -> None:
        """Record that the process has ended, or start it if it is due and `ready`."""
        if self.process is not None:
            code = self.process.poll()
            if code is not None:
                self._ended(code)
        elif ready and time.monotonic() >= self._not_before and not self._cleaning.is_alive():
            self._start()

    def check_health(self) -> None:
        """Query the server's health; takes up to two seconds."""
        process = self.process
        if process is None or process.poll() is not None:
            return
        is_healthy = self.service.health is None or answers(self.service.health)
        if self.process is process and self.state != "ended":
            if is_healthy:
                self.state, self.has_been_up = "up", True
            elif self.state == "up":
                self.state = "silent"
            elif self.state == "starting" and time.time() > self.since + HUNG_SECONDS:
                with suppress(ProcessLookupError):  # `supervise` records its end, with its error
                    os.killpg(process.pid, signal.SIGKILL)

    def ask_to_end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def has_ended(self) -> bool:
        """Return whether the process has ended; for use after `ask_to_end`."""
        if self.process is not None and self.process.poll() is None:
            return False
        self.state = "ended"
        return True

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.state = "ended"

    def describe(self) -> dict[str, Any]:
        """Return the service's entry in `state.json`."""
        return {
            "title": self.service.title,
            "state": self.state,
            "address": self.service.address,
            "port": self.service.port,
            "health": self.service.health,
            **({"pid": None} if self.process is None else lock.process_identity(self.process.pid)),
            "since": self.since,
            "restarts": self.restarts,
            "last": self.last,
            "log": str(self.log),
        }

    def _start(self) -> None:
        guard = [sys.executable, "-m", "cloze.flows.ui.process_guard"]
        self.since, self.state = time.time(), "starting"
        try:
            with open(self.log, "ab", opener=open_unlinked) as output:
                self.process = subprocess.Popen(
                    [*guard, *self.service.command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=self.environment,
                    start_new_session=True,  # Ctrl-C in the terminal reaches only the supervisor
                )
        except OSError as error:
            self._plan_restart(f"cannot start ({describe_os_error(error, str(self.log))})")

    def _ended(self, code: int) -> None:
        self.process = None
        self._cleaning = threading.Thread(target=self._end_leftovers, daemon=True)
        self._cleaning.start()
        # Who is killed by another cannot say why; who hangs at its start is killed by this process.
        hung = self.state == "starting" and time.time() > self.since + HUNG_SECONDS
        cause = last_error(self.log) if hung or code != -signal.SIGKILL else ""
        self._plan_restart(f"{describe_exit(code)}{cause}")

    def _plan_restart(self, last: str) -> None:
        """Have the server started again after a pause, or never; say so once for each cause."""
        is_stable = time.time() > self.since + STABLE_SECONDS
        was_up = self.state in ("up", "silent") if self.service.health else is_stable
        self._early_ends = 0 if was_up else self._early_ends + 1
        self._pause = FIRST_PAUSE if is_stable else self._pause
        most, remedy = next(REMEDIES[words] for words in REMEDIES if words in last)
        if self._early_ends >= most:
            self.state, self._not_before = "broken", math.inf
            self.messages.append(
                f"{self.service.title} {last} and is not started again: {remedy}, then start"
                f" `cloze ui` again; log: {self.log}"
            )
        else:
            self.state, self._not_before = "waiting", time.monotonic() + self._pause
            if last != self.last or was_up:
                self.messages.append(
                    f"{self.service.title} {last}; restart in {self._pause:.0f} s, log: {self.log}"
                )
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self.last = last
        self.restarts += 1

    def _end_leftovers(self) -> None:
        """End processes that the server left behind; flows of a worker save checkpoints."""
        leftovers = processes.marked_processes(self.log.parent, self.service.name)
        processes.end(leftovers, self.service.grace)


def last_error(log: Path) -> str:
    """Return the last error in a log, or else its last line, truncated and in brackets."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 16384))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    error = next((line for line in reversed(lines) if _ERROR.match(line)), lines[-1:] and lines[-1])
    return f" ({error[:MOST_CHARACTERS]})" if error else ""
