"""What the gate compares: labels where the score follows from them, else the scores by seed;
whatever file a task's predictions are in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cloze.core.artifacts import artifact
from cloze.core.artifacts.artifact import Manifest
from cloze.core.stages.execution import Execution
from cloze.flows.graph.nodes import InputSource, Node
from cloze.flows.nightly.evaluation_results import gather
from cloze.flows.nightly.promotion_gate import SeedScores, TaskPredictions, TextLosses
from cloze.model.tasks.evaluate.stage import EvaluateConfig
from cloze.model.tasks.finetune.stage import FinetuneConfig
from cloze.model.use.configs import PerplexityConfig

Write = Callable[[Path], None]


def table(*rows: str) -> Write:
    return lambda path: (path / "predictions.tsv").write_text("\n".join(rows) + "\n") and None  # type: ignore[return-value]


def made(
    directory: Path,
    seed: int | None,
    summary: dict[str, Any],
    write: Write | None = None,
    reads: Sequence[str] = (),
) -> tuple[Node, str]:
    """A fine-tuning of a seed, or the evaluation of those that it reads."""
    stage = "evaluate" if reads else "finetune"
    name = f"{stage}@x-{seed}-demo"
    path = directory / name
    path.mkdir()
    if write is not None:
        write(path)
    manifest = Manifest(
        stage=stage,
        version=1,
        fingerprint=name,
        parents={},
        config={},
        files=(),
        summary=summary,
    )
    artifact.write_manifest(str(path), manifest)
    node = Node(
        name=name,
        stage=stage,
        section=stage,
        values={"of": "demo"} | ({} if seed is None else {"seed": seed}),
        config=EvaluateConfig() if reads else FinetuneConfig(),
        execution=Execution(),
        inputs={
            f"checkpoint/{key}" if len(reads) > 1 else "checkpoint": InputSource(node=key)
            for key in reads
        },
    )
    return node, str(path)


def answers(
    directory: Path, summary: dict[str, Any], write: Write | None = None
) -> TaskPredictions | SeedScores:
    nodes = [
        made(
            directory, seed, {**summary, "metrics": dict(sorted(summary["metrics"].items()))}, write
        )
        for seed in (1, 2)
    ]
    found = gather(nodes)["demo"]
    return found.answers["x"]


def test_labels_are_compared_example_by_example_by_the_task_s_own_score(tmp_path: Path) -> None:
    rows = table("index\ttext\tlabel\tprediction\tscore", "0\ta\t1\t1\t0.9", "1\tb\t0\t1\t0.6")
    summary = {
        "task": "x",
        "metric": "matthews",
        "metrics": {"matthews": 0.4, "accuracy": 0.5},
        "predictions": "predictions.tsv",
    }
    found = answers(tmp_path, summary, rows)
    assert isinstance(found, TaskPredictions)
    assert (found.metric, found.labels) == (
        "matthews",
        ["1", "0"],
    )  # not accuracy, the first in the manifest's alphabet
    assert found.predictions == {"1": ["1", "1"], "2": ["1", "1"]}


@pytest.mark.parametrize("labels", [["b", "a"], ["a", "b"], None])
def test_class_1_of_f1_is_the_task_s(tmp_path: Path, labels: list[str] | None) -> None:
    """The fine-tuning's checkpoint has the labels in order; its evaluation reads that."""
    rows = table("index\ttext\tlabel\tprediction", "0\tt\ta\ta", "1\tu\tb\ta", "2\tv\tb\tb")

    def write(path: Path) -> None:
        (path / "checkpoint").mkdir()
        task = {"name": "x"} if labels is None else {"name": "x", "labels": labels}
        (path / "checkpoint" / "config.json").write_text(json.dumps({"task": task}))
        rows(path)

    summary = {
        "task": "x",
        "metric": "f1",
        "metrics": {"f1": 0.5},
        "predictions": "predictions.tsv",
    }
    trained = made(tmp_path, 1, summary, write)
    evaluated = made(tmp_path, 2, summary, rows, reads=[trained[0].name])
    for nodes in ([trained], [trained, evaluated]):
        found = gather(nodes)["demo"].answers["x"]
        assert isinstance(found, TaskPredictions)
        assert list(found.classes) == (labels or [])


