"""What a report makes of many nodes: scores over instances, the last pretrainings, curves on one
axis.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pytest

from cloze.core.artifacts.artifact import Manifest
from cloze.core.figures import lower_is_better
from cloze.flows.report.report_nodes import (
    NodePlacement,
    ReportNode,
    cross_tests,
    curves,
    describe_groups,
    last_pretrainings,
    scores,
)


def node(
    name: str,
    summary: Mapping[str, Any],
    section: str = "",
    values: Mapping[str, Any] | None = None,
    inputs: Mapping[str, str] | None = None,
    history: list[dict[str, Any]] | None = None,
) -> ReportNode:
    stage = name.partition("@")[0]
    manifest = Manifest(
        stage=stage,
        version=1,
        fingerprint=name,
        parents={},
        config={},
        files=(),
        summary=dict(summary),
    )
    place = NodePlacement(
        section=section or stage, values=dict(values or {}), inputs=dict(inputs or {})
    )
    return ReportNode(
        name=name, path=f"/runs/{name}", manifest=manifest, placement=place, history=history or []
    )


def tuned(task: str, seed: int, accuracy: float, stage: str = "finetune") -> ReportNode:
    return node(
        f"{stage}@{task}-{seed}",
        {"metrics": {"accuracy": accuracy, "f1": accuracy / 2}},
        values={"task": task, "seed": seed},
    )


def pretrained(
    name: str, loss: float | None, first: int = 1, last: int = 4, **inputs: str
) -> ReportNode:
    history = [{"step": step, "mlm_loss": 7.0 - step / 10} for step in range(first, last + 1)] + [
        {"step": last, "heldout_loss": 6.0}
    ]
    return node(
        name,
        {"objectives": ["mlm", "nsp"], "heldout_loss": loss},
        section=name,
        inputs=inputs,
        history=history,
    )


def test_mean_and_deviation_are_over_seeds_and_the_best_is_named() -> None:
    found = scores([tuned("sst2", 1, 0.8), tuned("sst2", 2, 0.9), tuned("sst2", 3, 0.7)])
    assert set(found) == {"finetune"}
    score = found["finetune"]["accuracy"]
    assert (score.mean, score.best, score.best_node, score.n) == (
        pytest.approx(0.8),
        0.9,
        "finetune@sst2-2",
        3,
    )
    assert score.std == pytest.approx(0.1)
    assert score.format == "0.800 ± 0.100"


def test_each_task_and_setting_has_its_own_and_there_is_no_mean_over_them() -> None:
    nodes = [
        tuned(task, seed, value)
        for task, value in (("sst2", 0.9), ("package", 0.5))
        for seed in (1, 2)
    ]
    nodes += [
        node(f"finetune@rates-{name}-{seed}", {"task": "cola", "metric": "matthews",
        "metrics": {"accuracy": 0.7, "matthews": score}},
             "finetune@rates", {"rate": name, "seed": seed})
        for name, score in (("low", 0.2), ("high", 0.4)) for seed in (1, 2, 3)
    ]  # fmt: skip
    found, told = scores(nodes), describe_groups(nodes)
    assert {group: metrics[told[group]["score"]].n for group, metrics in found.items()} == {
        "finetune@sst2": 2,
        "finetune@package": 2,
        "finetune@rates-low": 3,
        "finetune@rates-high": 3,
    }
    assert found["finetune@package"]["accuracy"].mean == 0.5
    assert found["finetune@sst2"]["f1"].best_node == "finetune@sst2-1"
    assert told["finetune@rates-low"] == {
        "section": "finetune@rates",
        "task": "cola",
        "score": "matthews",
        "values": {"rate": "low"},
        "over": ["seed"],
    }


def test_one_instance_has_no_deviation() -> None:
    score = scores([node("evaluate", {"metrics": {"accuracy": 0.5}})])["evaluate"]["accuracy"]
    assert asdict(score) == {
        "mean": 0.5,
        "std": None,
        "best": 0.5,
        "best_node": "evaluate",
        "n": 1,
    }


def test_the_least_loss_is_the_best_and_what_is_no_number_is_left_out() -> None:
    found = scores([pretrained("pretrain", 6.0), pretrained("pretrain@b", None)])
    assert set(found) == {"pretrain"}
    low = scores(
        [
            node(f"pretrain@{n}", {"heldout_loss": loss}, values={"seed": n})
            for n, loss in ((1, 5.0), (2, 4.0))
        ]
    )
    assert low["pretrain"]["heldout_loss"].best_node == "pretrain@2"
    assert not scores([node("evaluate", {"metrics": {"accuracy": math.nan, "label": "x"}})])
    assert [
        lower_is_better(name) for name in ("heldout_loss", "perplexity", "accuracy", "macro_f1")
    ] == [
        True,
        True,
        False,
        False,
    ]


def test_the_last_of_each_chain_of_phases_fills_masks() -> None:
    nodes = [
        pretrained("pretrain", 6.0),
        pretrained("pretrain@512", 5.0, **{"continue": "pretrain"}),
        pretrained("pretrain@decay", 5.0, **{"continue": "pretrain/checkpoints/step-00000002"}),
        pretrained("pretrain@other", 5.0),
        tuned("sst2", 1, 0.5),
    ]
    assert [one.name for one in last_pretrainings(nodes)] == [
        "pretrain@512",
        "pretrain@decay",
        "pretrain@other",
    ]


def test_phases_stand_one_after_another_on_one_axis() -> None:
    """Steps of `continue` go on by themselves; those that begin anew from weights are put behind
    them.
    """
    first, second, branch, anew, again = curves(
        [
            pretrained("pretrain", 6.0, 1, 4),
            pretrained("pretrain@512", 5.0, 5, 6, **{"continue": "pretrain"}),
            pretrained(
                "pretrain@branch", 5.0, 1, 2, checkpoint="pretrain/checkpoints/step-00000002"
            ),
            pretrained("pretrain@anew", 5.0, 1, 3, checkpoint="pretrain@512"),
            pretrained("pretrain@again", 5.0, 1, 1, checkpoint="pretrain@anew"),
        ]
    )
    assert [step for step, _ in first.train] == [1, 2, 3, 4]
    assert [step for step, _ in second.train] == [5, 6]
    assert [step for step, _ in branch.train] == [3, 4]
    assert [step for step, _ in anew.train] == [7, 8, 9]
    assert [step for step, _ in again.train] == [10]
    assert second.heldout == ((6, 6.0),)
    assert first.objective == "mlm"


def test_a_test_on_another_task_is_a_cell_of_a_square() -> None:
    cells = {("mnli", "rte"): (0.6, 0.8), ("mnli", "mnli"): (0.9,), ("rte", "rte"): (0.7,)}
    nodes = [
        node(
            f"evaluate@{tested}-{trained}-{seed}",
            {
                "trained_on": trained,
                "task": tested,
                "split": "dev",
                "metric": "accuracy",
                "metrics": {"accuracy": score},
            },
        )
        for (trained, tested), scores_of_seeds in cells.items()
        for seed, score in enumerate(scores_of_seeds)
    ]
    table = cross_tests(nodes)
    assert table is not None
    assert table.columns == ("trained on", "rte dev, accuracy", "mnli dev, accuracy")
    assert table.rows == [("mnli", "0.700 ± 0.141", "0.900"), ("rte", "0.700", "")]
    assert cross_tests([tuned("rte", 1, 0.5, "evaluate")]) is None


def test_other_settings_are_other_rows_of_the_square() -> None:
    summary = {"trained_on": "rte", "task": "mnli", "split": "dev", "metric": "accuracy"}
    nodes = [
        node(
            f"evaluate@{size}",
            {**summary, "metrics": {"accuracy": score}},
            values={"row": size, "task": "rte", "test_on": "mnli", "seed": 1},
        )
        for size, score in (("small", 0.5), ("big", 0.9))
    ]
    table = cross_tests(nodes)
    assert table is not None
    assert table.rows == [("rte, row small", "0.500"), ("rte, row big", "0.900")]
