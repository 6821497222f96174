"""The stage evaluate: fine-tuned checkpoints and a split -> metrics and predictions."""

from __future__ import annotations

from cloze.core.stages.stage import BuildContext, InputSpec, Stage, StageResult
from cloze.model.tasks.evaluate.config import EvaluateConfig
from cloze.model.tasks.evaluate.cost import EVALUATE_COSTS
from cloze.model.tasks.files import headline

VERSION = 4


def run(config: EvaluateConfig, build: BuildContext) -> StageResult:
    """Evaluate; see `cloze.model.tasks.evaluate.run.run`."""
    from cloze.model.tasks.evaluate import run as evaluate

    return evaluate.run(config, build)


STAGE = Stage(
    name="evaluate",
    version=VERSION,
    config=EvaluateConfig,
    run=run,
    inputs={
        "checkpoint": InputSpec(
            kinds=("finetune",),
            required=True,
            multiple=True,
            inherited_fields=("data", "task", "options"),
        ),
        "corpus": InputSpec(kinds=("corpus", "semdedup")),
    },
    worker="cloze.model",
    on_gpu=True,
    outputs=("predictions",),
    headline=headline,
    cost_model=EVALUATE_COSTS,
    comparison_metrics=("metrics",),
)
