"""The flows over the whole graph of a config: a run, and the rows of an ablation."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.prefect import parameters as form
from flows.prefect.graph_run import OPTIONS, run_graph


@flow(
    name="full-run",
    description="Raw text in, an evaluated encoder and a report out; what is there already is not made again.",
    **OPTIONS,
)
def full_run(
    config: form.Config = "demo",
    steps: form.Steps = None,
    global_batch: form.GlobalBatch = None,
    learning_rate: form.LearningRate = None,
    seed: form.Seed = None,
    workers: form.Workers = None,
    processes: form.Processes = None,
    start_from: form.StartFrom = form.NO_NODES,
    only: form.Only = form.NO_NODES,
    until: form.Until = form.NO_NODES,
    force: form.Force = form.NO_NODES,
    overrides: form.Overrides = form.NO_OVERRIDES,
    retries: form.Retries = 2,
) -> State[Any]:
    """Every node of the config's graph that is not made yet."""
    return run_graph(locals())


@flow(
    name="ablation",
    description="A table of a paper: the rows of a config's matrix, beside each other, and their report.",
    **OPTIONS,
)
def ablation(
    config: form.Ablation = form.ABLATIONS[0],
    steps: form.Steps = None,
    seed: form.Seed = None,
    workers: form.Workers = None,
    processes: form.Processes = None,
    start_from: form.StartFrom = form.NO_NODES,
    only: form.Only = form.NO_NODES,
    force: form.Force = form.NO_NODES,
    overrides: form.Overrides = form.NO_OVERRIDES,
    retries: form.Retries = 2,
) -> State[Any]:
    """Every node of every row that is not made yet; rows share what is the same in them."""
    return run_graph(locals())
