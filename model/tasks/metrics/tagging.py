"""Tagging metrics of seqeval: entities with exact extent and type, as in conlleval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from seqeval.metrics import accuracy_score
from seqeval.metrics.sequence_labeling import precision_recall_fscore_support

from cloze.model.tasks.formats.columns import entities
from cloze.model.tasks.metrics.bootstrap import Ints, interval

Sentences = Sequence[Sequence[str]]  # tags of each sentence

METRICS = ("f1", "precision", "recall", "accuracy")


def score(gold: Sentences, predicted: Sentences) -> dict[str, float]:
    """Return micro-averaged F1, precision and recall of entities, and the accuracy of tags."""
    if not gold:
        return dict.fromkeys(METRICS, 0.0)
    precision, recall, f1, _ = precision_recall_fscore_support(
        gold, predicted, average="micro", zero_division=0
    )
    found = {
        "f1": f1,
        "precision": precision,
        "recall": recall,
        "accuracy": accuracy_score(gold, predicted),
    }
    return {name: float(value) for name, value in found.items()}


def by_type(gold: Sentences, predicted: Sentences) -> dict[str, dict[str, float]]:
    """Return F1, precision, recall and number of true entities of each type in either input."""
    if not gold:
        return {}
    types = sorted(
        {kind for side in (gold, predicted) for tags in side for kind, _, _ in entities(tags)}
    )
    columns = precision_recall_fscore_support(gold, predicted, average=None, zero_division=0)
    return {
        kind: {
            "f1": float(f1),
            "precision": float(precision),
            "recall": float(recall),
            "entities": int(support),
        }
        for kind, precision, recall, f1, support in zip(types, *columns, strict=True)
    }


def f1_interval(
    gold: Sentences, predicted: Sentences, seed: int, resamples: int
) -> tuple[float, float]:
    """Return the bootstrap interval of F1, resampling sentences."""
    pairs = [(set(entities(a)), set(entities(b))) for a, b in zip(gold, predicted, strict=True)]
    counts: npt.NDArray[np.int64] = np.array(
        [(len(a & b), len(a) + len(b)) for a, b in pairs], dtype=np.int64
    )

    def f1(chosen: Ints) -> float:
        right, either = counts[chosen].sum(axis=0)
        return float(2.0 * right / either) if either else 0.0

    return interval(f1, len(gold), seed, resamples)
