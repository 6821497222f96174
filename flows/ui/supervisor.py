"""The process of `cloze ui`: keeps the servers running, marks zombie runs, and stops everything.

It holds the lock of `RUNS/.servers`, so a runs directory has one supervisor. The main thread starts
and restarts servers. Health checks, calls to Prefect and the dashboard each have a thread.
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

from cloze.core import errors
from cloze.core.errors import ClozeError
from cloze.core.processes import wait_until
from cloze.flows.prefect import sweep
from cloze.flows.run import server_addresses
from cloze.flows.ui import dashboard, login, processes
from cloze.flows.ui.service_process import ServiceProcess
from cloze.flows.ui.services import (
    POOL,
    Service,
    address,
    environment,
    grace_seconds,
    mlflow_elsewhere,
)

TICK_SECONDS = 0.2
HEALTH_SECONDS, RARE_HEALTH_SECONDS = 0.5, 10.0  # between checks; the latter while all are up
START_SECONDS = 150.0  # the addresses are printed after this, even if a server is not up
SWEEP_SECONDS, DEPLOY_SECONDS = 60.0, 5.0  # until the next sweep or the next attempt to deploy


class Supervisor:
    """Supervisor of services until it is asked to stop. Call `run` in the main thread.

    `on_up`: called once with the state, when every service is up or has failed.
    """

    def __init__(
        self,
        runs: Path,
        services: tuple[Service, ...],
        page_port: int,
        *,
        report: Callable[[str], None],
        on_up: Callable[[dict[str, Any]], None],
    ) -> None:
        self.runs, self.page_port, self.report, self.on_up = runs, page_port, report, on_up
        self.directory = server_addresses.directory(runs)
        ports = {service.name: service.port for service in services}
        self.login = login.create(self.directory)
        self.environment = environment(runs, ports["prefect"] or 0, self.login)
        self.api = self.environment["PREFECT_API_URL"]
        self.children = {
            service.name: ServiceProcess(service, self.directory, self.environment)
            for service in services
        }
        self.deployments: list[str] | None = None  # None: not sent yet
        self.state, self._written = "starting", ""
        self._stop_requested, self._hurry = threading.Event(), threading.Event()
        self._page_listens = threading.Event()
        self._messages: list[str] = []
        self._asked = 0.0  # when, on the monotonic clock

    def run(self) -> None:
        """Supervise until SIGINT, SIGTERM or SIGHUP; a second SIGINT ends everything at once."""
        os.environ.update(self.environment)  # before Prefect is imported
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        previous_handlers = {number: signal.signal(number, self._stop) for number in signals}
        try:
            for work in (self._serve_page, self._check_health, self._talk_to_prefect):
                threading.Thread(target=work, daemon=True).start()
            deadline = time.monotonic() + START_SECONDS
            while not self._stop_requested.wait(TICK_SECONDS):
                self._supervise()
                if self.state == "starting" and (self._is_up() or time.monotonic() > deadline):
                    self.state = "up"
                    self._write()
                    self.on_up(self.describe())
            self._end()
        finally:
            for child in self.children.values():
                child.kill()
            processes.end(processes.marked_processes(self.directory), 0.0)
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)

    def describe(self) -> dict[str, Any]:
        """Return the content of `state.json`."""
        services = self.children.items()
        return {
            "pid": os.getpid(),
            "state": self.state,
            "page": address(self.page_port),
            "mlflow": mlflow_elsewhere(self.runs),
            **{name: child.service.address for name, child in services if child.service.address},
            "api": self.api,
            "login": str(self.directory.resolve() / server_addresses.LOGIN),
            "deployments": self.deployments or [],
            "services": {name: child.describe() for name, child in services},
        }

    def _stop(self, number: int, _: object) -> None:
        # systemd sends SIGHUP after SIGTERM, and the shell of a closed terminal a second SIGHUP
        if not self._stop_requested.is_set():
            self._asked = time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self._asked >= errors.ECHO_SECONDS:
            self._hurry.set()
        self._stop_requested.set()

    def _supervise(self) -> None:
        is_deployed = self.deployments is not None and self.children["prefect"].state == "up"
        for child in self.children.values():
            child.supervise(not child.service.after_deploy or is_deployed)
            self._messages += child.messages
            child.messages.clear()
        while self._messages:
            self.report(self._messages.pop(0))
        self._write()

    def _is_up(self) -> bool:
        """Return whether the page and every service are up, or it has ended before it was up."""
        failed = self.children["prefect"].restarts > 0
        return self._page_listens.is_set() and all(
            child.state == "up" or child.restarts > 0 or (child.service.after_deploy and failed)
            for child in self.children.values()
        )

    def _write(self) -> None:
        content = self.describe()
        if repr(content) != self._written:
            server_addresses.write(self.runs, content)
            self._written = repr(content)

    def _serve_page(self) -> None:
        announce = self._page_listens.set
        dashboard.serve(self.runs, self.page_port, login=self.login, announce=announce)

    def _check_health(self) -> None:
        seconds = HEALTH_SECONDS
        while not self._stop_requested.wait(seconds):
            for child in self.children.values():
                child.check_health()
            all_up = all(child.state == "up" for child in self.children.values())
            seconds = RARE_HEALTH_SECONDS if all_up else HEALTH_SECONDS

    def _talk_to_prefect(self) -> None:
        """Send the deployments when Prefect is up, then sweep every minute."""
        from cloze.flows.prefect.deploy import deploy

        prefect, error = self.children["prefect"], ""
        while not self._stop_requested.wait(TICK_SECONDS):
            if not prefect.has_been_up:
                continue
            try:
                if self.deployments is None:
                    deployed = deploy(self.api)
                    self._messages += deployed.changes
                    self.deployments = deployed.deployments
                self._messages += sweep.sweep(self.runs, self.api)
                error = ""
            except Exception as failed:  # including a temporary outage of the server
                if _error_line(failed) != error and prefect.state == "up":
                    error = _error_line(failed)
                    self._messages.append(f"Prefect: {error}; the next try follows")
            self._stop_requested.wait(DEPLOY_SECONDS if self.deployments is None else SWEEP_SECONDS)

    def _end(self) -> None:
        """Cancel flow runs while the servers are up, then end the worker, then the others."""
        self.state = "ending"
        self._write()
        self.report(
            "ending: runs are cancelled and save their checkpoints"
            " (Ctrl-C again ends everything at once) …"
        )
        worker = self.children["worker"]
        others = [child for child in self.children.values() if child is not worker][::-1]
        if worker.process is not None:
            seconds = grace_seconds()
            self._in_time(lambda: sweep.cancel_all(self.api, POOL, seconds), seconds + 10)
            self._end_children([worker])
            self._in_time(lambda: sweep.sweep(self.runs, self.api), 15)
        self._end_children([worker, *others])
        (self.directory / server_addresses.STATE).unlink(missing_ok=True)

    def _end_children(self, children: list[ServiceProcess]) -> None:
        for child in children:
            child.ask_to_end()
        seconds = max(child.service.grace for child in children) + 5
        self._until(lambda: all(child.has_ended() for child in children), seconds)

    def _in_time(self, work: Callable[[], object], seconds: float) -> None:
        """Run `work` in a thread; wait until it ends, the time is over or Ctrl-C comes again."""

        def quietly() -> None:
            with suppress(Exception):
                work()

        thread = threading.Thread(target=quietly, daemon=True)
        thread.start()
        self._until(lambda: not thread.is_alive(), seconds)

    def _until(self, done: Callable[[], bool], seconds: float) -> None:
        wait_until(lambda: done() or self._hurry.is_set(), seconds, TICK_SECONDS / 2)


def _error_line(error: Exception) -> str:
    text = " ".join(str(error).split())[:300]
    return text if isinstance(error, ClozeError) else f"{type(error).__name__}: {text}"
