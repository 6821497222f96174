"""The stage prune: a checkpoint with fewer heads, layers or weights; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloze.core.humanize import format_count, format_metrics
from cloze.core.stages.stage import InputSpec, Stage, deferred
from cloze.labs.inside.prune_config import PruneConfig


def _headline(summary: Mapping[str, Any]) -> str:
    size = f"{format_count(summary['parameters'])} of {format_count(summary['parameters_before'])}"
    zeros = f", {summary['zeros']:.0%} zeros in layers" if summary["zeros"] else ""
    scores = f", {format_metrics(summary['metrics'])}" if summary["metrics"] else ""
    return f"{size} parameters{zeros}{scores}"


# Files: `checkpoint/`; `metrics.json`: scores before and after; with --keep-heads the importance of
# each head, and the score by number of heads.
STAGE = Stage(
    name="prune",
    version=2,  # 2: sparsity leaves T5's output matrix and XLNet's segments
    config=PruneConfig,
    run=deferred("cloze.labs.inside.prune:run"),
    inputs={
        "checkpoint": InputSpec(
            kinds=("finetune",),
            explicit_kinds=("pretrain", "merge", "prune"),
            required=True,
            inherited_fields=("data",),
        ),
        "rewind": InputSpec(kinds=("pretrain",), explicit_kinds=("merge",), explicit_only=True),
    },
    worker="cloze.model",
    on_gpu=True,
    outputs=("checkpoint",),
    headline=_headline,
    comparison_metrics=("metrics",),
)
