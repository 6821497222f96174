"""A plan knows the time of every node of the tables that go from a corpus to a figure."""

from __future__ import annotations

import pytest

from cloze.core.stages.cost import MachineSpec, PlannedBuild
from cloze.core.stages.execution import Execution
from cloze.flows.graph import config, stages

CHECKPOINT = {"parameters": 1_000_000}


@pytest.mark.parametrize("name", ["domain-ways", "before-bert"])
def test_no_node_has_an_unknown_time(name: str) -> None:
    nodes = config.load(name).nodes
    unknown = {node.stage for node in nodes.values() if not stages.TABLE[node.stage].cost_model}
    assert not unknown


@pytest.mark.parametrize(
    ("stage", "field", "inputs"),
    [
        ("likelihood", "limit", {"checkpoint": CHECKPOINT}),
        ("static-vectors", "epochs", {"corpus": {"bytes": 1e8}, "vocab": {"size": 50_000}}),
    ],
)
def test_twice_the_work_takes_twice_the_time(
    stage: str, field: str, inputs: dict[str, dict[str, float]]
) -> None:
    own = stages.TABLE[stage]
    assert own.cost_model is not None
    work = []
    for value in (100, 200):
        plan = PlannedBuild(
            own.config.model_validate({field: value}), inputs, Execution(), MachineSpec()
        )
        estimate = own.cost_model.estimate(plan)
        assert estimate.speed > 0
        work.append(estimate.work)
    assert work[1] == pytest.approx(2 * work[0])
    facts = {
        "config": own.config.model_validate({field: 100}).model_dump(), "tokens": 1000.0,
        "seconds": 10.0, "parameters": 10, "execution": {"device": "cpu"},
    }  # fmt: skip
    measured = own.cost_model.measure(facts)
    assert measured is not None
    assert measured.speed > 0
