"""The servers of `cloze ui`: what each is started with, where it answers, and what it needs before it."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from flows.servers import processes, state
from flows.servers.hosts import names, origins
from flows.servers.ports import LOOPBACK
from flows.tracking.spool import tracking_uri
from pipeline.core.execution import Execution

POOL = "cloze"
GRACE_MARGIN = 20.0  # beside the ranks' time for a checkpoint: for the flow to end, and for Prefect to hear of it
SERVER_GRACE = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A server that the supervisor keeps alive.

    Attributes:
        name: of its log, and of its line on our page.
        module: what `python -m` runs, with its arguments.
        address: of its pages; None: it has none.
        health: a URL that answers 200 when it is up; None: it is up when it runs.
        after: the services that must have been up once before it is started, and `deployments`, which must have been sent.
        grace: seconds that it has to end.
    """

    name: str
    title: str
    module: tuple[str, ...]
    port: int | None = None
    address: str | None = None
    health: str | None = None
    after: tuple[str, ...] = ()
    grace: float = SERVER_GRACE

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", *self.module]


def address(port: int) -> str:
    return f"http://{LOOPBACK}:{port}"


def grace_seconds() -> float:
    """How long a flow has to end when it is cancelled: the ranks' time for a checkpoint, and some."""
    return Execution().least_grace + GRACE_MARGIN


def services(runs: Path, *, prefect: int, mlflow: int | None, page: int) -> tuple[Service, ...]:
    """All of them, in the order of their start; they are ended the other way round. Without a port for it, MLflow's is elsewhere."""
    ours = (
        Service(
            name="page",
            title="The page of runs",
            module=("flows.servers.page", str(page)),
            port=page,
            address=address(page),
            health=f"{address(page)}/health",
        ),
        Service(
            name="prefect",
            title="Prefect",
            module=("flows.servers.prefect_server", str(prefect)),
            port=prefect,
            address=address(prefect),
            health=f"{address(prefect)}/api/health",
        ),
        Service(
            name="mlflow",
            title="MLflow",
            module=mlflow_module(mlflow or 0),
            port=mlflow,
            address=address(mlflow or 0),
            health=f"{address(mlflow or 0)}/health",
        ),
        Service(
            name="worker",
            title="Prefect's worker",
            module=(
                "prefect",
                "worker",
                "start",
                "--pool",
                POOL,
                "--type",
                "process",
                "--name",
                f"cloze-ui {socket.gethostname()}",
            ),
            after=("prefect", "deployments"),
            grace=grace_seconds(),
        ),
    )
    return tuple(service for service in ours if service.name != "mlflow" or mlflow is not None)


def mlflow_elsewhere(runs: Path) -> str | None:
    """The address of the MLflow server that runs record to already; None: they write to a store, and a server for it is ours to start."""
    uri = tracking_uri(runs)
    return without_user(uri.rstrip("/")) if uri.startswith(("http://", "https://")) else None


def without_user(url: str) -> str:
    """The URL without the user and the password that it may hold."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def mlflow_module(port: int) -> tuple[str, ...]:
    """MLflow's server over the store that `environment` names; one process is enough for one machine's users."""
    return (
        "mlflow", "server", "--host", LOOPBACK, "--port", str(port), "--workers", "1",
        "--allowed-hosts", ",".join(sorted(names(port))), "--cors-allowed-origins", ",".join(origins(port)),
    )  # fmt: skip


def environment(runs: Path, prefect_port: int) -> dict[str, str]:
    """What every server and every flow gets beside what this process has: where things are, and telemetry off.

    Prefect's home lies with the state, so the user's own profiles and database are neither read nor written. A `PREFECT_HOME` that
    is set is taken as it is, and so is a database or an authentication that the environment names.
    """
    place = state.directory(runs).resolve()
    home = Path(os.environ.get("CLOZE_HOME") or Path.cwd())
    return {
        "PREFECT_API_URL": f"{address(prefect_port)}/api",
        "PREFECT_HOME": os.environ.get("PREFECT_HOME") or str(place / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "CLOZE_HOME": str(home.resolve()),  # where deployed flows run
        # Prefect's SQLite is one server's alone, in WAL; who waits for a writer on a busy machine waits a minute, not ten seconds
        "PREFECT_SERVER_DATABASE_TIMEOUT": os.environ.get("PREFECT_SERVER_DATABASE_TIMEOUT") or "60",
        "DO_NOT_TRACK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # no argument of the server's, which every user of the machine sees: it may hold a password
        "MLFLOW_BACKEND_STORE_URI": tracking_uri(runs),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # else MLflow keeps nine more processes, for evaluations that we do not start
        processes.MARK: str(place),
        "CLOZE_RUNS": str(runs.resolve()),
    }
