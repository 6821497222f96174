"""`cloze ui`: a Prefect server, a worker with the deployments, and MLflow, in one command."""

from __future__ import annotations

import click


@click.command()
@click.option("--prefect-port", type=int, default=4200, show_default=True)
@click.option("--mlflow-port", type=int, default=5000, show_default=True)
def ui(prefect_port: int, mlflow_port: int) -> None:
    """Start Prefect's server and a worker that serves the deployments, and MLflow's server; Ctrl-C ends them all."""
    from flows.prefect.servers import run_all

    run_all(prefect_port, mlflow_port)
