"""The stage heads: what each attention head attends to. Its config, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloze.core.stages.stage import InputSpec, Stage, deferred
from cloze.labs.inside.heads_config import HeadsConfig


def _headline(summary: Mapping[str, Any]) -> str:
    metrics = summary["metrics"]
    return (
        f"{metrics['positional_heads']} positional of {summary['heads']} heads; at most "
        f"{metrics['largest_previous']:.0%} of a head to the previous, "
        f"{metrics['largest_next']:.0%} to the next token"
    )


# Attention by head (Clark et al. 2019; Voita et al. 2019). File: `metrics.json`, all numbers by
# layer and head.
STAGE = Stage(
    name="heads",
    version=2,  # 2: words of a treebank in vocabularies without [CLS]
    config=HeadsConfig,
    run=deferred("cloze.labs.inside.heads:run"),
    inputs={
        "checkpoint": InputSpec(
            kinds=("pretrain",), explicit_kinds=("finetune", "merge", "prune"), required=True
        ),
        "dataset": InputSpec(kinds=("dataset",)),
    },
    worker="cloze.model",
    on_gpu=True,
    headline=_headline,
    comparison_metrics=("metrics",),
)
