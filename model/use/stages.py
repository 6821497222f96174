"""The stages that read a checkpoint: merge, perplexity, score and likelihood.

The command line imports this module; torch is imported when a stage runs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloze.core.humanize import format_metrics, format_number
from cloze.core.stages.cost import CostEstimate, CostModel, PlannedBuild
from cloze.core.stages.stage import InputSpec, Stage, deferred
from cloze.model.tasks.cost import measure_forward, previous_tokens
from cloze.model.train.plan import estimates
from cloze.model.train.plan.cost import pass_cost
from cloze.model.use.configs import LikelihoodConfig, MergeConfig, PerplexityConfig, ScoreConfig

# Cost models of score and likelihood: forward passes over sentences.

LINE_BYTES_A_PIECE = 14.0  # bytes per token in a line of BLiMP, field names included


def _bytes(data: str | None) -> int:
    """Return the size of a file or of the files in a directory; 0 if it does not exist here."""
    paths = [Path(data)] if data is not None else []
    files = paths[0].iterdir() if paths and paths[0].is_dir() else paths
    return sum(file.stat().st_size for file in files if file.is_file())


def _cost_model(source: str, guess: Callable[[Any], float], length: float) -> CostModel:
    """Return the model of one forward pass over sentences, or with masks over a copy per token.

    Args:
        source, guess: field of the config that names the data; its tokens, if they are not known.
        length: tokens of a sentence.
    """
    copies = {"causal": 1.0}

    def estimate(plan: PlannedBuild[Any]) -> CostEstimate:
        own = {name: getattr(plan.config, name) for name in (source, "limit")}
        tokens = previous_tokens(plan.before, **own) or guess(plan.config)
        weights = int(plan.inputs["checkpoint"].get("parameters") or 0)
        loaded = 2 * estimates.WEIGHT_BYTES * weights
        return pass_cost(
            plan,
            tokens=tokens * copies.get(plan.config.mask, length),
            weights=weights,
            forward=True,
            memory_bytes=2 * int(estimates.PROCESS["cpu"]) + loaded,
            gpu_memory_bytes=(1 << 30) + loaded if plan.device == "cuda" else 0,
            makes={"tokens": tokens},
        )

    return CostModel(
        estimate=estimate,
        measure=lambda own: measure_forward(own, copies=copies.get(own["config"]["mask"], length)),
    )


# Stages.

PRETRAINED = InputSpec(kinds=("pretrain",), explicit_kinds=("import", "merge"), required=True)

# Averages the weights of a pretraining's last checkpoints (Izmailov et al. 2018; as mmBERT and
# Llama 3), which replaces some learning-rate decay. Needs `keep_for_merge` or `milestones`.
MERGE = Stage(
    name="merge",
    version=1,
    config=MergeConfig,
    run=deferred("cloze.model.use.checkpoint_stages:merge_checkpoints"),
    inputs={"checkpoint": InputSpec(kinds=("pretrain",), required=True)},
    worker="cloze.model",
    outputs=("checkpoint",),
    headline=lambda summary: (
        f"the mean of steps {', '.join(f'{step:,}' for step in summary['merged'])}"
    ),
)

# Computes the loss on held-out rows with mask copy 0: more rows than in training, and equal rows
# for all checkpoints. Different vocabularies are not comparable.
PERPLEXITY = Stage(
    name="perplexity",
    version=3,  # 3: the share of rows read left to right is the training's
    config=PerplexityConfig,
    run=deferred("cloze.model.use.checkpoint_stages:compute_perplexity"),
    inputs={"checkpoint": PRETRAINED, "dataset": InputSpec(kinds=("dataset",), required=True)},
    worker="cloze.model",
    on_gpu=True,
    headline=lambda summary: ", ".join(
        f"{name} {format_number(value)}" for name, value in summary["metrics"].items()
    ),
)

# Accuracy on minimal pairs, such as BLiMP's (Warstadt et al. 2020): the good sentence scores
# higher; ties count half. Files: `metrics.json` (accuracy with bootstrap interval; by phenomenon,
# term and field) and `pairs.jsonl` (scores of each pair).
SCORE = Stage(
    name="score",
    version=3,  # 3: EWoK counts a space that is a token; words of unspaced scripts
    config=ScoreConfig,
    run=deferred("cloze.model.use.scoring:run"),
    inputs={"checkpoint": PRETRAINED},
    worker="cloze.model",
    on_gpu=True,
    headline=lambda summary: format_metrics(summary["metrics"]),
    cost_model=_cost_model("data", lambda own: _bytes(own.data) / LINE_BYTES_A_PIECE, 12.0),
    comparison_metrics=("metrics",),
)

# Computes bits per byte of held-out texts, which compares models with different vocabularies.
# Files: `metrics.json` and `texts.jsonl` (bits and bytes of each text).
LIKELIHOOD = Stage(
    name="likelihood",
    version=2,  # 2: words of unspaced scripts
    config=LikelihoodConfig,
    run=deferred("cloze.model.use.likelihood:run"),
    inputs={"checkpoint": PRETRAINED, "corpus": InputSpec(kinds=("corpus",))},
    worker="cloze.model",
    on_gpu=True,
    headline=lambda summary: (
        f"{summary['metrics']['bits_per_byte']:.3f} bits per byte of {summary['texts']:,} texts"
    ),
    cost_model=_cost_model("texts", lambda own: 25.0 * own.limit, 25.0),
    comparison_metrics=("metrics",),
)
