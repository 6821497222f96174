"""The command `cloze ui`: supervise the servers, or print the addresses of running ones."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.console import Console
from rich.markup import escape

from cloze.core import places
from cloze.core.accounts import owner
from cloze.core.artifacts import lock
from cloze.core.errors import UsageError, require_packages
from cloze.core.humanize import agree
from cloze.core.processes import wait_until
from cloze.flows.run import server_addresses
from cloze.flows.tracking import database, spool_state
from cloze.flows.tracking.spool import DIRECTORY, tracking_uri
from cloze.flows.ui import login, processes
from cloze.flows.ui.login import LOGIN_PATH
from cloze.flows.ui.services import HOME, choose_port, grace_seconds, mlflow_elsewhere, services
from cloze.flows.ui.supervisor import Supervisor
from cloze.flows.views import terminal

USUAL_PORTS = {"prefect": 4200, "mlflow": 5000, "page": 8090}
START_SECONDS = 180.0  # a second `cloze ui` waits this long for the addresses
TITLES = {"page": "Runs", "prefect": "Prefect", "mlflow": "MLflow"}


def runs_of_home() -> Path:
    """Return `$CLOZE_RUNS_DIR`, or `runs`, below `$CLOZE_HOME` or the working directory."""
    return (places.local_setting("CLOZE_HOME", ".") / places.runs_directory()).resolve()


def serve(requested: Mapping[str, int | None], as_json: bool) -> None:
    """Supervise until Ctrl-C, or print the addresses of the running servers.

    `requested`: ports of `page`, `prefect` and `mlflow`; None: the default or the next free one.

    Raises UsageError: a requested port is taken, or the servers run on another one.
    """
    require_packages("prefect", "mlflow")
    runs, screen = runs_of_home(), terminal.console()
    directory = server_addresses.directory(runs)
    if not server_addresses.is_running(runs):
        os.umask(os.umask(0o077) | 0o022)  # clients send a login to the addresses written there
        try:
            with lock.locked(str(directory)):
                directory.chmod(directory.stat().st_mode & ~0o022)
                _supervise(runs, requested, screen, as_json)
            return
        except UsageError:
            if not server_addresses.is_running(runs):
                raise
            # another `cloze ui` started first
    _attach(runs, requested, screen, as_json)


def _supervise(
    runs: Path, requested: Mapping[str, int | None], screen: Console, as_json: bool
) -> None:
    directory = server_addresses.directory(runs)
    (directory / server_addresses.STATE).unlink(missing_ok=True)
    (home := directory / HOME).mkdir(mode=0o700, exist_ok=True)
    home.chmod(0o700)  # Prefect's database has the secrets of blocks, and their key
    leftovers = processes.marked_processes(directory)
    if leftovers:  # its supervisor was killed; flows save checkpoints
        screen.print(agree(f"ending {len(leftovers)} processes of an earlier `cloze ui` …"))
        processes.end(leftovers, grace_seconds())
    default_ports = dict(USUAL_PORTS)
    if elsewhere := mlflow_elsewhere(runs):
        del default_ports["mlflow"]
        if requested["mlflow"] is not None:
            raise UsageError(
                f"--mlflow-port {requested['mlflow']}: runs record to {elsewhere};"
                " unset MLFLOW_TRACKING_URI for a server here"
            )
    ports: dict[str, int] = {}
    # requested ports first
    for name in sorted(default_ports, key=lambda name: requested[name] is None):
        ports[name] = choose_port(
            default_ports[name], requested[name], _option(name), ports.values()
        )

    def report(line: str) -> None:
        screen.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {escape(line)}", soft_wrap=True)

    def on_up(now: Mapping[str, Any]) -> None:
        show(now, screen, as_json)
        screen.print("Ctrl-C ends them.")

    screen.print("starting Prefect, MLflow and the dashboard …")
    if (file := database.path_of(tracking_uri(runs))) and file.exists() and database.is_older(file):
        screen.print(f"MLflow migrates {file}: no run writes to it meanwhile, records wait")
    servers = services(ports["prefect"], ports.get("mlflow"))
    Supervisor(runs, servers, ports["page"], report=report, on_up=on_up).run()


def _attach(
    runs: Path, requested: Mapping[str, int | None], screen: Console, as_json: bool
) -> None:
    def is_settled() -> bool:
        now = server_addresses.servers(runs).get("state", "starting")
        return now not in ("starting", "ending") or not server_addresses.is_running(runs)

    wait_until(is_settled, START_SECONDS, 0.2)
    servers = server_addresses.servers(runs)
    if not servers:
        raise UsageError(f"the `cloze ui` of {runs} has just ended; run it again")
    for name, port in requested.items():
        if port is not None and not str(servers[name]).endswith(f":{port}"):
            raise UsageError(
                f"{_option(name)} {port}: these servers run already, at {servers[name]}, in process"
                f" {servers['pid']}; end that one first"
            )
    if not os.access(servers["login"], os.R_OK):
        raise UsageError(
            f"the servers of {runs} are those of {owner(servers['login'])}, who alone has their"
            f" login; `cloze ui --dashboard-only` shows the runs"
        )
    show(servers, screen, as_json)
    screen.print(f"They run in process {servers['pid']}, which ends them at Ctrl-C.")


def show(now: Mapping[str, Any], screen: Console, as_json: bool) -> None:
    """Print addresses, deployments, and services that are not up.

    `as_json`: also print a JSON object to standard output.
    """
    # a link with the login is for eyes, not for a log that others may read
    key = login.key_of(Path(now["login"]).read_text("utf-8")) if screen.is_terminal else ""
    home = spool_state.home(runs_of_home() / DIRECTORY, now["mlflow"] or "")
    for name, title in TITLES.items():
        page = home if name == "mlflow" and now[name] else now[name]
        if key and page:
            path = quote(page.removeprefix(now[name]), safe="")
            page = f"{now[name]}{LOGIN_PATH}{f'?next={path}' if path else ''}#{key}"
        screen.print(f"{title:<9}{page}", soft_wrap=True)
    for service in server_addresses.observed(now).values():
        if service["state"] != "up":
            log = escape(service["log"])
            screen.print(
                f"{service['title']} [yellow]is {service['state']}[/], see {log}", soft_wrap=True
            )
    if names := now["deployments"]:  # none: Prefect, which is named above, is not up
        screen.print(f"{len(names)} deployments: {', '.join(names)}")
    screen.print(
        f"In other terminals: export PREFECT_API_URL={now['api']}"
        f' PREFECT_API_AUTH_STRING="$(cat {shlex.quote(now["login"])})"',
        soft_wrap=True,
    )
    if not key:
        screen.print(f"User and password are in {now['login']}", soft_wrap=True)
    if as_json:
        keys = (*TITLES, "api", "login", "deployments", "pid", "services")
        print(json.dumps({key: now[key] for key in keys}), flush=True)


def _option(server: str) -> str:
    return f"--{'dashboard' if server == 'page' else server}-port"
