"""Results of the suite: scores by task, predictions for the gate, held-out perplexity.

A task's score is its main metric. If the suite has a section `evaluate`, that stage's predictions
count instead of the fine-tuning's. An ensemble's score counts in addition to those of its members,
under a name of its own: `sst2 (ensemble)`. The gate does not compare ensembles: each is made of
members that it compares, and has one score, which says nothing about the seeds' noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import pstdev
from typing import Any

from cloze.core import storage
from cloze.core.artifacts import artifact
from cloze.core.artifacts.artifact import Manifest
from cloze.core.figures import goodness, mean
from cloze.core.label_metrics import COMPARED_METRICS
from cloze.core.records import read_record
from cloze.core.stages.stage import CHECKPOINT, role_of
from cloze.flows.graph.nodes import Node
from cloze.flows.nightly.promotion_gate import (
    Result,
    SeedScores,
    TaskPredictions,
    TextLosses,
)
from cloze.flows.nightly.suite import AXIS

PREDICTION, LABEL = "prediction", "label"
MODEL_COLUMNS = (PREDICTION, "score")  # of a prediction file; the others are the example's
PERPLEXITY = "heldout_perplexity"
TEXT = "held-out text"  # task name of the comparison of held-out losses


@dataclass(slots=True)
class Scores:
    """Results of one checkpoint.

    Attributes:
        metric: name of the score, by task.
        values: scores by task and seed.
        answers: input of the gate, by task without ensembles: predictions, or scores by seed if
            the files have no labels; losses for held-out text.
        perplexity: held-out perplexity; None: not measured.
        paths: artifacts.
    """

    metric: dict[str, str] = field(default_factory=dict)
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    answers: dict[str, Result] = field(default_factory=dict)
    perplexity: float | None = None
    paths: list[str] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """Mean score over tasks, errors negative; without tasks, the negative perplexity."""
        if self.values:
            by_task = self.values.items()
            return mean(
                mean(goodness(value, self.metric[task]) for value in by_seed.values())
                for task, by_seed in by_task
            )
        return -self.perplexity if self.perplexity is not None else float("-inf")

    def as_json(self) -> dict[str, Any]:
        """Return metric, mean, standard deviation over seeds, and values by seed, for each task."""
        return {
            task: {
                "metric": self.metric[task],
                "mean": mean(by_seed.values()),
                "deviation": pstdev(by_seed.values()),
                "values": by_seed,
            }
            for task, by_seed in self.values.items()
        }

    def hundredths(self) -> dict[str, float]:
        return {task: round(100 * mean(by.values()), 2) for task, by in self.values.items()}


def gather(artifacts: Iterable[tuple[Node, str]]) -> dict[str, Scores]:
    """Return the scores by checkpoint label.

    Args:
        artifacts: finished nodes of the suite and their artifacts.
    """
    finished = list(artifacts)
    evaluated = {
        name
        for node, _ in finished
        if node.stage == "evaluate" and not _is_ensemble(node)
        for name in node.depends_on
    }
    by_label: dict[str, Scores] = {}
    paths = {node.name: path for node, path in finished}
    classes: dict[tuple[str, str], list[str]] = {}
    tables: dict[tuple[str, str], dict[str, list[dict[str, str]]]] = {}  # rows by seed
    for node, path in finished:
        label = str(node.values.get(AXIS, ""))
        if not label or node.name in evaluated:
            continue
        scores = by_label.setdefault(label, Scores())
        scores.paths.append(path)
        manifest = artifact.read_manifest(path)
        summary = manifest.summary
        metrics = {
            name: value
            for name, value in (summary.get("metrics") or {}).items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        if PERPLEXITY in metrics:
            scores.perplexity = float(metrics[PERPLEXITY])
            scores.answers[TEXT] = _read_losses(path, manifest)
        elif summary.get("task") and metrics:
            metric = str(summary.get("metric") or next(iter(metrics)))
            if metric not in metrics:
                continue  # no figure: another one says something else
            task, seed = _task(node, str(summary["task"])), str(node.values.get("seed", "0"))
            scores.metric[task] = metric
            scores.values.setdefault(task, {})[seed] = float(metrics[metric])
            if _is_ensemble(node):
                continue
            tables.setdefault((label, task), {})[seed] = _read_table(path, summary)
            trained = [path, *(paths[name] for name in node.depends_on if name in paths)]
            classes[label, task] = next(filter(None, map(_classes, trained)), [])
    for (label, task), rows_by_seed in tables.items():
        scores = by_label[label]
        metric = scores.metric[task]
        own = classes[label, task]
        scores.answers[task] = _predictions(metric, rows_by_seed, own) or SeedScores(
            metric=metric, values=scores.values[task]
        )
    return by_label


def _read_losses(path: str, manifest: Manifest) -> TextLosses:
    content = storage.read_json(storage.join(path, str(manifest.summary["losses"])))
    examples = [
        manifest.parents["dataset"], content["objective"], *map(str, content["predictions"])
    ]  # fmt: skip
    return TextLosses(
        examples=hashlib.sha256("\n".join(examples).encode()).hexdigest(),
        predictions=content["predictions"],
        losses=content["losses"],
    )


def _read_table(path: str, summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the rows of a table of labels; empty for spans and tags, in files of other types."""
    name = summary.get("predictions")
    if not isinstance(name, str) or not name.endswith(".tsv"):
        return []
    return storage.read_tsv(storage.join(path, name))


