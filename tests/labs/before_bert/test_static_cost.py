"""A model without layers has costs and memory, too: what trains on a static checkpoint is planned."""

from __future__ import annotations

import math

import pytest

from cloze.core.stages.cost import MachineSpec
from cloze.core.stages.execution import Execution
from cloze.model import hardware
from cloze.model.families.registry import model_config
from cloze.model.train.plan import cost, estimates


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("micro_batch", [None, 8])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_model_without_layers_has_a_memory(
    device: str, micro_batch: int | None, checkpointing: bool
) -> None:
    model = model_config({"family": "static", "vocab_size": 1000, "hidden_size": 64})
    execution = Execution.model_validate(
        {"micro_batch": micro_batch, "activation_checkpointing": checkpointing}
    )
    place = hardware.of(device, MachineSpec(cpus=2, gpus=1))
    machine, gpu = cost.execution_memory(model, 64, 8, execution, place)
    assert machine > 0
    assert (gpu > 0) == (device == "cuda")
    for figure in (
        estimates.approximate_parameters(model),
        estimates.StepCost.of(model, 64.0, device=device, causal_share=0.0).operations,
        model.attention_width + 1,
        model.layer_weights + 1,
    ):
        assert figure > 0
        assert math.isfinite(figure)
