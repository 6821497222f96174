"""The servers of `cloze ui` as child processes: started in order, watched, and ended together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

from flows.graph import plan
from flows.tracking.spool import tracking_uri
from flows.views import terminal
from pipeline.core.errors import ClozeError, UsageError

START_SECONDS = 120.0
STOP_SECONDS = 60.0  # for a worker whose flow is training: the ranks have `run.grace_seconds` (25) to save a checkpoint
POOL = "cloze"
PREFECT_YAML = Path(__file__).parent.parent.parent / "prefect.yaml"


def answers(url: str) -> bool:
    """Whether a GET of `url` succeeds."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until `url` answers; `ClozeError` if the process ends or the time is up."""
    deadline = time.monotonic() + START_SECONDS
    while not answers(url):
        if process.poll() is not None or time.monotonic() > deadline:
            raise ClozeError(f"{url} did not come up{_last_line(log)}; its output is in {log}")
        time.sleep(0.3)


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return f" ({lines[-1]})" if lines else ""


def check_free(port: int, option: str) -> None:
    """Refuse a port that somebody listens on: whatever answers there is not ours.

    Raises:
        UsageError: the port is taken; `option` names another.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(
                f"port {port} is taken by another program, perhaps another `cloze ui`; stop that, or pass {option} with another port"
            ) from error


class Servers:
    """A context manager that ends every process it has started, and all that these have started, the last one first.

    Each leads a session of its own, so that Ctrl-C reaches this process alone, which ends them in order: a worker, whose flow may have
    a checkpoint to save, while the server that it reports to still runs.
    """

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, arguments: list[str], environment: dict[str, str]) -> tuple[subprocess.Popen[bytes], Path]:
        log = self.logs / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self.processes[name] = process
        return process, log

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + STOP_SECONDS
        for process in reversed(self.processes.values()):
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def prefect_environment(port: int) -> dict[str, str]:
    """What a client of the server on `port` and its flows need, telemetry off."""
    return {
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "CLOZE_HOME": os.environ.get("CLOZE_HOME") or str(Path.cwd()),  # where deployed flows run, and find ./runs
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


def start_prefect(servers: Servers, port: int) -> dict[str, str]:
    """A server on `port`, the work pool, the deployments of `prefect.yaml`, and a worker. Returns the clients' environment."""
    environment = prefect_environment(port)
    server, log = servers.start(
        "prefect-server", ["prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)], environment
    )
    wait_for(f"http://127.0.0.1:{port}/api/health", server, log)
    for arguments in (
        ["work-pool", "create", POOL, "--type", "process", "--overwrite"],
        ["deploy", "--all", "--prefect-file", str(PREFECT_YAML)],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
            env={**os.environ, **environment}, capture_output=True, text=True, check=False, cwd=PREFECT_YAML.parent,
        )  # fmt: skip
        if done.returncode:
            raise ClozeError(f"prefect {arguments[0]} failed: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    servers.start("prefect-worker", ["prefect", "worker", "start", "--pool", POOL, "--type", "process"], environment)
    return environment


def run_all(prefect_port: int, mlflow_port: int) -> None:
    """Bring everything up, print the addresses, and wait until one ends or the user stops it."""
    if not PREFECT_YAML.exists():
        raise UsageError(f"{PREFECT_YAML} is missing; run `cloze ui` from an installation in a checkout of the repository")
    check_free(prefect_port, "--prefect-port")
    check_free(mlflow_port, "--mlflow-port")
    screen = terminal.console()
    runs = plan.runs_directory()
    with Servers(runs / ".servers") as servers:
        screen.print("starting Prefect …")
        start_prefect(servers, prefect_port)
        screen.print("starting MLflow …")
        mlflow, log = servers.start(
            "mlflow",
            ["mlflow", "server", "--backend-store-uri", tracking_uri(runs), "--host", "127.0.0.1", "--port", str(mlflow_port)],
            prefect_environment(prefect_port),
        )
        wait_for(f"http://127.0.0.1:{mlflow_port}/health", mlflow, log)
        screen.print(f"Prefect  http://127.0.0.1:{prefect_port}   deployments: cloze/full-run, nightly-evaluation/nightly")
        screen.print(f"MLflow   http://127.0.0.1:{mlflow_port}   experiment: cloze")
        screen.print("Ctrl-C ends them.")
        with suppress(KeyboardInterrupt):
            while all(process.poll() is None for process in servers.processes.values()):
                time.sleep(1)
            dead = [name for name, process in servers.processes.items() if process.poll() is not None]
            raise ClozeError(f"{dead[0]} ended; its output is in {servers.logs / dead[0]}.log")