def _classes(path: str) -> list[str]:
    """Return the labels of a fine-tuning's checkpoint in the task's order; empty: not there."""
    config = storage.join(path, CHECKPOINT, "config.json")
    content = read_record(storage.read_text(config)) if storage.exists(config) else None
    task = (content or {}).get("task")
    return [str(name) for name in task.get("labels") or ()] if isinstance(task, dict) else []


def _is_ensemble(node: Node) -> bool:
    """Return whether the node evaluates several checkpoints together."""
    members = [key for key in node.inputs if role_of(key) == "checkpoint"]
    return node.stage == "evaluate" and len(members) > 1


def _task(node: Node, task: str) -> str:
    """Return the task's name and what distinguishes its nodes: `sst2`, `sst2 (limit 100)`."""
    label = node.section.partition("@")[2] or ("ensemble" if _is_ensemble(node) else "")
    axes = [
        f"{axis} {value}"
        for axis, value in node.values.items()
        if axis not in (AXIS, "seed", "task")
    ]
    details = ", ".join([*([label] if label and label != task else []), *axes])
    return f"{task} ({details})" if details else task


def _predictions(
    metric: str, rows_by_seed: Mapping[str, list[dict[str, str]]], classes: Sequence[str]
) -> TaskPredictions | None:
    """Return the predictions of all seeds.

    None: the files lack labels or the score's columns, or the seeds have different examples.
    """
    rows = next(iter(rows_by_seed.values()))
    if (
        metric not in COMPARED_METRICS
        or not rows
        or LABEL not in rows[0]
        or PREDICTION not in rows[0]
    ):
        return None
    examples = {_hash_examples(seed_rows) for seed_rows in rows_by_seed.values()}
    if len(examples) > 1:
        return None
    return TaskPredictions(
        metric=metric,
        examples=examples.pop(),
        labels=[row[LABEL] for row in rows],
        predictions={
            seed: [row[PREDICTION] for row in seed_rows] for seed, seed_rows in rows_by_seed.items()
        },
        classes=classes,
    )


def _hash_examples(rows: Iterable[Mapping[str, str]]) -> str:
    """Return the SHA-256 of the examples, without the model's columns."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(
            "\t".join(
                value for column, value in row.items() if column not in MODEL_COLUMNS
            ).encode()
            + b"\n"
        )
    return digest.hexdigest()
