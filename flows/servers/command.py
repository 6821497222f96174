"""What `cloze ui` does: take the lease and supervise, or tell of the servers that run."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from flows.graph import plan
from flows.prefect import PREFECT_YAML
from flows.servers import ports, processes, state
from flows.servers.services import grace_seconds, mlflow_elsewhere, services
from flows.servers.supervisor import Supervisor
from flows.views import terminal
from pipeline.core import lock
from pipeline.core.errors import UsageError

PREFECT_PORT, MLFLOW_PORT, PAGE_PORT = 4200, 5000, 8090
START_SECONDS = 180.0  # that a second `cloze ui` waits for the addresses of one that just starts
ADDRESSES = ("page", "prefect", "mlflow")


def runs_of_home() -> Path:
    """The runs that servers started here are of: `$CLOZE_RUNS`, or `runs`, below `$CLOZE_HOME` or the working directory."""
    return (Path(os.environ.get("CLOZE_HOME") or Path.cwd()) / plan.runs_directory()).resolve()


def serve(prefect: int | None, mlflow: int | None, page: int | None, as_json: bool) -> None:
    """Supervise until Ctrl-C, or attach: print the addresses of the servers that run.

    Args:
        prefect, mlflow, page: ports that were asked for; None: the usual ones, or free ones after them.

    Raises:
        UsageError: a port that was asked for is taken, or the servers run already on another.
    """
    if not PREFECT_YAML.exists():
        raise UsageError(f"{PREFECT_YAML} is missing; run `cloze ui` from an installation in a checkout of the repository")
    runs, screen = runs_of_home(), terminal.console()
    asked = {"prefect": prefect, "mlflow": mlflow, "page": page}
    if not state.is_running(runs):
        try:
            with lock.locked(str(state.directory(runs))):
                _supervise(runs, asked, screen, as_json)
            return
        except UsageError:
            if not state.is_running(runs):
                raise
            # another one was quicker
    _attach(runs, asked, screen, as_json)


def _supervise(runs: Path, asked: Mapping[str, int | None], screen: Console, as_json: bool) -> None:
    _end_leftovers(runs, screen)
    usual = {"prefect": PREFECT_PORT, "mlflow": MLFLOW_PORT, "page": PAGE_PORT}
    if elsewhere := mlflow_elsewhere(runs):
        del usual["mlflow"]
        if asked["mlflow"] is not None:
            raise UsageError(
                f"--mlflow-port {asked['mlflow']}: runs record to {elsewhere}; unset MLFLOW_TRACKING_URI for a server here"
            )
    chosen: dict[str, int] = {}
    for name in sorted(usual, key=lambda name: asked[name] is None):  # those that were asked for come first
        chosen[name] = ports.choose(usual[name], asked[name], f"--{name}-port", chosen.values())

    def up(now: Mapping[str, Any]) -> None:
        show(now, screen, as_json)
        screen.print("Ctrl-C ends them.")

    screen.print("starting Prefect, MLflow and the page of runs …")
    Supervisor(
        runs,
        services(runs, prefect=chosen["prefect"], mlflow=chosen.get("mlflow"), page=chosen["page"]),
        tell=lambda line: screen.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {escape(line)}", soft_wrap=True),
        up=up,
    ).run()


def _end_leftovers(runs: Path, screen: Console) -> None:
    """What a supervisor that was killed has left: servers that hold ports, and flows of its worker, which save their checkpoints."""
    left = {*processes.recorded(state.read(runs).get("services", {})), *processes.marked(state.directory(runs))}
    if left:
        screen.print(f"ending {len(left)} processes that an earlier `cloze ui` left behind …")
        processes.end(left, grace_seconds())


def _attach(runs: Path, asked: Mapping[str, int | None], screen: Console, as_json: bool) -> None:
    deadline = time.monotonic() + START_SECONDS
    now = state.running(runs)
    while now.get("state", "starting") == "starting" and state.is_running(runs) and time.monotonic() < deadline:
        time.sleep(0.2)
        now = state.running(runs)
    if not now:
        raise UsageError(f"the `cloze ui` of {runs} has just ended; run it again")
    for name, port in asked.items():
        running = now["services"].get(name, {}).get("port")
        if port is not None and port != running:
            raise UsageError(
                f"--{name}-port {port}: these servers run already, with {running or 'none'}, in process {now['pid']}; end that one first"
            )
    show(now, screen, as_json)
    screen.print(f"They run in process {now['pid']}, which ends them at Ctrl-C.")


def show(now: Mapping[str, Any], screen: Console, as_json: bool) -> None:
    """The addresses and the deployments, and what is not up; with `as_json` as an object on standard output, too."""
    titles = {"page": "Runs", "prefect": "Prefect", "mlflow": "MLflow"}
    for name in ADDRESSES:
        service = now["services"].get(name)
        fine = service is None or service["state"] == "up"
        mark = "" if fine else f"   [yellow]{service['state']}[/], see {escape(service['log'])}"
        screen.print(f"{titles[name]:<9}{now[name]}{mark}", soft_wrap=True)
    worker = now["services"]["worker"]
    if worker["state"] != "up":
        screen.print(f"worker   [yellow]{worker['state']}[/], see {escape(worker['log'])}", soft_wrap=True)
    screen.print(f"{len(now['deployments'])} deployments: {', '.join(now['deployments'])}")
    screen.print(f"In other terminals: export PREFECT_API_URL={now['api']}", soft_wrap=True)
    if as_json:
        sys.stdout.write(json.dumps({name: now[name] for name in (*ADDRESSES, "api", "deployments", "pid", "services")}) + "\n")
        sys.stdout.flush()
