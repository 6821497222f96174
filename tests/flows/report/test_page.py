"""The page: one file that needs nothing else, of one node each as of many, and nothing of what it
shows is taken for HTML.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cloze.core.artifacts import artifact
from cloze.core.artifacts.artifact import Manifest
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.flows.report.page import render
from cloze.flows.report.report_nodes import NodePlacement, ReportNode, scores
from cloze.flows.report.stage import FILE, ReportConfig, headline, run

CORPUS = {
    "documents": 14,
    "bytes": 4000,
    "heldout_documents": 2,
    "sources": {"books": {"documents": 14, "bytes": 4000}},
    "dropped": {},
}
DATASET = {
    "tokens": 900, "rows": 30, "copies": 4, "shards": 2, "heldout_rows": 3, "length": 64,
    "pair_labels": {"next": 20}, "length_histogram": [1, 5, 24],
}  # fmt: skip
PRETRAIN = {
    "objectives": ["mlm"], "heldout_loss": 6.2, "unigram_entropy": 5.3, "tokens_per_second": 2000.0,
    "steps": 60, "precision": "bf16",
}  # fmt: skip
HISTORY = [
    {"step": step, "mlm_loss": 7.0 - step / 50, "tokens_per_second": 2000.0}
    for step in range(1, 61)
]


def gathered(
    name: str, summary: dict[str, Any], section: str = "", history: Any = (), **place: Any
) -> ReportNode:
    stage = name.partition("@")[0]
    config = {"task": "<script>alert(1)</script>"}
    manifest = Manifest(
        stage=stage, version=1, fingerprint=name * 3, parents={}, config=config, files=(),
        summary=summary, seconds=75.0,
        counters={"dropped/too_short": 3}, execution=Execution().model_dump(mode="json"),
            created="2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    return ReportNode(
        name=name,
        path=f"/runs/{name}",
        manifest=manifest,
        placement=NodePlacement(section=section or stage, **place),
        history=history,
    )


def single() -> list[ReportNode]:
    return [
        gathered("corpus", CORPUS),
        gathered("vocab", {"size": 2000, "fertility": 1.2}, inputs={"corpus": "corpus"}),
        gathered("dataset", DATASET, inputs={"corpus": "corpus", "vocab": "vocab"}),
        gathered("pretrain", PRETRAIN, history=HISTORY, inputs={"dataset": "dataset"}),
        gathered(
            "finetune",
            {"metrics": {"accuracy": 0.61, "majority": 0.5}},
            inputs={"checkpoint": "pretrain"},
        ),
        gathered("evaluate", {"metrics": {"accuracy": 0.62}}, inputs={"checkpoint": "finetune"}),
    ]


def many() -> list[ReportNode]:
    nodes = single()[:3]
    for row in ("one", "two"):
        inputs = {"dataset": "dataset"}
        nodes.append(
            gathered(
                f"pretrain@{row}", PRETRAIN, history=HISTORY, values={"row": row}, inputs=inputs
            )
        )
        phase = {"continue": f"pretrain@{row}", **inputs}
        later = [{**line, "step": int(line["step"]) + 60} for line in HISTORY]
        nodes.append(
            gathered(
                f"pretrain@512-{row}",
                PRETRAIN,
                "pretrain@512",
                later,
                values={"row": row},
                inputs=phase,
            )
        )
        for seed in (1, 2):
            summary = {"metrics": {"accuracy": 0.5 + seed / 10 + len(row) / 100}}
            values, source = {"seed": seed, "row": row}, {"checkpoint": f"pretrain@512-{row}"}
            nodes.append(gathered(f"finetune@{seed}-{row}", summary, values=values, inputs=source))
    return nodes


def test_a_page_of_one_node_each_shows_all_of_them() -> None:
    masks = [
        {
            "node": "pretrain",
            "text": "Paris is [MASK].",
            "candidates": [{"token": "<b>", "score": 0.5, "sequence": ""}],
        }
    ]
    page = render(single(), scores(single()), masks)
    for told in (
        "14",
        "Pretraining",
        "unigram entropy",
        "0.6100",
        "0.6200",
        "Paris is",
        "too short",
        "Filled masks",
    ):
        assert told in page
    assert "Scores of" not in page
    assert "<code>pretrain</code>" not in page


def test_one_fine_tuning_shows_its_main_metric() -> None:
    """A manifest's keys are sorted by name, so the first one is another metric."""
    summary = {
        "metric": "matthews",
        "metrics": {"accuracy": 0.77, "constant": 0.0, "majority": 0.0, "matthews": 0.45},
    }
    nodes = [gathered("finetune", summary)]
    page = render(nodes, scores(nodes), [])
    assert ("0.450", "matthews") in re.findall(r"<b>([^<]*)</b>\s*<span>([^<]*)</span>", page)
    assert "matthews on dev" in page
    summary["metrics"] = {"matthews": float("nan")}
    assert "nan" not in render(nodes, scores(nodes), []).partition("<h2")[0]


def test_a_page_of_many_shows_rows_seeds_and_all_curves() -> None:
    page = render(many(), scores(many()), [])
    assert page.count("Scores of") == 3, "of both phases of pretraining, and of fine-tuning"
    for name in ("pretrain@one", "pretrain@512-two", "finetune@one", "finetune@2-two"):
        assert name in page
    assert "accuracy, seed 1" in page
    assert "0.680 ± 0.071" in page
    assert "Fine-tuning</h2>" not in page
    assert '<svg class="graph"' in page


