"""The process of `cloze ui`: starts the servers, keeps them alive one by one, sweeps, and ends all that it has started.

It holds the lease of `RUNS/.servers`, so there is one for a directory of runs. Children are started and tended by the main thread, at
every tick; asking them whether they are up, sending deployments and sweeping happen in threads of their own.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from flows.graph import addresses, sweep
from flows.servers import deployments, processes, state
from flows.servers.child import Child
from flows.servers.services import Service, environment, grace_seconds, mlflow_elsewhere
from pipeline.core.errors import ClozeError

TICK_SECONDS = 0.2
LOOK_SECONDS = 0.5  # at those that are not up
LOOK_RARELY_SECONDS = 10.0  # at the others
SWEEP_SECONDS = 60.0
DEPLOY_TRIES = 3


class Supervisor:
    """Keeps `services` until it is asked to stop. Use `run` from the main thread, holding the lease.

    Args:
        tell: shows a line to the person at the terminal.
        up: called once with the state when every service is up or given up.
    """

    def __init__(
        self, runs: Path, services: tuple[Service, ...], *, tell: Callable[[str], None], up: Callable[[dict[str, Any]], None]
    ) -> None:
        self.runs, self.tell, self.when_up = runs, tell, up
        self.directory = state.directory(runs)
        ports = {service.name: service.port for service in services}
        self.environment = environment(runs, ports["prefect"] or 0)
        self.api = self.environment["PREFECT_API_URL"]
        self.children = {service.name: Child(service, self.directory, self.environment) for service in services}
        self.deployments: list[str] = []
        self.swept: dict[str, Any] = {}
        self.state, self._written = "starting", ""
        self._deployed, self._deploy_ended = threading.Event(), threading.Event()
        self._asked, self._hurry, self._quiet = threading.Event(), threading.Event(), threading.Event()
        self._messages: list[str] = []

    def run(self) -> None:
        """Until SIGINT, SIGTERM or SIGHUP; a second one ends everything at once."""
        os.environ.update(self.environment)  # before Prefect is imported here
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            threads = [threading.Thread(target=work, daemon=True) for work in (self._look, self._deploy, self._sweep)]
            for thread in threads:
                thread.start()
            while not self._asked.wait(TICK_SECONDS):
                self._tend()
            self._end()
        finally:
            for child in self.children.values():
                child.kill()
            processes.end(processes.marked(self.directory), 0.0)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, *_: object) -> None:
        if self._asked.is_set():
            self._hurry.set()
        self._asked.set()

    def _tend(self) -> None:
        for child in self.children.values():
            child.tend(self._ready(child.service))
            while child.told:
                self.tell(child.told.pop(0))
        while self._messages:
            self.tell(self._messages.pop(0))
        if self.state == "starting" and self._settled():
            self.state = "up"
            self._write()
            self.when_up(self.describe())
        self._write()

    def _ready(self, service: Service) -> bool:
        return all(
            self._deployed.is_set() if name == "deployments" else self.children[name].has_been_up for name in service.after
        )

    def _settled(self) -> bool:
        def settled(child: Child) -> bool:
            stuck = child.state == "waiting" and self._deploy_ended.is_set() and not self._ready(child.service)
            return child.state in ("up", "given up") or stuck or (child.process is not None and child.is_slow)

        lost = self.children["prefect"].state == "given up"
        return all(settled(child) or (lost and child.service.after != ()) for child in self.children.values())

    def describe(self) -> dict[str, Any]:
        """The content of `state.json`."""
        return {
            "pid": os.getpid(),
            "started": processes.started(os.getpid()),
            "state": self.state,
            "mlflow": mlflow_elsewhere(self.runs),
            **{name: child.service.address for name, child in self.children.items() if child.service.address},
            "api": self.api,
            "deployments": self.deployments,
            "services": {name: child.describe() for name, child in self.children.items()},
            "swept": self.swept,
        }

    def _write(self) -> None:
        content = self.describe()
        if repr(content) != self._written:
            state.write(self.runs, content)
            self._written = repr(content)

    def _look(self) -> None:
        rarely = 0.0
        while not self._asked.wait(LOOK_SECONDS):
            all_too = time.monotonic() >= rarely
            for child in self.children.values():
                if all_too or child.state != "up":
                    child.look()
            if all_too:
                rarely = time.monotonic() + LOOK_RARELY_SECONDS

    def _deploy(self) -> None:
        prefect = self.children["prefect"]
        error: Exception | None = None
        while not self._asked.wait(TICK_SECONDS) and prefect.state != "given up":
            if not prefect.has_been_up:
                continue
            for _ in range(DEPLOY_TRIES):
                try:
                    self.deployments = deployments.send(self.api)
                    self._deployed.set()
                    break
                except Exception as failed:
                    error = failed
                    if self._asked.wait(1.0):
                        break
            else:
                self._messages.append(f"the deployments were not sent, so no worker is started: {_line(error)}")
            break
        self._deploy_ended.set()

    def _sweep(self) -> None:
        """At the start, as soon as Prefect can be told, and every minute."""
        while not self._asked.is_set():
            if self.children["prefect"].has_been_up:
                self._sweep_once()
                self._asked.wait(SWEEP_SECONDS)
            else:
                self._asked.wait(TICK_SECONDS)

    def _sweep_once(self) -> None:
        try:
            mended = sweep.sweep(self.runs, self.api)
            self._messages += mended
            kept = [*self.swept.get("mended", []), *mended][-20:]
            self.swept = {"at": time.time(), "mended": kept, "error": None}
        except Exception as error:  # a server that is down costs a sweep, never the servers
            self.swept = {**self.swept, "at": time.time(), "error": _line(error)}

    def _end(self) -> None:
        """Runs first, while what they report to is up; then the worker; then the rest."""
        self.state = "ending"
        self._write()
        self.tell("ending: runs are cancelled and save their checkpoints (Ctrl-C again ends everything at once) …")
        worker = self.children.get("worker")
        if self.children["prefect"].has_been_up and worker is not None and worker.process is not None:
            self._patiently(lambda: deployments.cancel_all(self.api, grace_seconds()), grace_seconds() + 10)
        if worker is not None:
            worker.ask_to_end()
            self._until(lambda: worker.wait(0), worker.service.grace + 5)
        if self.children["prefect"].has_been_up:
            self._patiently(self._sweep_once, 15)
        rest = list(self.children.values())[::-1]
        for child in rest:
            child.ask_to_end()
        self._until(
            lambda: all(child.wait(0) for child in rest),
            max(child.service.grace for child in rest if child is not worker) + 6,
        )
        (self.directory / addresses.STATE).unlink(missing_ok=True)

    def _patiently(self, work: Callable[[], object], seconds: float) -> None:
        """Do it in a thread, and go on when it is done, when the time is up, or at a second Ctrl-C."""

        def quietly() -> None:
            with suppress(Exception):
                work()

        thread = threading.Thread(target=quietly, daemon=True)
        thread.start()
        self._until(lambda: not thread.is_alive(), seconds)

    def _until(self, done: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not done() and time.monotonic() < deadline and not self._hurry.is_set():
            time.sleep(TICK_SECONDS / 2)


def _line(error: Exception | None) -> str:
    text = " ".join(str(error).split())[:300]
    return text if isinstance(error, ClozeError) else f"{type(error).__name__}: {text}"
