"""The plan as a tree: each node below its last input, in 80 and in 140 columns, many instances in
one line.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cloze.flows.graph import estimate, plan
from cloze.flows.graph.config import RunConfig, samples_directory
from cloze.flows.graph.estimate import Estimate
from cloze.flows.graph.plan import PlannedNode
from cloze.flows.views import run_tables
from cloze.flows.views.terminal import group_instances

BASE: dict[str, Any] = {
    "corpus": {"sources": [{"kind": "books", "path": str(samples_directory() / "books")}]},
    "vocab": {},
    "dataset": {},
    "dataset@512": {"length": 512},
    "pretrain": {"dataset": "dataset"},
    "pretrain@512": {"continue": "pretrain", "dataset": "dataset@512"},
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path / "runs"))


def planned(**sections: Any) -> list[PlannedNode]:
    return plan.plan(RunConfig({**BASE, **sections}, "toy"))


def shown(
    steps: list[PlannedNode],
    width: int,
    found: dict[str, Estimate] | None = None,
    together: float | None = 600.0,
) -> str:
    out = Console(file=io.StringIO(), width=width, highlight=False)
    told = found or {
        step.name: Estimate(
            seconds=60.0, disk_bytes=2_000_000, memory_bytes=3_000_000_000, basis="scaled"
        )
        for step in steps
    }
    run_tables.show(out, steps, told, together)
    assert isinstance(out.file, io.StringIO)
    text = out.file.getvalue()
    assert all(len(line) <= width for line in text.splitlines())
    return text


@pytest.mark.parametrize("width", [80, 140])
def test_each_node_stands_below_its_last_input_and_the_others_are_named(width: int) -> None:
    lines = shown(planned(report={}), width).splitlines()
    drawn = [line.partition("1 min")[0].rstrip() for line in lines if "run:" in line]
    assert drawn == [
        "corpus",
        "└ vocab",
        "  ├ dataset",
        "  │ └ pretrain",
        "  │   └ pretrain@512",
        "  │     └ report",
        "  └ dataset@512",
    ]
    text = " ".join(" ".join(lines).split())
    assert "← dataset@512" in text
    assert "← corpus" not in text, "it is needed by what the node stands below"


def test_what_it_takes_is_told_and_summed_up() -> None:
    text = shown(planned(), 140)
    assert text.count("1 min 00 s") == 6
    assert (
        "6 of 6 nodes would run; 6 min 00 s of work, 10 min 00 s until all is made; 12 MB of "
        "disk, at most 3 GB of memory a node."
    ) in text
    assert "6 scaled from measured runs" in text


def test_what_nobody_measured_is_marked_and_what_nobody_knows_is_a_dash() -> None:
    steps = planned()
    found = {step.name: Estimate(seconds=60.0, basis="rough") for step in steps} | {
        "pretrain": Estimate()
    }
    lines = {
        line.strip("└├│ ").split()[0]: line
        for line in shown(steps, 140, found).splitlines()
        if "run:" in line
    }
    assert "~1 min 00 s" in lines["vocab"]
    assert "–" in lines["pretrain"]
    text = shown(steps, 140, found, together=None)
    assert "of disk" not in text, "0 B is a figure"
    assert "of work" not in text, "a sum without one of its parts is none"
    assert "5 rough (~): nothing like it was measured yet, 1 not known" in text


@pytest.mark.parametrize("width", [80, 140])
def test_five_hundred_nodes_take_a_line_a_section(width: int) -> None:
    steps = planned(finetune={"matrix": {"task": ["sst2", "package"], "seed": list(range(250))}})
    text = shown(steps, width)
    assert len(text.splitlines()) < 25
    assert "500 instances" in " ".join(text.split())
    assert "finetune@{task}-{seed}" in text


def test_few_nodes_of_a_matrix_are_told_apart() -> None:
    assert "finetune@3" in shown(planned(finetune={"matrix": {"seed": [1, 2, 3]}}), 80)


def test_cached_instances_are_counted() -> None:
    import dataclasses

    steps = planned(finetune={"matrix": {"seed": list(range(50))}})
    some = [
        dataclasses.replace(step, cached=True, reason="")
        if step.name in ("finetune@1", "finetune@2")
        else step
        for step in steps
    ]
    assert "50 instances: 2 cached, 48 run: not made yet" in shown(some, 140, None)
    everything = [dataclasses.replace(step, cached=True, reason="") for step in steps]
    text = shown(everything, 140, {step.name: estimate.NOTHING for step in steps})
    assert "50 instances cached" in text
    assert text.rstrip().endswith("Nothing to do.")


def test_a_name_that_is_longer_than_its_room_goes_on_below_itself() -> None:
    text = shown(planned(**{f"finetune@{'x' * 60}": {}}), 80)
    assert "x" * 60 in "".join(char for char in text if char in "x")
    assert text.count("x") >= 60


def test_instances_share_a_line_only_where_there_are_many_and_those_apart_never() -> None:
    names = [f"finetune@{n}" for n in range(60)] + ["report"]
    sections = {name: name.partition("@")[0] for name in names}
    assert group_instances(names[:40], sections) == {name: [name] for name in names[:40]}
    lines = group_instances(names, sections, apart=["finetune@7"])
    assert {line: len(found) for line, found in lines.items()} == {
        "finetune (59)": 59,
        "finetune@7": 1,
        "report": 1,
    }
