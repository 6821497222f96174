"""The stage evaluate: fine-tuned checkpoints and a split -> metrics and predictions."""

from __future__ import annotations

from cloze.core.stages.stage import InputSpec, Stage, deferred
from cloze.model.tasks.evaluate.config import EvaluateConfig
from cloze.model.tasks.evaluate.cost import EVALUATE_COSTS
from cloze.model.tasks.files import headline

VERSION = 4


STAGE = Stage(
    name="evaluate",
    version=VERSION,
    config=EvaluateConfig,
    run=deferred("cloze.model.tasks.evaluate.run:run"),
    inputs={
        "checkpoint": InputSpec(
            kinds=("finetune",),
            required=True,
            multiple=True,
            inherited_fields=("data", "task", "options"),
        ),
        "corpus": InputSpec(kinds=("corpus",)),
    },
    worker="cloze.model",
    on_gpu=True,
    outputs=("predictions",),
    headline=headline,
    cost_model=EVALUATE_COSTS,
    comparison_metrics=("metrics",),
)
