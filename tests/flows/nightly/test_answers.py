"""What the gate compares: labels where the score follows from them, else the scores by seed;
whatever file a task's predictions are in.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloze.core.artifacts import artifact
from cloze.core.artifacts.artifact import Manifest
from cloze.core.stages.execution import Execution
from cloze.flows.graph.nodes import Node
from cloze.flows.nightly.evaluation_results import gather
from cloze.flows.nightly.promotion_gate import SeedScores, TaskPredictions, TextLosses
from cloze.model.tasks.finetune.stage import FinetuneConfig
from cloze.model.use.configs import PerplexityConfig

Write = Callable[[Path], None]


def table(*rows: str) -> Write:
    return lambda path: (path / "predictions.tsv").write_text("\n".join(rows) + "\n") and None  # type: ignore[return-value]


def made(
    directory: Path, seed: int, summary: dict[str, Any], write: Write | None = None
) -> tuple[Node, str]:
    name = f"finetune@demo-x-{seed}"
    path = directory / name
    path.mkdir()
    if write is not None:
        write(path)
    manifest = Manifest(
        stage="finetune",
        version=1,
        fingerprint=name,
        parents={},
        config={},
        files=(),
        summary=summary,
    )
    artifact.write_manifest(str(path), manifest)
    values = {"of": "demo", "seed": seed}
    node = Node(
        name=name,
        stage="finetune",
        section="finetune",
        values=values,
        config=FinetuneConfig(),
        execution=Execution(),
        inputs={},
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
