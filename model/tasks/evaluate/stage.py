"""Stage evaluate: a fine-tuned checkpoint and a set in its task's format in; metrics and predictions out.

Files: `metrics.json` (metrics, their bootstrap interval, confusion matrix, class counts), `predictions.tsv`.

The command line imports this module at every start; torch comes in when the stage runs.
"""

from __future__ import annotations

from model.tasks.cost import EVALUATE_COSTS
from model.tasks.evaluate.config import VERSION, EvaluateConfig
from pipeline.core.humanize import figures
from pipeline.core.stage import Build, Input, Outcome, Stage


def run(config: EvaluateConfig, build: Build) -> Outcome:
    """Evaluate; see `model.tasks.evaluate.run.run`."""
    from model.tasks.evaluate import run as evaluate

    return evaluate.run(config, build)


STAGE = Stage(
    name="evaluate",
    version=VERSION,
    config=EvaluateConfig,
    run=run,
    inputs={
        "checkpoint": Input(kinds=("finetune",), required=True, lends=("data", "task")),
        "corpus": Input(kinds=("corpus", "semdedup")),
    },
    worker="model",
    outputs=("predictions",),
    headline=lambda summary: figures(summary["metrics"]),
    costs=EVALUATE_COSTS,
    compared=("metrics",),
)
