"""The stages that read a pretrained checkpoint: merge, perplexity, score and vectors.

The command line imports this module; torch is imported when a stage runs.
"""

from __future__ import annotations

from collections.abc import Callable

from cloze.core.config import StageConfig
from cloze.core.humanize import format_metrics, format_number
from cloze.core.options import import_object
from cloze.core.stages.execution import TRAINING_FIELDS
from cloze.core.stages.stage import BuildContext, InputSpec, Stage, StageResult
from cloze.model.tasks.cost import SCORE_COSTS, VECTORS_COSTS
from cloze.model.use.configs import MergeConfig, PerplexityConfig, ScoreConfig, VectorsConfig


def _run(reference: str) -> Callable[[StageConfig, BuildContext], StageResult]:
    """Return a stage's function that imports `module:name` when it runs."""
    return lambda config, build: import_object(reference)(config, build)


# Averages the weights of a pretraining's last checkpoints (Izmailov et al. 2018; as mmBERT and
# Llama 3), which replaces some learning-rate decay. Needs `keep_for_merge` or `milestone_every`.
MERGE = Stage(
    name="merge",
    version=1,
    config=MergeConfig,
    run=_run("cloze.model.use.checkpoint_stages:merge_checkpoints"),
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
    version=2,
    config=PerplexityConfig,
    run=_run("cloze.model.use.checkpoint_stages:compute_perplexity"),
    inputs={
        "checkpoint": InputSpec(kinds=("pretrain",), explicit_kinds=("merge",), required=True),
        "dataset": InputSpec(kinds=("dataset",), required=True),
    },
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
    version=2,  # 2: scores in fp32 unless bf16 is requested
    config=ScoreConfig,
    run=_run("cloze.model.use.scoring:run"),
    inputs={"checkpoint": InputSpec(kinds=("pretrain",), explicit_kinds=("merge",), required=True)},
    worker="cloze.model",
    on_gpu=True,
    headline=lambda summary: format_metrics(summary["metrics"]),
    cost_model=SCORE_COSTS,
    comparison_metrics=("metrics",),
)

# Computes a vector per document for the stage semdedup: the mean over windows of about the model's
# maximum length, scaled to length 1, as integers (core/arrow.py). One file per corpus shard with
# keys, ascending, and vectors.
VECTORS = Stage(
    name="vectors",
    version=1,
    config=VectorsConfig,
    run=_run("cloze.model.use.embed:run"),
    inputs={
        "corpus": InputSpec(kinds=("corpus",), required=True),
        "checkpoint": InputSpec(
            kinds=("pretrain",), explicit_kinds=("finetune", "merge"), required=True
        ),
    },
    worker="cloze.model",
    on_gpu=True,
    parallel=True,
    unread=TRAINING_FIELDS,
    headline=lambda summary: f"{summary['documents']:,} vectors of {summary['size']} numbers",
    cost_model=VECTORS_COSTS,
)
