"""The stage evaluate: fine-tuned checkpoints and a split -> metrics and predictions."""

from __future__ import annotations

from cloze.core.stages.cost import CostEstimate, CostModel, PlannedBuild
from cloze.core.stages.stage import InputSpec, Stage, deferred, role_of
from cloze.model.tasks.cost import measure_forward, split_tokens
from cloze.model.tasks.evaluate.config import EvaluateConfig
from cloze.model.tasks.files import headline
from cloze.model.train.plan.cost import pass_cost

VERSION = 4


def _estimate_evaluation(plan: PlannedBuild[EvaluateConfig]) -> CostEstimate:
    """Estimate a forward pass over the split."""
    config = plan.config
    return pass_cost(
        plan,
        tokens=split_tokens(config.reads(), config.split, config.data, plan.before),
        weights=sum(
            int(facts.get("parameters") or 0)
            for key, facts in plan.inputs.items()
            if role_of(key) == "checkpoint"
        ),
        forward=True,
    )


# The summary lacks the model size, so only the last duration of the same evaluation is used.
EVALUATE_COSTS = CostModel(estimate=_estimate_evaluation, measure=measure_forward)


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
