"""What came of the suite: each checkpoint's scores by task, its answers for the gate, and its held-out perplexity.

A task's score is the first of its metrics; where the suite has a section `evaluate`, its predictions count, else those of the fine-tuning.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any

from flows.graph.nodes import Node
from flows.night.gate import Answers, SeedScores
from flows.night.metrics import METRICS
from flows.night.suite import AXIS
from pipeline.core import artifact, storage

PREDICTION, LABEL = "prediction", "label"
SAID = (PREDICTION, "score")  # columns of a prediction file that are the model's
PERPLEXITY = "heldout_perplexity"


@dataclass(slots=True)
class Scores:
    """Of one checkpoint.

    Attributes:
        metric, values: by task: the score's name, and its value by seed.
        answers: by task; where the prediction files hold no labels that the score follows from, the scores by seed.
        perplexity: None: not measured.
    """

    metric: dict[str, str] = field(default_factory=dict)
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    answers: dict[str, Answers | SeedScores] = field(default_factory=dict)
    perplexity: float | None = None

    @property
    def mean(self) -> float:
        """Over the tasks; without one, the better the lower the perplexity."""
        if self.values:
            return fmean(fmean(values.values()) for values in self.values.values())
        return -self.perplexity if self.perplexity is not None else float("-inf")

    def as_json(self) -> dict[str, Any]:
        """By task: metric, mean, deviation over seeds, and the values by seed."""
        return {
            task: {"metric": self.metric[task], "mean": fmean(by.values()), "deviation": pstdev(by.values()), "values": by}
            for task, by in self.values.items()
        }

    def hundredths(self) -> dict[str, float]:
        return {task: round(100 * fmean(by.values()), 2) for task, by in self.values.items()}


def gather(made: Iterable[tuple[Node, str]]) -> dict[str, Scores]:
    """The scores by the checkpoint's label.

    Args:
        made: the suite's nodes that are made, and their artifacts.
    """
    nodes = list(made)
    found: dict[str, Scores] = {}
    judged = {name for node, _ in nodes if node.stage == "evaluate" for name in node.after}
    said: dict[tuple[str, str], dict[str, tuple[str, list[dict[str, str]]]]] = {}
    for node, place in nodes:
        label = str(node.values.get(AXIS, ""))
        if not label or node.name in judged:
            continue
        scores = found.setdefault(label, Scores())
        summary = artifact.read_manifest(place).summary
        metrics = {name: value for name, value in (summary.get("metrics") or {}).items() if isinstance(value, (int, float))}
        if PERPLEXITY in metrics:
            scores.perplexity = float(metrics[PERPLEXITY])
        elif summary.get("task") and metrics:
            told = str(summary.get("metric"))
            metric, task = told if told in metrics else next(iter(metrics)), _task(node, str(summary["task"]))
            seed = str(node.values.get("seed", "0"))
            scores.metric[task] = metric
            scores.values.setdefault(task, {})[seed] = float(metrics[metric])
            rows = _rows(storage.join(place, str(summary["predictions"]))) if _is_table(summary.get("predictions")) else []
            said.setdefault((label, task), {})[seed] = (metric, rows)
    for (label, task), by_seed in said.items():
        scores = found[label]
        scores.answers[task] = _answers(by_seed) or SeedScores(metric=scores.metric[task], values=scores.values[task])
    return found


def _is_table(predictions: object) -> bool:
    """Whether a prediction file is one of labels: the kinds of tasks that give others (spans, tags) name it otherwise."""
    return isinstance(predictions, str) and predictions.endswith(".tsv")


def _task(node: Node, task: str) -> str:
    """The task's name, with what tells apart several nodes of it: `sst2`, `sst2 (limit 100)`."""
    label = node.section.partition("@")[2]
    rest = [f"{axis} {value}" for axis, value in node.values.items() if axis not in (AXIS, "seed", "task")]
    more = ", ".join([*([label] if label and label != task else []), *rest])
    return f"{task} ({more})" if more else task


def _rows(path: str) -> list[dict[str, str]]:
    text = storage.read_text(path)
    return list(csv.DictReader(io.StringIO(text, newline=""), delimiter="\t", quoting=csv.QUOTE_NONE))


def _answers(by_seed: Mapping[str, tuple[str, list[dict[str, str]]]]) -> Answers | None:
    """None: the files hold no label an example, or not what the score follows from, or the seeds have not answered the same ones."""
    first, rows = next(iter(by_seed.values()))
    if first not in METRICS or not rows or LABEL not in rows[0] or PREDICTION not in rows[0]:
        return None
    names = {_examples(rows) for _, rows in by_seed.values()}
    if len(names) > 1:
        return None
    return Answers(
        metric=first,
        examples=names.pop(),
        labels=[row[LABEL] for row in rows],
        predictions={seed: [row[PREDICTION] for row in rows] for seed, (_, rows) in by_seed.items()},
    )


def _examples(rows: Iterable[Mapping[str, str]]) -> str:
    """The sha256 of what the examples are."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update("\t".join(value for column, value in row.items() if column not in SAID).encode() + b"\n")
    return digest.hexdigest()
