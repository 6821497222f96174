"""Cost of an evaluation. No torch."""

from __future__ import annotations

from cloze.core.stages.cost import CostEstimate, CostModel, PlannedBuild
from cloze.core.stages.stage import role_of
from cloze.model.tasks.cost import measure_forward, split_tokens
from cloze.model.tasks.evaluate.config import EvaluateConfig
from cloze.model.train.plan.cost import pass_cost


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
