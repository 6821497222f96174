"""The table of stages. A later stage is one line here and one file, which says the rest (`pipeline.core.stage.Stage`).

Stage modules are imported when they are needed: a name costs nothing.
"""

from __future__ import annotations

import dataclasses

from flows.graph import launch
from pipeline.core.errors import UsageError, did_you_mean
from pipeline.core.registry import load
from pipeline.core.stage import Stage

TABLE: dict[str, str] = {
    "corpus": "pipeline.corpus.stage:STAGE",
    "vocab": "pipeline.vocab.stage:STAGE",
    "dataset": "pipeline.dataset.stage:STAGE",
    "pretrain": "model.train.stage:STAGE",
    "finetune": "model.tasks.finetune.stage:STAGE",
    "evaluate": "model.tasks.evaluate.stage:STAGE",
    "report": "flows.report.stage:STAGE",
}

# Steps that are no part of the DAG: they read a checkpoint and answer at once.
TOOLS: dict[str, str] = {
    "export": "model.hub.export_stage:STAGE",
    "import": "model.hub.import_stage:STAGE",
    "fill-mask": "model.use.fill_mask:STAGE",
}


def stage(name: str) -> Stage:
    """The stage of that name, whose `run` starts a process of its own where the stage has a worker.

    Raises:
        UsageError: there is no such stage.
    """
    reference = TABLE.get(name) or TOOLS.get(name)
    if reference is None:
        raise UsageError(f"unknown stage {name!r}; {did_you_mean(name, TABLE)}")
    found: Stage = load(reference)
    if found.worker is None:
        return found
    return dataclasses.replace(found, run=launch.in_process(found, reference))
