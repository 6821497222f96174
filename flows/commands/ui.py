"""`cloze ui`: Prefect's server, a worker with all deployments, MLflow, and a page of our own, in one command."""

from __future__ import annotations

import click

from flows.commands.common import json_option


@click.command()
@click.option("--prefect-port", type=click.IntRange(1, 65535), help="Of Prefect's server; 4200, or the next free one.")
@click.option("--mlflow-port", type=click.IntRange(1, 65535), help="Of MLflow's server; 5000, or the next free one.")
@click.option("--page-port", type=click.IntRange(1, 65535), help="Of the page of all runs; 8090, or the next free one.")
@json_option
def ui(prefect_port: int | None, mlflow_port: int | None, page_port: int | None, as_json: bool) -> None:
    """Start Prefect's server, a worker that serves the deployments, MLflow's server and a page of all runs; Ctrl-C ends them.

    Where they run already for these runs, print their addresses and end.
    """
    from flows.servers.command import serve

    serve(prefect_port, mlflow_port, page_port, as_json)
