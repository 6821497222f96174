"""The stage heads: what each attention head attends to. Its config, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from cloze.core.config import InputPath, StageConfig
from cloze.core.stages.stage import BuildContext, InputSpec, Stage, StageResult


class HeadsConfig(StageConfig):
    """Options of the stage heads."""

    texts: InputPath | None = None
    """File with a text per line, instead of a dataset's rows."""

    treebank: InputPath | None = None
    """Sentences with dependencies, a CoNLL-U file: how well each head predicts each relation.
    Without texts and a dataset, its sentences are the texts."""

    rows: int = Field(default=1000, ge=1)
    """Maximum number of rows or texts, from the first. Rows are the held-out ones, if there are
    any."""

    max_length: int | None = Field(default=None, ge=3)
    """Maximum tokens per text, special tokens included; longer texts are cut. Default: the
    model's maximum."""


def _run(config: HeadsConfig, build: BuildContext) -> StageResult:
    from cloze.model.analyze.heads import run  # torch

    return run(config, build)


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
    run=_run,
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
