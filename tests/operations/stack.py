"""The stack of infra/ in a directory of a test's own: started, killed piece by piece, ended."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import REPOSITORY

STACK = "tests.operations.local_stack"
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
PROGRAMS = ("redis-server", "setpriv", "java")
PACKAGES = ("prefect_redis", "flask_wtf", "localbucket", "boto3", "psycopg2")
# Java's best compiler does not pay in programs of seconds
JAVA = {"JVM_ARGS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def why_not() -> str:
    """Return what this machine lacks to run the stack; empty: nothing."""
    import importlib.util

    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    absent += [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if not list(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        absent.append("postgresql")
    return f"the stack needs {', '.join(absent)}" if absent else ""


class LocalStack:
    """A running stack.

    Attributes:
        home: working directory of its flows, with `runs`.
    """

    def __init__(self, directory: Path, flink_jar: str, profiles: str) -> None:
        self.directory, self.profiles = directory, profiles
        self.home = directory / "volumes" / "work"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "MLFLOW"))}
        self.environment = {**inherited, **JAVA, "CLOZE_FLINK_CLASSPATH": flink_jar}
        packages = os.pathsep.join(
            filter(None, [str(REPOSITORY / "src"), str(REPOSITORY), os.environ.get("PYTHONPATH")])
        )
        self.environment["PYTHONPATH"] = packages

    def command(self, *words: str, check: bool = True) -> str:
        """A command of local_stack.py; what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", STACK, *words, "--dir", str(self.directory),
                "--profiles", self.profiles],
            env=self.environment, capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def services(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.directory / "state.json").read_text())
        return state["services"]  # type: ignore[no-any-return]

    def login(self) -> dict[str, str]:
        """The variables of `env.sh`."""
        script = f". {self.directory}/env.sh && env -0"
        output = subprocess.run(
            ["sh", "-c", script], env=self.environment, capture_output=True, text=True, check=True
        ).stdout
        return dict(line.split("=", 1) for line in output.split("\0") if "=" in line)

    def cloze(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`cloze`, with the stack known."""
        done = subprocess.run(
            [sys.executable, "-m", "cloze", *words], env=self.login(), cwd=self.home,
            capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def call(self, path: str, body: Any = None) -> Any:
        """GET of Prefect's API, or POST of `body`."""
        login = self.login()
        user = base64.b64encode(login["PREFECT_API_AUTH_STRING"].encode()).decode()
        request = urllib.request.Request(
            f"{login['PREFECT_API_URL']}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Basic {user}"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)

    def trigger(self, name: str, **parameters: Any) -> str:
        """Run a deployment; the flow run's id."""
        deployment = self.call(f"/deployments/name/{name}")["id"]
        path = f"/deployments/{deployment}/create_flow_run"
        return str(self.call(path, {"parameters": parameters})["id"])

    def flow_state(self, flow_run: str) -> str:
        """The type of a flow run's state, or the error of a server that is down."""
        try:
            return str(self.call(f"/flow_runs/{flow_run}")["state"]["type"])
        except OSError as error:
            return str(error)

    def end_of(self, flow_run: str, seconds: float = 900.0) -> str:
        """The state in which a flow run ends."""
        return self.until(lambda: (s := self.flow_state(flow_run)) in ENDED and s, seconds)

    @staticmethod
    def until(what: Callable[[], Any], seconds: float = 300.0) -> Any:
        """The first result of `what` that is true."""
        deadline = time.monotonic() + seconds
        while not (result := what()):
            assert time.monotonic() < deadline, f"not true after {seconds:.0f} s: {result!r}"
            time.sleep(0.5)
        return result

    def kill(self, name: str) -> int:
        """kill -9 of a service's process; its number."""
        pid = int(self.services()[name]["pid"])
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_until_back(self, name: str, pid: int, seconds: float = 300.0) -> float:
        """Wait until a killed service is healthy again; the seconds that it took."""
        begin = time.monotonic()
        while True:
            service = self.services()[name]
            if service["state"] == "healthy" and service["pid"] != pid:
                return time.monotonic() - begin
            assert time.monotonic() - begin < seconds, (
                name,
                Path(service["log"]).read_text()[-2000:],
            )
            time.sleep(0.2)

    def processes(self, name: str) -> list[psutil.Process]:
        """The processes of this stack whose command contains `name`."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                mark = process.environ().get("CLOZE_STACK_SERVICE", "")
                if mark.startswith(f"{self.directory}:") and name in " ".join(process.cmdline()):
                    found.append(process)
        return found


@contextlib.contextmanager
def started(flink_jar: str, profiles: str) -> Iterator[LocalStack]:
    """A stack that is up. Skips where this machine lacks something."""
    if reason := why_not():
        pytest.skip(reason)
    # not below pytest's directory, which PostgreSQL's user may not enter
    directory = Path(tempfile.mkdtemp(prefix="cloze-stack-"))
    directory.chmod(0o711)
    stack = LocalStack(directory, flink_jar, profiles)
    try:
        stack.command("up")
        yield stack
    finally:
        stack.command("down", check=False)
        left = stack.processes("")
        shutil.rmtree(directory, ignore_errors=True)
    assert not left
