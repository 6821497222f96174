"""Where each node of a plan runs, and what its job gets there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cloze.core.stages.execution import Resources
from cloze.flows.commands import run as run_commands
from cloze.flows.graph import plan
from cloze.flows.graph.config import RunConfig, samples_directory
from cloze.flows.graph.estimate import Estimate, place, resources
from tests.flows.views.test_plan_tree import shown

SOURCES = [{"kind": "books", "path": str(samples_directory() / "books")}]
GIB = 1 << 30
COST = Estimate(seconds=600.0, memory_bytes=3 * GIB, basis="measured")


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path / "runs"))


def planned(**sections: Any) -> dict[str, plan.PlannedNode]:
    base = {"corpus": {"sources": SOURCES}, "vocab": {}, "dataset": {}, "pretrain": {},
            "finetune": {"task": "sst2", "data": str(samples_directory() / "tasks" / "sentiment")},
            "evaluate": {}, "report": {}}  # fmt: skip
    return {step.name: step for step in plan.plan(RunConfig({**base, **sections}, "toy"))}


@pytest.mark.parametrize(
    ("node", "run", "expected"),
    [
        ("corpus", {"workers": 8}, Resources(gpus=0, cpus=8, memory="7200M", time="35m")),
        ("vocab", {}, Resources(gpus=0, cpus=1, memory="7200M", time="35m")),
        ("report", {}, Resources(gpus=0, memory="7200M", time="35m")),
        ("evaluate", {}, Resources(memory="7200M", time="35m")),
        ("evaluate", {"threads": 4, "device": "cpu"},
         Resources(gpus=0, cpus=4, memory="7200M", time="35m")),
        ("evaluate", {"device": "cuda"}, Resources(gpus=1, memory="7200M", time="35m")),
        ("evaluate", {"resources": {"gpus": 2, "time": "9h"}},
         Resources(gpus=2, memory="7200M", time="540m")),
        ("evaluate", {"resources": {"gpus": 0, "memory": "1G"}},
         Resources(gpus=0, memory="1G", time="35m")),
        ("pretrain", {}, Resources()),
        ("pretrain", {"resources": {"gpus": 8}}, Resources(gpus=8)),
    ],
)  # fmt: skip
def test_what_the_config_leaves_out_is_estimated_for_stages_of_one_process(
    node: str, run: dict[str, Any], expected: Resources
) -> None:
    step = planned(run={"launcher": "slurm", **run})[node]
    assert resources(step, COST) == expected


@pytest.mark.parametrize(("basis", "minutes"), [("measured", 35), ("scaled", 45), ("rough", 65)])
def test_the_margin_follows_from_what_is_known(basis: Any, minutes: int) -> None:
    step = planned(run={"launcher": "slurm"})["vocab"]
    assert resources(step, Estimate(seconds=600.0, basis=basis)).minutes == minutes
    assert resources(step, Estimate()) == Resources(gpus=0, cpus=1), "nothing is known"


def test_the_plan_says_where_each_stage_runs() -> None:
    steps = planned(
        run={"launcher": "slurm", "nodes": 2, "processes": 4},
        report={"launcher": "local"},
        evaluate={"resources": {"gpus": 1, "cpus": 2}},
    )
    assert place(steps["report"], COST) == "this host"
    assert place(steps["pretrain"], COST) == "slurm (nodes 2, processes 4 each)"
    assert place(steps["evaluate"], COST) == "slurm (1 GPU, 2 cores, 7200M, 35m)"
    text = shown([*steps.values()], 140)
    assert "on slurm (nodes 2, processes 4 each): pretrain, finetune\n" in text
    assert "on this host: report\n" in text
    assert "on " not in shown([*planned().values()], 140).partition("\n\n")[0].partition("what")[2]


def test_the_plan_says_it_in_json(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(json.dumps({"corpus": {"sources": SOURCES}, "run": {"launcher": "slurm"}}))
    done = CliRunner().invoke(run_commands.plan, [str(file), "--json"])
    (node,) = json.loads(done.stdout)["nodes"]
    assert node["launcher"] == "slurm"
    assert node["resources"]["cpus"] == 1
    assert node["resources"]["memory"].endswith("M")
