"""Cost of an evaluation. No torch."""

from __future__ import annotations

from collections.abc import Mapping

from cloze.core.stages.execution import CostEstimate, CostModel, Execution, MachineSpec, Metadata
from cloze.core.stages.stage import role_of
from cloze.model.tasks.cost import measure_forward, split_tokens
from cloze.model.tasks.evaluate.config import EvaluateConfig
from cloze.model.train.plan.cost import device_of, pass_cost


def _estimate_evaluation(
    config: EvaluateConfig,
    inputs: Mapping[str, Metadata],
    execution: Execution,
    computer: MachineSpec,
    before: Metadata | None,
) -> CostEstimate:
    """Estimate a forward pass over the split."""
    return pass_cost(
        tokens=split_tokens(config.reads(), config.split, config.data, before),
        weights=sum(
            int(facts.get("parameters") or 0)
            for key, facts in inputs.items()
            if role_of(key) == "checkpoint"
        ),
        device=device_of(execution, computer),
        computer=computer,
        forward=True,
    )


# The summary lacks the model size, so only the last duration of the same evaluation is used.
EVALUATE_COSTS = CostModel(estimate=_estimate_evaluation, measure=measure_forward)
