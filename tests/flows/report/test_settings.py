"""The table of a grid's settings, and of several tasks at once beside each alone."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cloze.core.artifacts.artifact import Manifest
from cloze.flows.report.report_nodes import (
    NodePlacement,
    ReportNode,
    best_setting,
    best_settings,
    multitask_versus_single,
    scores,
)
from cloze.flows.report.stage import headline


def node(
    name: str,
    task: str,
    metrics: dict[str, float],
    config: dict[str, Any] | None = None,
    /,
    **values: Any,
) -> ReportNode:
    metric = next(iter(metrics))
    manifest = Manifest(
        stage="finetune",
        version=1,
        fingerprint=name,
        parents={},
        config=config or {},
        files=(),
        summary={"task": task, "metric": metric, "metrics": dict(sorted(metrics.items()))},
    )
    return ReportNode(
        name=name,
        path=name,
        manifest=manifest,
        placement=NodePlacement(section="finetune", values=values),
    )


def test_the_best_setting_is_the_one_of_the_best_mean_over_seeds() -> None:
    scores = {("5e-5", 16): (0.5, 0.9), ("5e-5", 32): (0.75, 0.77), ("2e-5", 16): (0.6, 0.6)}
    nodes = [
        node(f"finetune@mrpc-{rate}-{batch}-{seed}", "mrpc", {"f1": value, "accuracy": 0.1},
        task="mrpc", learning_rate=rate, global_batch=batch, seed=seed)
        for (rate, batch), values in scores.items()
        for seed, value in enumerate(values)
    ]  # fmt: skip
    (told,) = best_settings(nodes)
    assert told.title == "Settings of mrpc, f1 on dev"
    assert told.columns == ("learning_rate", "global_batch", "mean", "deviation", "best", "n")
    assert [row[:3] for row in told.rows] == [
        ("5e-5", "32", "0.7600"),
        ("5e-5", "16", "0.7000"),
        ("2e-5", "16", "0.6000"),
    ]
    assert told.rows[0][3:] == ("0.0141", "0.7700", "2")
    table = told.as_json()
    assert (
        best_setting([table])
        == "mrpc, f1 on dev: best with learning_rate 5e-5, global_batch 32, mean 0.7600 of 2"
    )
    assert best_setting([table, table]) is None  # of two tasks
    summary = {
        "scores": {"finetune": {"f1": {"mean": 0.68, "best": 0.9, "best_node": "a", "n": 6}}},
        "tables": [table],
    }
    assert headline(summary) == best_setting([table])
    assert headline({**summary, "tables": [table, table]}) == "2 tables"
    evaluated = {"f1": {"mean": 0.5, "best": 0.5, "best_node": "b", "n": 1}}
    assert (
        headline({**summary, "scores": {**summary["scores"], "evaluate": evaluated}})
        == "evaluate f1 0.500"
    )


def test_each_task_of_a_grid_has_its_own_table_and_seeds_alone_have_none() -> None:
    nodes = [
        node(f"finetune@{task}-{rate}", task, {"accuracy": 0.5}, task=task, rate=rate)
        for task in ("a", "b")
        for rate in (1, 2)
    ]
    assert [told.title for told in best_settings(nodes)] == [
        "Settings of a, accuracy on dev",
        "Settings of b, accuracy on dev",
    ]
    assert not best_settings(
        [node(f"finetune@{seed}", "a", {"accuracy": 0.5}, task="a", seed=seed) for seed in (1, 2)]
    )
    assert not best_settings(
        [node(f"finetune@{task}", task, {"accuracy": 0.5}, task=task) for task in ("a", "b")]
    )


def test_several_tasks_at_once_stand_beside_each_alone() -> None:
    alone = [
        node(f"finetune@rte-{seed}", "rte", {"accuracy": 0.5 + seed / 10}, task="rte", seed=seed)
        for seed in (1, 2)
    ]
    both = node(
        "finetune@multitask-1",
        "multitask",
        {"mean": 0.7, "own_accuracy": 0.75},
        {"tasks": {"own": {"task": "rte"}}},
        seed=1,
    )
    told = multitask_versus_single([*alone, both])
    assert told is not None
    assert told.rows == [("finetune", "own", "accuracy", "0.650 ± 0.071", "0.750", "+0.100")]
    assert multitask_versus_single(alone) is None


def test_several_tasks_at_once_are_compared_with_models_of_their_own_setting() -> None:
    rows = (("small", 0.5), ("big", 0.9))
    alone = [
        node(f"finetune@rte-{row}", "rte", {"accuracy": score}, task="rte", row=row)
        for row, score in rows
    ]
    tasks = {"tasks": {"rte": {}}}
    both = [
        node(f"finetune@all-{row}", "multitask", {"rte_accuracy": score + 0.05}, tasks, row=row)
        for row, score in rows
    ]
    table = multitask_versus_single([*alone, *both])
    assert table is not None
    assert [row[:1] + row[3:] for row in table.rows] == [
        ("finetune@small", "0.500", "0.550", "+0.050"),
        ("finetune@big", "0.900", "0.950", "+0.050"),
    ]
    one = node("finetune@all", "multitask", {"rte_accuracy": 0.7}, tasks)
    table = multitask_versus_single([*alone, one])
    assert table is not None
    assert [row[1:] for row in table.rows] == [
        ("rte, finetune@rte-small", "accuracy", "0.500", "0.700", "+0.200"),
        ("rte, finetune@rte-big", "accuracy", "0.900", "0.700", "-0.200"),
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "0.9", True])
def test_a_model_without_its_main_figure_is_not_ranked_by_another(value: Any) -> None:
    good = node("finetune@a-1", "a", {"f1": 0.5, "accuracy": 0.6}, task="a", rate=1)
    odd = node("finetune@a-2", "a", {"f1": value, "accuracy": 0.9}, task="a", rate=2)
    assert list(good.scores) == ["f1", "accuracy"]
    assert odd.scores == {}
    assert list(scores([good, odd])) == ["finetune"]
    assert best_settings([good, odd]) == []
