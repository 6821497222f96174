"""Results of the suite: scores by task, predictions for the gate, held-out perplexity.

A task's score is its main metric. If the suite has a section `evaluate`, that stage's predictions
count instead of the fine-tuning's.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any

from cloze.core import storage
from cloze.core.artifacts import artifact
from cloze.core.artifacts.artifact import Manifest
from cloze.flows.graph.nodes import Node
from cloze.flows.nightly.promotion_gate import (
    METRICS,
    Result,
    SeedScores,
    TaskPredictions,
    TextLosses,
)
from cloze.flows.nightly.suite import AXIS

PREDICTION, LABEL = "prediction", "label"
SAID = (PREDICTION, "score")  # the model's columns in a prediction file
PERPLEXITY = "heldout_perplexity"
TEXT = "held-out text"  # task name of the comparison of held-out losses


@dataclass(slots=True)
class Scores:
    """Results of one checkpoint.

    Attributes:
        metric: name of the score, by task.
        values: scores by task and seed.
        answers: input of the gate, by task: predictions, or scores by seed if the files have no
            labels; losses for held-out text.
        perplexity: held-out perplexity; None: not measured.
    """

    metric: dict[str, str] = field(default_factory=dict)
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    answers: dict[str, Result] = field(default_factory=dict)
    perplexity: float | None = None

    @property
    def mean(self) -> float:
        """Mean score over tasks; without tasks, the negative perplexity."""
        if self.values:
            return fmean(fmean(values.values()) for values in self.values.values())
        return -self.perplexity if self.perplexity is not None else float("-inf")

    def as_json(self) -> dict[str, Any]:
        """Return metric, mean, standard deviation over seeds, and values by seed, for each task."""
        return {
            task: {
                "metric": self.metric[task],
                "mean": fmean(by.values()),
                "deviation": pstdev(by.values()),
                "values": by,
            }
            for task, by in self.values.items()
        }

    def hundredths(self) -> dict[str, float]:
        return {task: round(100 * fmean(by.values()), 2) for task, by in self.values.items()}


def gather(made: Iterable[tuple[Node, str]]) -> dict[str, Scores]:
    """Return the scores by checkpoint label.

    Args:
        made: finished nodes of the suite and their artifacts.
    """
    nodes = list(made)
    found: dict[str, Scores] = {}
    judged = {name for node, _ in nodes if node.stage == "evaluate" for name in node.depends_on}
    said: dict[tuple[str, str], dict[str, tuple[str, list[dict[str, str]]]]] = {}
    for node, place in nodes:
        label = str(node.values.get(AXIS, ""))
        if not label or node.name in judged:
            continue
        scores = found.setdefault(label, Scores())
        manifest = artifact.read_manifest(place)
        summary = manifest.summary
        metrics = {
            name: value
            for name, value in (summary.get("metrics") or {}).items()
            if isinstance(value, (int, float))
        }
        if PERPLEXITY in metrics:
            scores.perplexity = float(metrics[PERPLEXITY])
            scores.answers[TEXT] = _losses(place, manifest)
        elif summary.get("task") and metrics:
            told = str(summary.get("metric"))
            metric, task = (
                told if told in metrics else next(iter(metrics)),
                _task(node, str(summary["task"])),
            )
            seed = str(node.values.get("seed", "0"))
            scores.metric[task] = metric
            scores.values.setdefault(task, {})[seed] = float(metrics[metric])
            rows = (
                _rows(storage.join(place, str(summary["predictions"])))
                if _is_table(summary.get("predictions"))
                else []
            )
            said.setdefault((label, task), {})[seed] = (metric, rows)
    for (label, task), by_seed in said.items():
        scores = found[label]
        scores.answers[task] = _answers(by_seed) or SeedScores(
            metric=scores.metric[task], values=scores.values[task]
        )
    return found


def _losses(place: str, manifest: Manifest) -> TextLosses:
    found = json.loads(storage.read_text(storage.join(place, str(manifest.summary["losses"]))))
    what = [manifest.parents["dataset"], found["objective"], *map(str, found["predictions"])]
    return TextLosses(
        examples=hashlib.sha256("\n".join(what).encode()).hexdigest(),
        predictions=found["predictions"],
        losses=found["losses"],
    )


def _is_table(predictions: object) -> bool:
    """Return whether predictions are a table of labels; spans and tags have other file types."""
    return isinstance(predictions, str) and predictions.endswith(".tsv")


def _task(node: Node, task: str) -> str:
    """Return the task's name and what distinguishes its nodes: `sst2`, `sst2 (limit 100)`."""
    label = node.section.partition("@")[2]
    rest = [
        f"{axis} {value}"
        for axis, value in node.values.items()
        if axis not in (AXIS, "seed", "task")
    ]
    more = ", ".join([*([label] if label and label != task else []), *rest])
    return f"{task} ({more})" if more else task


def _rows(path: str) -> list[dict[str, str]]:
    text = storage.read_text(path)
    return list(
        csv.DictReader(io.StringIO(text, newline=""), delimiter="\t", quoting=csv.QUOTE_NONE)
    )


def _answers(by_seed: Mapping[str, tuple[str, list[dict[str, str]]]]) -> TaskPredictions | None:
    """Return the predictions of all seeds.

    None: the files lack labels or the score's columns, or the seeds have different examples.
    """
    first, rows = next(iter(by_seed.values()))
    if first not in METRICS or not rows or LABEL not in rows[0] or PREDICTION not in rows[0]:
        return None
    names = {_examples(rows) for _, rows in by_seed.values()}
    if len(names) > 1:
        return None
    return TaskPredictions(
        metric=first,
        examples=names.pop(),
        labels=[row[LABEL] for row in rows],
        predictions={
            seed: [row[PREDICTION] for row in rows] for seed, (_, rows) in by_seed.items()
        },
    )


def _examples(rows: Iterable[Mapping[str, str]]) -> str:
    """Return the SHA-256 of the examples, without the model's columns."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(
            "\t".join(value for column, value in row.items() if column not in SAID).encode() + b"\n"
        )
    return digest.hexdigest()
