"""The table of stages: who makes what, from what, and in which kind of process.

A later stage is one line here. Stage modules are imported when they are needed: a name costs nothing.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from flows.graph import launch
from pipeline.core.errors import UsageError, did_you_mean
from pipeline.core.registry import load
from pipeline.core.stage import Stage


@dataclass(frozen=True, slots=True)
class Row:
    """`reference` is `module:STAGE`; `worker` the module that runs it as a process, or None for this process."""

    reference: str
    worker: str | None
    parallel: bool = False  # one process a rank


TABLE: dict[str, Row] = {
    "corpus": Row("pipeline.corpus.stage:STAGE", "pipeline.worker"),
    "vocab": Row("pipeline.vocab.stage:STAGE", "pipeline.worker"),
    "dataset": Row("pipeline.dataset.stage:STAGE", "pipeline.worker"),
    "pretrain": Row("model.train.stage:STAGE", "model.worker", parallel=True),
    "finetune": Row("model.tasks.finetune.stage:STAGE", "model.worker", parallel=True),
    "evaluate": Row("model.tasks.evaluate.stage:STAGE", "model.worker"),
    "report": Row("flows.report.stage:STAGE", None),
}

# Steps that are no part of the DAG: they read a checkpoint and answer at once.
TOOLS: dict[str, Row] = {
    "export": Row("model.hub.export_stage:STAGE", "model.worker"),
    "import": Row("model.hub.import_stage:STAGE", "model.worker"),
    "fill-mask": Row("model.use.fill_mask:STAGE", "model.worker"),
}


def stage(name: str) -> Stage:
    """The stage of that name, whose `run` starts a process of its own where the table says so.

    Raises:
        UsageError: there is no such stage.
    """
    row = TABLE.get(name) or TOOLS.get(name)
    if row is None:
        raise UsageError(f"unknown stage {name!r}; {did_you_mean(name, TABLE)}")
    found: Stage = load(row.reference)
    if row.worker is None:
        return found
    return dataclasses.replace(found, run=launch.in_process(found, row.worker, parallel=row.parallel))
