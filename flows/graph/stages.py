"""The tables of stages. A row is a name and where its `Stage` is; all else about a stage, it says itself.

A new stage is one file and one line here: a run's config has a section for it, and it is a verb of the command line. Stage
modules are imported when they are needed: a name costs nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import UsageError, did_you_mean
from pipeline.core.registry import load

if TYPE_CHECKING:
    from pipeline.core.artifact import Manifest
    from pipeline.core.stage import Stage

# The stages of a run, in its order.
TABLE: dict[str, str] = {
    "corpus": "pipeline.corpus.stage:STAGE",
    "vectors": "model.use.vectors:STAGE",
    "semdedup": "pipeline.corpus.semantic.stage:STAGE",
    "vocab": "pipeline.vocab.stage:STAGE",
    "dataset": "pipeline.dataset.stage:STAGE",
    "pretrain": "model.train.stage:STAGE",
    "merge": "model.use.merge_stage:STAGE",
    "finetune": "model.tasks.finetune.stage:STAGE",
    "evaluate": "model.tasks.evaluate.stage:STAGE",
    "perplexity": "model.use.perplexity:STAGE",
    "score": "model.use.score:STAGE",
    "submission": "flows.report.submission:STAGE",
    "report": "flows.report.stage:STAGE",
}

# Stages that are no part of a run: they make something of one artifact, or write nothing and answer at once.
TOOLS: dict[str, str] = {
    "export": "model.hub.export_stage:STAGE",
    "import": "model.hub.import_stage:STAGE",
    "answer": "model.use.answer_stage:STAGE",
    "classify": "model.use.classify_stage:STAGE",
    "tag": "model.use.tag_stage:STAGE",
    "fill-mask": "model.use.fill_mask:STAGE",
    "generate": "model.use.generate_stage:STAGE",
    "score-texts": "model.use.score_texts_stage:STAGE",
    "embed": "model.use.embed_stage:STAGE",
    "filter": "pipeline.corpus.learned.stage:STAGE",
    "explain": "pipeline.corpus.explain_stage:STAGE",
    "compare-vocab": "pipeline.vocab.compare_stage:STAGE",
    "inspect": "pipeline.dataset.inspect_stage:STAGE",
}


def stage(name: str) -> Stage:
    """The stage of that name, whose `run` starts processes of its own where the stage says so.

    Raises:
        UsageError: there is no such stage.
    """
    reference = TABLE.get(name) or TOOLS.get(name)
    if reference is None:
        raise UsageError(f"unknown stage {name!r}; {did_you_mean(name, TABLE)}")
    found: Stage = load(reference)
    if found.worker is None:
        return found
    from flows.launchers.head import in_process  # heavy, and the names above are read at every start

    return dataclasses.replace(found, run=in_process(found, reference))


def headline(manifest: Manifest) -> str:
    """The one or two figures that say most about an artifact, in its stage's words."""
    reference = TABLE.get(manifest.stage) or TOOLS.get(manifest.stage)
    found: Stage | None = load(reference) if reference else None
    return found.headline(manifest.summary) if found else ""


def figures(name: str, summary: Mapping[str, Any]) -> dict[str, float]:
    """The figures by which runs of a stage are compared, from its summary."""
    found: dict[str, float] = {}
    for key in stage(name).compared:
        value = summary.get(key)
        inner = value if isinstance(value, Mapping) else {key: value}
        found |= {k: float(v) for k, v in inner.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
    return found
