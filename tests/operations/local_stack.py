"""The services of compose.yaml as processes of this machine, for tests without containers.

    python -m tests.operations.local_stack up|down|status [--dir DIR] [--profiles core,data]
    python -m tests.operations.local_stack backup TARGET | restore SOURCE  [--dir DIR]

Commands, environments, health checks, start order and restarts are those of compose.yaml. What its
images bring must be installed: PostgreSQL and Redis (Debian: postgresql, redis-server), Java for
Flink, and in this Python cloze-pretraining[servers] and localbucket, a small S3 server that takes
the part of SeaweedFS. Linux only.

DIR (default: stack) has everything:

    env.sh          addresses and logins for a shell: `. DIR/env.sh`
    state.json      {"pid", "services": {NAME: {"state", "pid", "restarts", "address", "log"}}}
    logs/           output of each service
    secrets/        passwords, readable by their owner
    volumes/        data; `volumes/work` is the directory in which runs are made
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from infra.make_secrets import make_secrets
from tests.operations.local_services import LEFT_OUT, MARK, LocalServices, guarded

MODULE = "tests.operations.local_stack"
START_SECONDS, STOP_SECONDS, TICK_SECONDS, LONGEST_PAUSE = 400.0, 120.0, 0.2, 30.0


def seconds(text: str) -> float:
    """Return a duration of compose.yaml, such as 90s or 1m."""
    return float(text[:-1]) * {"s": 1, "m": 60}[text[-1]]


class Child:
    """A service's process and its health, or a job's.

    Attributes:
        state: waiting, starting, healthy, unhealthy, restarting; of a job also done or failed.
    """

    def __init__(self, services: LocalServices, name: str) -> None:
        self.services, self.name, self.spec = services, name, services.specs[name]
        self.is_job = self.spec.get("restart") == "no"
        self.environment, self.health = services.environment(name), services.health(name)
        self.log = services.directory / "logs" / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.check: subprocess.Popen[bytes] | None = None
        self.state, self.restarts, self.failures, self.pause = "waiting", 0, 0, 1.0
        self.started = self.next_start = self.next_check = 0.0

    def satisfies(self, condition: str) -> bool:
        """Return whether services may start that depend on this one."""
        if condition == "service_completed_successfully":
            return self.state == "done"
        return self.state == "healthy" or (condition == "service_started" and bool(self.process))

    def start(self) -> None:
        self.started, self.failures, self.next_check = time.monotonic(), 0, 0.0
        with self.log.open("ab") as log:
            try:
                user = self.services.prepare(self.name, self.environment)
                self.process = subprocess.Popen(
                    [*guarded(user), *self.services.command(self.name)],
                    env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True, cwd="/" if user else None,
                )  # fmt: skip
            except (OSError, subprocess.SubprocessError) as error:
                log.write(f"cannot start: {error}\n".encode())
                self._note_end(1)
            else:
                self.state = "starting" if self.health or self.is_job else "healthy"

    def supervise(self) -> None:
        """Check the health of the process; note its end."""
        if self.process is None:
            return
        code = self.process.poll()
        if code is None:
            self._check_health()
        else:
            self.end()
            self._note_end(code)

    def _note_end(self, code: int) -> None:
        if self.is_job:
            self.state = "failed" if code else "done"
            return
        is_young = time.monotonic() - self.started < 60
        self.pause = min(2 * self.pause, LONGEST_PAUSE) if is_young else 1.0
        self.state, self.restarts = "restarting", self.restarts + 1
        self.next_start = time.monotonic() + self.pause

    def _check_health(self) -> None:
        """Start a check that is due; note the result of one that has ended or takes too long."""
        if self.health is None or self.is_job:
            return
        settings, now = self.spec["healthcheck"], time.monotonic()
        if self.check is None and now >= self.next_check:
            self.check = subprocess.Popen(
                self.health, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            self.next_check = now + seconds(settings["timeout"])
        elif self.check and (self.check.poll() is not None or now > self.next_check):
            code = self.check.poll()
            self.check.kill()
            self.check.wait()
            self.check = None
            self.failures = 0 if code == 0 else self.failures + 1
            if code == 0:
                self.state = "healthy"
            elif self.state == "healthy" and self.failures >= settings["retries"]:
                self.state = "unhealthy"
            interval = "start_interval" if self.state == "starting" else "interval"
            self.next_check = now + seconds(settings[interval])

    def end(self) -> None:
        """Kill what the ended process has left behind, as the end of a container does."""
        self.process = self.check = None  # a check is one of its descendants
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(MARK) == self.environment[MARK]:
                    process.kill()


class Supervisor:
    """Starts services in their order, and again when they end, until SIGTERM."""

    def __init__(self, services: LocalServices, names: list[str]) -> None:
        self.services, self.written, self.is_stopping = services, "", False
        self.children = {name: Child(services, name) for name in names}

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        while not self.is_stopping:
            for child in self.children.values():
                child.supervise()
                if self._may_start(child):
                    child.start()
            self._write()
            time.sleep(TICK_SECONDS)
        self._end()

    def _stop(self, *_: object) -> None:
        self.is_stopping = True

    def _may_start(self, child: Child) -> bool:
        if child.state == "restarting":
            return time.monotonic() >= child.next_start
        dependencies = child.spec.get("depends_on", {})
        return child.state == "waiting" and all(
            self.children[name].satisfies(dependency["condition"])
            for name, dependency in dependencies.items()
            if name in self.children
        )

    def _write(self) -> None:
        """Write `state.json` if it has changed."""
        rows = {
            name: {
                "state": child.state,
                "pid": child.process.pid if child.process else None,
                "restarts": child.restarts,
                "address": self.services.addresses[name],
                "log": str(child.log),
            }
            for name, child in self.children.items()
        }
        text = json.dumps({"pid": os.getpid(), "services": rows}, indent=1)
        if text != self.written:
            temporary = self.services.directory / "state.json.tmp"
            temporary.write_text(text)
            temporary.replace(self.services.directory / "state.json")
            self.written = text

    def _end(self) -> None:
        """End each service when all that depend on it have ended."""
        deadlines: dict[str, float] = {}
        while alive := [child for child in self.children.values() if child.process]:
            needed = {name for child in alive for name in child.spec.get("depends_on", {})}
            for child in alive:
                if child.process is None or child.process.poll() is not None:
                    child.end()
                elif child.name not in deadlines and child.name not in needed:
                    child.process.send_signal(
                        signal.Signals[child.spec.get("stop_signal", "SIGTERM")]
                    )
                    grace = seconds(child.spec.get("stop_grace_period", "10s"))
                    deadlines[child.name] = time.monotonic() + grace
                elif time.monotonic() > deadlines.get(child.name, float("inf")):
                    child.process.kill()
            time.sleep(TICK_SECONDS)
        (self.services.directory / "state.json").unlink(missing_ok=True)


class Stack:
    """The commands.

    Args:
        names: services to start; those of LEFT_OUT are not.
    """

    def __init__(self, directory: Path, names: list[str]) -> None:
        self.services = LocalServices(directory)
        self.names = [name for name in names if name not in LEFT_OUT]
        self.left_out = [name for name in names if name in LEFT_OUT]
        self.directory = self.services.directory

    def state(self) -> dict[str, Any]:
        """Return `state.json`; empty: no supervisor lives."""
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            state: dict[str, Any] = json.loads((self.directory / "state.json").read_text())
            if str(self.directory) in psutil.Process(state["pid"]).cmdline():
                return state
        return {}

    def up(self) -> None:
        """Start the services unless they run; return when all are up.

        If one of them is missing or a job has failed, all are ended and started again.

        Raises:
            SystemExit: a job fails, or a service is not healthy in time.
        """
        for name in ("logs", "volumes"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        make_secrets(self.directory / "secrets")
        self.services.write_env()
        supervisor, running = None, self.state().get("services", {})
        if not set(self.names) <= set(running) or _failed(running):
            self.down()
            self.names = list(dict.fromkeys((*running, *self.names)))
            with (self.directory / "logs" / "supervisor.log").open("ab") as log:
                supervisor = subprocess.Popen(
                    [sys.executable, "-m", MODULE, "run", *self.names, "--dir", str(self.directory)],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while not all(s["state"] in ("healthy", "done") for s in self._rows().values()):
            has_ended = supervisor is not None and supervisor.poll() is not None
            if _failed(self._rows()) or has_ended or time.monotonic() > deadline:
                with contextlib.suppress(SystemExit):
                    self.status()
                sys.exit(f"not up; see {self.directory}/logs")
            time.sleep(TICK_SECONDS)
        self.status()
        for name in self.left_out:
            print(f"{name} is left out: no package of Debian or PyPI has it; it runs in containers")
        print(f"In your shell: . {self.directory}/env.sh")

    def _rows(self) -> dict[str, Any]:
        return self.state().get("services") or {name: {"state": "waiting"} for name in self.names}

    def status(self) -> None:
        state = self.state()
        for name, service in state.get("services", {}).items():
            ports = ", ".join(
                f"http{'s' * port.endswith('443')}://{service['address']}:{port.rsplit(':', 1)[-1]}"
                for port in self.services.specs[name].get("ports", ())
            )
            restarts = f"restarted {service['restarts']} times" if service["restarts"] else ""
            line = f"{name:<20} {service['state']:<10} {service['pid'] or '':>8}  {ports}{restarts}"
            print(line.rstrip())
        if not state:
            sys.exit(f"nothing runs in {self.directory}; `up` starts it")

    def down(self) -> None:
        """End the services; return when all have ended."""
        deadline = time.monotonic() + STOP_SECONDS
        if state := self.state():
            os.kill(state["pid"], signal.SIGTERM)
        while self.state():
            if time.monotonic() > deadline:
                sys.exit(f"process {state['pid']} does not end; see {self.directory}/logs")
            time.sleep(TICK_SECONDS)

    def admin(self, word: str, directory: str) -> None:
        """Run admin.py in the environment of the service `tools`."""
        command = self.services.command("tools", ["python", "/opt/cloze/admin.py", word])
        environment = self.services.environment("tools")
        subprocess.run([*command, directory], env=environment, check=True)

    def restore(self, source: str) -> None:
        """Replace all data by a backup, then start everything."""
        self.down()
        data = Stack(self.directory, ["postgres", "store"])
        try:
            data.up()
            data.admin("restore", source)
        finally:
            data.down()
        self.up()


def _failed(services: dict[str, Any]) -> bool:
    return any(service["state"] == "failed" for service in services.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words = ["up", "down", "status", "backup", "restore", "run"]
    parser.add_argument("command", choices=words)
    parser.add_argument("arguments", nargs="*")
    parser.add_argument("--dir", type=Path, default=Path("stack"))
    parser.add_argument("--profiles", default="core,data,gpu")
    options = parser.parse_args()
    directory = options.dir.resolve()
    names = LocalServices(directory).of_profiles(set(options.profiles.split(",")))
    stack = Stack(directory, names)
    match options.command:
        case "up" | "down" | "status":
            getattr(stack, options.command)()
        case "backup":
            stack.admin("backup", str(Path(options.arguments[0]).resolve()))
        case "restore":
            stack.restore(str(Path(options.arguments[0]).resolve()))
        case "run":  # the supervisor, which `up` starts
            Supervisor(stack.services, options.arguments).run()


if __name__ == "__main__":
    main()
