"""The task kind answers: right or wrong for each of several answers to a question (MultiRC)."""

from __future__ import annotations

from typing import Any

import numpy as np

from cloze.core.errors import DataError
from cloze.model.tasks.formats.texts import LabelledTexts
from cloze.model.tasks.kinds.texts import Classification, Probabilities
from cloze.model.tasks.metrics import Floats, mean_interval, scores
from cloze.model.tasks.task import Metrics

EXACT = "exact_match"


class Answers(Classification):
    """Classification of answers, with an exact match per question (Khashabi et al. 2018).

    F1 is that of the right answers of all questions (F1a). An example's id is that of its question,
    a hyphen, and the answer's.
    """

    metrics: tuple[str, ...] = ("f1", EXACT)

    def score(self, examples: LabelledTexts, predictions: Probabilities) -> Metrics:
        f1 = scores(self.metrics[:1], np.array(examples.labels), predictions.argmax(axis=1))
        exact = exact_matches(examples, predictions)
        return {**f1, EXACT: float(exact.mean()) if len(exact) else 0.0}

    def detailed_metrics(
        self, examples: LabelledTexts, predictions: Probabilities, *, seed: int, resamples: int
    ) -> dict[str, Any]:
        """Resample answers for F1, and questions for the exact match."""
        details = super().detailed_metrics(examples, predictions, seed=seed, resamples=resamples)
        exact = exact_matches(examples, predictions)
        details["interval"][EXACT] = mean_interval(exact, seed, resamples)
        return details


def exact_matches(examples: LabelledTexts, predictions: Probabilities) -> Floats:
    """Return 1 for each question whose answers are all right, else 0: float64 [questions].

    Raises:
        DataError: the examples have no ids, which name the questions.
    """
    if examples.ids is None:
        raise DataError(f"{examples.where} has no ids; name their column with options.columns.id")
    questions = [identity.rpartition("-")[0] for identity in examples.ids]
    _, numbers = np.unique(questions, return_inverse=True)
    errors = np.bincount(numbers, predictions.argmax(axis=1) != np.array(examples.labels))
    return np.asarray(errors == 0, dtype=np.float64)
