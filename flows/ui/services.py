"""The servers of `cloze ui`: commands, addresses, environment, start conditions."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cloze.core import places
from cloze.core.errors import UsageError
from cloze.core.processes import free_ports
from cloze.core.stages.execution import Execution
from cloze.flows.run import server_addresses
from cloze.flows.tracking.spool import tracking_uri
from cloze.flows.ui import processes
from cloze.flows.ui.loopback_guard import LOOPBACK, names, origins

POOL, HOME = "cloze", "prefect"  # of Prefect: pool of the flows; its home, below the state
GRACE_MARGIN = 20.0  # seconds for a flow to end and report, added to the ranks' grace period
SERVER_GRACE = 10.0
NEARBY = 50  # ports tried after the default one


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A server that the supervisor keeps running."""

    name: str  # name of the log and of the entry in `state.json`
    title: str
    module: tuple[str, ...]  # arguments of `python -m`
    port: int | None = None  # port that it listens on; None: none
    # URL that answers 200 when the server is up; None: up means that it runs
    health: str | None = None
    after_deploy: bool = False  # start only after the deployments were sent
    grace: float = SERVER_GRACE  # grace period in seconds

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", *self.module]

    @property
    def address(self) -> str | None:
        return None if self.port is None else address(self.port)


def address(port: int, host: str = LOOPBACK) -> str:
    return f"http://{host}:{port}"


def grace_seconds() -> float:
    """Return the grace period of a cancelled flow: that of the ranks plus a margin, in seconds."""
    return Execution().min_grace_seconds + GRACE_MARGIN


def services(prefect: int, mlflow: int | None) -> tuple[Service, ...]:
    """Return the servers in start order. Without a port, MLflow's server is left out."""
    servers = [
        Service(
            name="prefect",
            title="Prefect",
            module=("cloze.flows.ui.prefect_server", str(prefect)),
            port=prefect,
            health=f"{address(prefect)}/api/health",
        )
    ]
    if mlflow is not None:
        hosts, pages = ",".join(sorted(names(mlflow))), ",".join(origins(mlflow))
        servers.append(
            Service(
                name="mlflow",
                title="MLflow",
                module=(
                    "cloze.flows.ui.mlflow_server", "--host", LOOPBACK, "--port", str(mlflow),
                    "--workers", "1",
                    "--allowed-hosts", hosts, "--cors-allowed-origins", pages,
                ),
                port=mlflow,
                health=f"{address(mlflow)}/health",
            )
        )  # fmt: skip
    worker = f"cloze.flows.prefect.worker --pool {POOL} --type process --name"
    servers.append(
        Service(
            name="worker",
            title="Prefect's worker",
            module=(*worker.split(), f"cloze-ui {socket.gethostname()}"),
            after_deploy=True,
            grace=grace_seconds(),
        )
    )
    return tuple(servers)


def mlflow_elsewhere(runs: Path) -> str | None:
    """Return the address of the MLflow server in use; None: runs are recorded in a database."""
    uri = tracking_uri(runs)
    return without_user(uri.rstrip("/")) if uri.startswith(("http://", "https://")) else None


def without_user(url: str) -> str:
    """Return the URL without user and password."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return url if host == parts.netloc else parts._replace(netloc=host).geturl()


def environment(runs: Path, prefect_port: int, login: str) -> dict[str, str]:
    """Return the variables for all servers and flows: paths, addresses, login, no telemetry.

    Prefect's home is in the state directory, so the user's profiles and database are not changed.
    `PREFECT_HOME`, a database URL and authentication settings in the environment are kept.
    """
    directory = server_addresses.directory(runs).resolve()
    home = places.local_setting("CLOZE_HOME", ".")
    return {
        "PREFECT_API_URL": f"{address(prefect_port)}/api",
        "PREFECT_SERVER_API_AUTH_STRING": login,
        "PREFECT_API_AUTH_STRING": login,
        "PREFECT_HOME": str(places.local_setting("PREFECT_HOME", str(directory / HOME))),
        # Prefect's own place is its package, which this account may not be able to change
        "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(directory / HOME / "pages"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_SERVER_UI_V2_ENABLED": "false",  # calls a tracker; run links open V1
        "CLOZE_HOME": str(home.resolve()),  # working directory of deployed flows
        # seconds to wait for another writer of Prefect's SQLite; the default of 10 is too short on
        # a busy machine
        "PREFECT_SERVER_DATABASE_TIMEOUT": os.environ.get("PREFECT_SERVER_DATABASE_TIMEOUT")
        or "60",
        "DO_NOT_TRACK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # not an argument, which every user can read: it may contain a password
        "MLFLOW_BACKEND_STORE_URI": tracking_uri(runs),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # saves nine unused processes
        processes.MARK: str(directory),
        "CLOZE_RUNS_DIR": str(runs.resolve()),
    }


def choose_port(
    usual: int, requested: int | None, option: str, used_ports: Collection[int] = ()
) -> int:
    """Return a free port outside `used_ports`: the requested one, the default, or a later one.

    Raises UsageError: the port requested with `option` is not free.
    """
    if requested is not None:
        if requested in used_ports or not is_free(requested):
            raise UsageError(
                f"{option} {requested} is taken by another program; name another port, or leave"
                f" the option out"
            )
        return requested
    for port in range(usual, min(usual + NEARBY, 65536)):
        if port not in used_ports and is_free(port):
            return port
    return next(port for port in free_ports(len(used_ports) + 1) if port not in used_ports)


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Return whether a server could listen on this port of an address of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