@pytest.mark.parametrize(
    ("metric", "file", "write"),
    [
        (
            "pearson",
            "predictions.tsv",
            table("index\ttext\tlabel\tprediction", "0\ta\t2.5\t2.4"),
        ),  # numbers are no labels
        (
            "f1",
            "predictions.json",
            lambda path: (path / "predictions.json").write_text('{"q": "an answer"}'),
        ),
        (
            "f1",
            "predictions.txt",
            lambda path: (path / "predictions.txt").write_text("EU NNP B-ORG I-ORG\n\n"),
        ),
        (
            "mean",
            "predictions",
            lambda path: (path / "predictions").mkdir(),
        ),  # several tasks at once
        ("accuracy", "predictions.tsv", table("word\ttag", "EU\tB-ORG")),
    ],
)
def test_other_answers_are_compared_by_their_seeds(
    tmp_path: Path, metric: str, file: str, write: Write
) -> None:
    found = answers(
        tmp_path,
        {
            "task": "x",
            "metric": metric,
            "metrics": {metric: 0.5, "aside": 0.1},
            "predictions": file,
        },
        write,
    )
    assert found == SeedScores(metric=metric, values={"1": 0.5, "2": 0.5})


def test_an_ensemble_counts_beside_its_members_and_the_gate_compares_the_members(
    tmp_path: Path,
) -> None:
    def summary(score: float) -> dict[str, Any]:
        return {
            "task": "x",
            "metric": "accuracy",
            "metrics": {"accuracy": score},
            "predictions": "predictions.tsv",
        }

    rows = table("index\ttext\tlabel\tprediction", "0\ta\t1\t1")
    members = [made(tmp_path, seed, summary(score), rows) for seed, score in ((1, 0.5), (2, 0.7))]
    names = [node.name for node, _ in members]
    together = made(tmp_path, None, summary(0.9), rows, names)
    found = gather([*members, together])["demo"]
    assert found.values == {"x": {"1": 0.5, "2": 0.7}, "x (ensemble)": {"0": 0.9}}
    assert found.answers.keys() == {"x"}

    alone = made(tmp_path, 1, summary(0.6), rows, names[:1])  # an evaluation of one member
    assert gather([*members, together, alone])["demo"].values == {
        "x": {"1": 0.6, "2": 0.7},
        "x (ensemble)": {"0": 0.9},
    }


def test_held_out_text_is_compared_by_the_losses_of_its_rows(tmp_path: Path) -> None:
    def scored(name: str, dataset: str, losses: list[float]) -> TextLosses:
        path = tmp_path / name
        path.mkdir()
        (path / "losses.json").write_text(
            json.dumps({"objective": "mlm", "predictions": [3.0, 4.0], "losses": losses})
        )
        summary = {
            "metrics": {"heldout_loss": 2.0, "heldout_perplexity": 7.4},
            "losses": "losses.json",
        }
        parents = {"dataset": dataset}
        manifest = Manifest(
            stage="perplexity",
            version=2,
            fingerprint=name,
            parents=parents,
            config={},
            files=(),
            summary=summary,
        )
        artifact.write_manifest(str(path), manifest)
        node = Node(
            name=name,
            stage="perplexity",
            section="perplexity",
            values={"of": "demo"},
            config=PerplexityConfig(),
            execution=Execution(),
            inputs={},
        )
        found = gather([(node, str(path))])["demo"]
        assert found.perplexity == 7.4
        assert not found.values  # it is no task of the trend page
        answer = found.answers["held-out text"]
        assert isinstance(answer, TextLosses)
        return answer

    one, other, elsewhere = (
        scored("a", "d", [6.0, 8.0]),
        scored("b", "d", [5.0, 8.0]),
        scored("c", "e", [6.0, 8.0]),
    )
    assert (one.predictions, one.losses, other.losses) == ([3.0, 4.0], [6.0, 8.0], [5.0, 8.0])
    assert one.examples == other.examples != elsewhere.examples