def test_sections_of_one_stage_share_a_table_and_only_equal_data_are_compared() -> None:
    """Two parts of a suite, each with two seeds, as `score@ewok-1` of a preset."""
    nodes = [
        gathered(f"score@{part}{seed}", {"task": "minimal-pairs", "metrics": {"accuracy": share}},
                 f"score@{part}".strip("-@"), values={"seed": seed})
        for part, share in (("", 0.6), ("ewok-", 0.5)) for seed in (1, 2)
    ]  # fmt: skip
    page = render(nodes, scores(nodes), [])
    assert page.count("Scores of") == 1
    assert "score@ewok" in page
    assert 'class="best"' in page
    for node, data in zip(nodes, "aabb", strict=True):
        node.manifest.parents["data"] = data
    assert 'class="best"' not in render(nodes, scores(nodes), [])


def test_unlike_tasks_are_neither_averaged_nor_compared() -> None:
    nodes = [
        gathered(f"finetune@{task}-{seed}", {"task": task, "metric": metric,
        "metrics": {metric: score + seed / 100}},
                 values={"task": task, "seed": seed})
        for task, metric, score in (("sst2", "accuracy", 0.80), ("stsb", "pearson",
        0.20)) for seed in (1, 2)
    ]  # fmt: skip
    page = render(nodes, scores(nodes), [])
    assert page.count("Scores of") == 1
    for told in (
        "sst2 accuracy",
        "stsb pearson",
        "0.815 ± 0.007",
        "0.215 ± 0.007",
        "there is no average over tasks",
        ">seed 2",
    ):
        assert told in page
    assert "0.515" not in page, "the mean of both tasks"
    assert 'class="best"' not in page
    one = [node for node in nodes if node.manifest.summary["task"] == "sst2"]
    assert "there is no average" not in render(one, scores(one), [])


def test_a_page_needs_no_network_and_takes_nothing_for_html() -> None:
    evil = gathered(
        "corpus",
        {**CORPUS, "sources": {"<img src=x onerror=alert(1)>": {"documents": 1, "bytes": 1}}},
    )
    masks = [
        {
            "node": "<i>x</i>",
            "text": "<script>alert(2)</script> [MASK]",
            "candidates": [{"token": "<b>bold</b>", "score": 0.1}],
        }
    ]
    page = render([evil, *single()[1:]], scores(single()), masks)
    assert not re.search(
        r"<script|<img|<b>bold|<i>x|onerror=alert\(1\)>(?!&)", page.replace("&lt;", "‹")
    )
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", page)


def test_five_hundred_nodes_fit_on_a_page() -> None:
    nodes = single()[:4]
    nodes += [
        gathered(
            f"finetune@{n}",
            {"metrics": {"accuracy": 0.5}},
            values={"seed": n},
            inputs={"checkpoint": "pretrain"},
        )
        for n in range(500)
    ]
    page = render(nodes, scores(nodes), [])
    assert "and 444 more" in page
    assert len(page) < 2_000_000


def test_the_stage_reads_artifacts_and_tells_scores(tmp_path: Path) -> None:
    inputs = {}
    for node in [*single()[:3], *single()[4:]]:
        path = tmp_path / node.name
        path.mkdir()
        (path / artifact.MANIFEST).write_text(json.dumps(asdict(node.manifest)))
        inputs[node.name] = str(path)
    build = BuildContext(path=str(tmp_path), inputs=inputs, execution=Execution(), fingerprint="")
    outcome = run(ReportConfig(), build)
    assert (tmp_path / FILE).read_text().startswith("<!doctype html>")
    assert outcome.summary["masks"] == []
    assert outcome.summary["scores"]["evaluate"]["accuracy"] == {
        "mean": 0.62,
        "std": None,
        "best": 0.62,
        "best_node": "evaluate",
        "n": 1,
    }
    assert outcome.summary["groups"]["evaluate"] == {
        "section": "evaluate",
        "task": None,
        "score": "accuracy",
        "values": {},
        "over": [],
    }
    assert json.loads(json.dumps(outcome.summary)) == outcome.summary


def test_the_headline_is_of_what_was_evaluated_last() -> None:
    assert headline({"scores": {}}) == ""
    told = {"mean": 0.5, "best": 0.6, "best_node": "finetune@2", "n": 2, "std": 0.1}
    assert (
        headline({"scores": {"pretrain": {"heldout_loss": {**told, "n": 1}}}})
        == "pretrain heldout loss 0.500"
    )
    assert (
        headline({"scores": {"pretrain": {"x": told}, "finetune": {"macro_f1": told}}})
        == "finetune macro f1, best 0.600 by finetune@2, mean of 2 0.500"
    )
    tasks = {
        f"finetune@{task}": {"accuracy": told, "matthews": {**told, "mean": 0.4}}
        for task in ("cola", "rte")
    }
    which = {"finetune@cola": {"score": "matthews"}, "finetune@rte": {"score": "accuracy"}}
    assert (
        headline({"scores": tasks, "groups": which})
        == "finetune@cola matthews 0.400, finetune@rte accuracy 0.500"
    )
    many = {f"finetune@{number}": {"accuracy": told} for number in range(5)}
    assert headline({"scores": many}).endswith("finetune@2 accuracy 0.500 and 2 more")


@pytest.mark.parametrize(
    ("labels", "is_shown"),
    [({"next": 0, "random": 0, "none": 30}, False), ({"next": 10, "random": 12, "none": 8}, True)],
)
def test_rows_of_one_segment_have_no_counts_of_pairs(
    labels: dict[str, int], is_shown: bool
) -> None:
    nodes = [gathered("dataset", {**DATASET, "pair_labels": labels})]
    page = render(nodes, scores(nodes), [])
    assert ("pairs labelled" in page) is is_shown
