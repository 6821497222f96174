"""Tables of stages: name -> import path of the `Stage`, which declares everything else.

A new stage is one file and one line here, or in a plug-in. It then has a config section and a
command. Stage modules are imported on first use, so that listing names is cheap.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from cloze.core.humanize import agree
from cloze.core.plugins import Table

if TYPE_CHECKING:
    from cloze.core.artifacts.artifact import Manifest
    from cloze.core.stages.stage import Stage

# The stages of a run, in order.
_TABLE = {
    "corpus": "cloze.pipeline.corpus.stage:STAGE",
    "vocab": "cloze.pipeline.vocab.stage:STAGE",
    "dataset": "cloze.pipeline.dataset.stage:STAGE",
    "import": "cloze.model.hub.stages:IMPORT",
    "pretrain": "cloze.model.train.stage:STAGE",
    "merge": "cloze.model.use.stages:MERGE",
    "finetune": "cloze.model.tasks.finetune.stage:STAGE",
    "evaluate": "cloze.model.tasks.evaluate.stage:STAGE",
    "perplexity": "cloze.model.use.stages:PERPLEXITY",
    "score": "cloze.model.use.stages:SCORE",
    "likelihood": "cloze.model.use.stages:LIKELIHOOD",
    "report": "cloze.flows.report.stage:STAGE",
}

# Stages that are not part of a run: they convert one artifact, or print an answer.
_TOOLS = {
    "export": "cloze.model.hub.stages:EXPORT",
    "fill-mask": "cloze.model.use.verb:FILL_MASK",
    "explain": "cloze.pipeline.corpus.explain_stage:STAGE",
    "compare-vocab": "cloze.pipeline.vocab.stage:COMPARE",
    "inspect": "cloze.pipeline.dataset.stage:INSPECT",
}

TABLE: Table[Stage] = Table("stages", "stage", _TABLE)
TOOLS: Table[Stage] = Table("tools", "stage", _TOOLS)


def stage(name: str) -> Stage:
    """Return the definition of the stage `name`.

    Raises UsageError: the stage does not exist.
    """
    return (TOOLS if name in TOOLS else TABLE).find(name)


def executable(name: str) -> Stage:
    """Return the stage as this process executes it: where its launcher starts its processes.

    Raises UsageError: the stage does not exist.
    """
    definition, table = stage(name), TOOLS if name in TOOLS else TABLE
    from cloze.flows.launch.coordinator import run_in_worker_processes  # heavy; plans need it not

    run = run_in_worker_processes(definition, table.reference(name))
    return dataclasses.replace(definition, run=run)


def headline(manifest: Manifest) -> str:
    """Return the main metrics of an artifact as text, as formatted by its stage."""
    is_known = manifest.stage in TABLE or manifest.stage in TOOLS
    return agree(stage(manifest.stage).headline(manifest.summary)) if is_known else ""
