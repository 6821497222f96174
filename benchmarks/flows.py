"""What orchestration costs: `python -m benchmarks.flows [--config sample] [--nodes 500]`. On a
Prefect server of its own.

    plan        how long a graph of many small nodes takes to plan, and to run when all of it is
    made unchanged   the flow time of a run with nothing to do share       of a run that makes
    everything, the time that is no node's: as a flow, and plain

The nodes' own seconds come from their manifests, so what is left is ours: reading the config,
planning, waiting, states, records, the end. Nodes of such a graph run one after another where they
take all cores, as on two of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from tests.operations.servers import Operations

TOYS = """
import sys, time, yaml
from cloze.flows.graph import config, plan, stages
from tests.flows import toy_run
stages.TABLE.clear(); stages.TABLE.update(toy_run.ROWS)
from cloze.flows.tracking.spool import Spool
Spool.start_sender = lambda spool: None
from cloze.flows.run.session import RunParameters, RunSession, run_plain
from rich.console import Console
def timed(work):
    began = time.perf_counter(); found = work(); return time.perf_counter() - began, found
def session():
    return RunSession(RunParameters(config=sys.argv[1]), Console(quiet=True))
read, parsed = timed(lambda: config.load(sys.argv[1]))
planned, steps = timed(lambda: plan.plan(parsed))
made, _ = timed(lambda: run_plain(session()))
again, _ = timed(lambda: run_plain(session()))
from cloze.flows.prefect.environment import prepare_prefect
prepare_prefect()
from cloze.flows.prefect.graph_run import run_flow
flow, _ = timed(lambda: run_flow(session()))
import json
print(json.dumps({"nodes": len(steps), "read": read, "plan": planned, "made": made, "cached, plain": again, "cached, as a flow": flow}))
"""


def toys(operations: Operations, nodes: int) -> dict[str, float]:
    """Seconds to plan a graph of that many nodes, and to run it with all of it made."""
    path = operations.home / "toys.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "letters": {},
                "count": {"fault": "/nowhere/{n}", "matrix": {"n": list(range(nodes - 1))}},
            }
        )
    )
    done = subprocess.run(
        [sys.executable, "-c", TOYS, str(path)],
        env=operations.environment,
        cwd=operations.home,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def whole(operations: Operations, config: str, how: str) -> tuple[float, float]:
    """Seconds of a run, and those of its nodes. Args: how: `--prefect` or `--no-prefect`."""
    done = subprocess.run(
        [sys.executable, "-c", "from cloze.flows.cli import entry; entry()", "run", config, how,
            "--json"],
        env=operations.environment, cwd=operations.home, stdout=subprocess.PIPE, text=True,
        check=True,
    )  # fmt: skip
    made = json.loads(done.stdout)
    record = json.loads(sorted(Path(made["directory"]).glob("_status/*.json"))[-1].read_text())
    return record["ended"] - record["started"], sum(
        stage["seconds"] for stage in made["stages"] if not stage["cached"]
    )


def flow_seconds(operations: Operations) -> float:
    """The newest flow run's time, as Prefect has it."""
    (flow_run,) = operations.call("/flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})
    return float(flow_run["total_run_time"])


def unchanged(operations: Operations, config: str) -> float:
    """Flow time of a run of which everything is made. The command line would start no flow for it,
    so the flow is called.
    """
    code = (
        f"from cloze.flows.prefect.environment import prepare_prefect; prepare_prefect(); from "
        f"cloze.flows.prefect.graph_run import full_run; full_run(config={config!r})"
    )
    subprocess.run(
        [sys.executable, "-c", code], env=operations.environment, cwd=operations.home, check=True
    )
    return flow_seconds(operations)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="sample")
    parser.add_argument("--nodes", type=int, default=500)
    arguments = parser.parse_args()
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f}, Python {platform.python_version()}"
    )
    with tempfile.TemporaryDirectory() as place:
        operations = Operations(Path(place))
        try:
            for name, value in toys(operations, arguments.nodes).items():
                print(
                    f"graph of {arguments.nodes:,} nodes: {name:<18} {value:8.2f}"
                    + ("" if name == "nodes" else " s")
                )
            for how in ("--prefect", "--no-prefect"):
                spent, of_nodes = whole(operations, arguments.config, how)
                print(
                    f"{arguments.config} {how}: {spent:.1f} s, of which nodes {of_nodes:.1f} s; "
                    f"ours {spent - of_nodes:.1f} s ({1 - of_nodes / spent:.1%})"
                )
                if how == "--prefect":
                    began = time.perf_counter()
                    print(
                        f"{arguments.config} unchanged: "
                        f"{unchanged(operations, arguments.config):.1f} s of flow time",
                        end="",
                    )
                    print(f" ({time.perf_counter() - began:.1f} s with the start of the process)")
                    operations.environment["CLOZE_RUNS_DIR"] = str(operations.home / "runs-plain")
        finally:
            operations.close()


if __name__ == "__main__":
    main()
