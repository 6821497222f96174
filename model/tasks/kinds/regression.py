"""The kind of task that gives a text, or a pair of texts, a number: how alike two sentences are, how good a review."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from model.families.config import ModelConfig
from model.families.models import Backbone
from model.tasks import sentences
from model.tasks.encode import TextSamples, encode
from model.tasks.formats.scored_texts import ScoredTexts, read_scored
from model.tasks.formats.tables_texts import told
from model.tasks.metrics import regression as metrics
from model.tasks.options import RegressionOptions, TaskOptions
from model.tasks.predictions import write_rows
from model.tasks.task import Figures, Loss, Meaning, Samples, Task
from pipeline.core import storage
from pipeline.core.errors import DataError
from pipeline.tokenizer.tokenizer import Tokenizer

Numbers = npt.NDArray[np.float64]  # [n]
NEAR = 0.5  # a number that is off by less counts as right in the training's log


class Regression(Task[ScoredTexts, Numbers]):
    """One linear output on the pooled state, trained by the mean squared error, as Hugging Face trains STS-B.

    Scores stay in the unit of the file, and predictions are not cut to its range: correlations are scored.
    Its metrics are names in `model.tasks.metrics.regression.METRICS`.
    """

    metrics: tuple[str, ...] = ("pearson", "spearman")

    def __init__(self, name: str, options: TaskOptions, metrics: tuple[str, ...] = ()) -> None:
        super().__init__(name, options, metrics)
        assert isinstance(options, RegressionOptions)
        self._texts = options
        self.files = told(options)

    def read(self, path: str, split: str, limit_per_class: int | None) -> ScoredTexts:
        self.refuse_limit(limit_per_class, ", whose answers are numbers")
        return read_scored(path, split, self._texts, self.files)

    def meaning(self, train: ScoredTexts) -> Meaning:
        scores = _scores(train)
        if len(scores) and np.ptp(scores) == 0.0:
            raise DataError(f"{train.where} holds one score only ({scores[0]:g}); training needs examples of two or more")
        return {
            "mean": float(scores.mean()),
            "lowest": float(scores.min()),
            "highest": float(scores.max()),
            **sentences.read_as(self.options, train),
        }

    def heads(self, meaning: Meaning) -> dict[str, Any]:
        return sentences.heads(meaning, 1)

    def encode(self, examples: ScoredTexts, tokenizer: Tokenizer, max_length: int) -> TextSamples:
        targets = {} if examples.scores is None else {"scores": examples.scores.astype(np.float32)}
        return encode(examples.texts, examples.text_pairs, tokenizer, max_length, targets)

    def network(self, backbone: Backbone, config: ModelConfig, meaning: Meaning, dropout: float) -> nn.Module:
        return sentences.network(backbone, config, meaning, 1, dropout)

    def count(self, batch: Mapping[str, Any]) -> int:
        return len(batch["scores"])

    def loss(self, outputs: Tensor, batch: Mapping[str, Any]) -> Loss:
        """Squared errors, in the square of the scores' unit; right is what is off by less than half a unit."""
        off = outputs.squeeze(-1) - batch["scores"]
        return Loss(total=off.square().sum(), correct=(off.abs() < NEAR).sum())

    def answers(self, outputs: Tensor, batch: Mapping[str, Any]) -> Sequence[Any]:
        """The number of each example."""
        del batch
        return outputs.squeeze(-1).tolist()

    def decode(self, answers: Sequence[Any], examples: ScoredTexts, samples: Samples) -> Numbers:
        del examples, samples
        return np.array(answers, dtype=np.float64)

    def score(self, examples: ScoredTexts, predictions: Numbers) -> Figures:
        return metrics.score(self.metrics, _scores(examples), predictions)

    def baselines(self, examples: ScoredTexts) -> Figures:
        """The task's score of saying the mean always: a constant correlates with nothing."""
        scores = _scores(examples)
        return {"constant": metrics.score(self.metrics[:1], scores, np.full_like(scores, scores.mean()))[self.metrics[0]]}

    def facts(self, examples: ScoredTexts) -> dict[str, Any]:
        if examples.scores is None:
            return {}
        found = examples.scores
        figures = {"mean": found.mean(), "deviation": found.std(), "lowest": found.min(), "highest": found.max()}
        return {"scores": {name: round(float(value), 6) for name, value in figures.items()}}

    def details(self, examples: ScoredTexts, predictions: Numbers, *, seed: int, resamples: int) -> dict[str, Any]:
        scores = _scores(examples)
        intervals = metrics.intervals(self.metrics, scores, predictions, seed, resamples)
        return {
            "interval": {name: list(found) for name, found in intervals.items()},
            "mean_absolute_error": float(np.abs(scores - predictions).mean()),
        }

    def write(self, directory: str, examples: ScoredTexts, predictions: Numbers) -> None:
        """Columns index, text (and text_pair), label, the true score, and prediction."""
        pairs, rows = examples.text_pairs, []
        for i, number in enumerate(predictions):
            row = {"index": examples.ids[i] if examples.ids else str(i), "text": examples.texts[i]}
            row |= {} if pairs is None else {"text_pair": pairs[i]}
            label = "" if examples.scores is None else f"{examples.scores[i]:g}"
            rows.append({**row, "label": label, "prediction": f"{number:.6f}"})
        write_rows(storage.join(directory, self.predictions), rows)


def _scores(examples: ScoredTexts) -> Numbers:
    assert examples.scores is not None
    return examples.scores
