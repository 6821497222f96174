"""The flows over a part of a config's graph: up to some stages, with all that these need and that is not made yet."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.prefect import parameters as form
from flows.prefect.graph_run import OPTIONS, run_graph


@flow(name="data", description="Raw text to datasets: corpus, vocabulary, masked rows.", **OPTIONS)
def data(
    config: form.Config = "demo",
    vocab_size: form.VocabSize = None,
    length: form.Length = None,
    copies: form.Copies = None,
    workers: form.Workers = None,
    start_from: form.StartFrom = form.NO_NODES,
    force: form.Force = form.NO_NODES,
    overrides: form.Overrides = form.NO_OVERRIDES,
    retries: form.Retries = 2,
) -> State[Any]:
    """The nodes of the stages corpus, vocab and dataset."""
    return run_graph(locals(), until=("corpus", "vocab", "dataset"))


@flow(name="pretraining", description="All phases of pretraining, and the data that they need, if it is not there.", **OPTIONS)
def pretraining(
    config: form.Config = "demo",
    steps: form.Steps = None,
    global_batch: form.GlobalBatch = None,
    learning_rate: form.LearningRate = None,
    seed: form.Seed = None,
    processes: form.Processes = None,
    launcher: form.Launcher = None,
    nodes: form.Nodes = None,
    hostfile: form.Hostfile = None,
    launcher_options: form.LauncherOptions = form.NO_OPTIONS,
    start_from: form.StartFrom = form.NO_NODES,
    force: form.Force = form.NO_NODES,
    overrides: form.Overrides = form.NO_OVERRIDES,
    retries: form.Retries = 2,
) -> State[Any]:
    """The nodes of the stage pretrain and what they need."""
    return run_graph(locals(), until=("pretrain",))


@flow(
    name="finetuning",
    description="All fine-tunings, and the pretraining and data that they need, if it is not there.",
    **OPTIONS,
)
def finetuning(
    config: form.Config = "demo",
    epochs: form.Epochs = None,
    task_learning_rate: form.TaskRate = None,
    task_seed: form.TaskSeed = None,
    processes: form.Processes = None,
    start_from: form.StartFrom = form.NO_NODES,
    force: form.Force = form.NO_NODES,
    overrides: form.Overrides = form.NO_OVERRIDES,
    retries: form.Retries = 2,
) -> State[Any]:
    """The nodes of the stage finetune and what they need."""
    return run_graph(locals(), until=("finetune",))


@flow(name="evaluation", description="All evaluations, and whatever they need that is not there.", **OPTIONS)
def evaluation(
    config: form.Config = "demo",
    processes: form.Processes = None,
    start_from: form.StartFrom = form.NO_NODES,
    force: form.Force = form.NO_NODES,
    overrides: form.Overrides = form.NO_OVERRIDES,
    retries: form.Retries = 2,
) -> State[Any]:
    """The nodes of the stage evaluate and what they need."""
    return run_graph(locals(), until=("evaluate",))
