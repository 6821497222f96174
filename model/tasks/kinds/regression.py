"""The task kind regression: a number for a text or a pair of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from cloze.core import storage
from cloze.core.errors import DataError
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import Backbone
from cloze.model.tasks.encode import TextSamples, encode
from cloze.model.tasks.formats.text_tables import describe_columns
from cloze.model.tasks.formats.texts import ScoredTexts, read_scored
from cloze.model.tasks.heads import heads, network, read_as
from cloze.model.tasks.metrics import regression as metrics
from cloze.model.tasks.options import RegressionOptions, TaskOptions
from cloze.model.tasks.predict import write_rows
from cloze.model.tasks.task import Figures, Loss, Samples, Task, TaskMetadata
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

Numbers = npt.NDArray[np.float64]  # [n]
NEAR = 0.5  # maximum error that counts as correct in the training log


class Regression(Task[ScoredTexts, Numbers]):
    """Linear output on the pooled state, trained by mean squared error as in Hugging Face.

    Scores stay in the file's unit, and predictions are not clipped: metrics are correlations, those
    of `cloze.model.tasks.metrics.regression.METRICS`.
    """

    metrics: tuple[str, ...] = ("pearson", "spearman")

    def __init__(self, name: str, options: TaskOptions, metrics: tuple[str, ...] = ()) -> None:
        super().__init__(name, options, metrics)
        assert isinstance(options, RegressionOptions)
        self._texts = options
        self.files = describe_columns(options)

    def read(self, path: str, split: str, limit_per_class: int | None) -> ScoredTexts:
        self.refuse_limit(limit_per_class, ", whose answers are numbers")
        return read_scored(path, split, self._texts, self.files)

    def metadata(self, train: ScoredTexts) -> TaskMetadata:
        scores = _scores(train)
        if len(scores) and np.ptp(scores) == 0.0:
            raise DataError(
                f"{train.where} holds one score only ({scores[0]:g}); training needs examples of "
                f"two or more"
            )
        return {
            "mean": float(scores.mean()),
            "lowest": float(scores.min()),
            "highest": float(scores.max()),
            **read_as(self.options, train),
        }

    def heads(self, meaning: TaskMetadata) -> dict[str, Any]:
        return heads(meaning, 1)

    def encode(self, examples: ScoredTexts, tokenizer: Tokenizer, max_length: int) -> TextSamples:
        targets = {} if examples.scores is None else {"scores": examples.scores.astype(np.float32)}
        return encode(examples.texts, examples.text_pairs, tokenizer, max_length, targets)

    def network(
        self, backbone: Backbone, config: ModelConfig, meaning: TaskMetadata, dropout: float
    ) -> nn.Module:
        return network(backbone, config, meaning, 1, dropout)

    def count(self, batch: Mapping[str, Any]) -> int:
        return len(batch["scores"])

    def loss(self, outputs: Tensor, batch: Mapping[str, Any]) -> Loss:
        """Compute squared errors in squared score units; errors below `NEAR` count as correct."""
        off = outputs.squeeze(-1) - batch["scores"]
        return Loss(total=off.square().sum(), correct=(off.abs() < NEAR).sum())

    def select_outputs(self, outputs: Tensor, batch: Mapping[str, Any]) -> Sequence[Any]:
        """Return the number of each example."""
        del batch
        return outputs.squeeze(-1).tolist()

    def decode(self, answers: Sequence[Any], examples: ScoredTexts, samples: Samples) -> Numbers:
        del examples, samples
        return np.array(answers, dtype=np.float64)

    def score(self, examples: ScoredTexts, predictions: Numbers) -> Figures:
        return metrics.score(self.metrics, _scores(examples), predictions)

    def baselines(self, examples: ScoredTexts) -> Figures:
        """Return the score of always predicting the mean: a constant has correlation 0."""
        scores = _scores(examples)
        return {
            "constant": metrics.score(
                self.metrics[:1], scores, np.full_like(scores, scores.mean())
            )[self.metrics[0]]
        }

    def dataset_statistics(self, examples: ScoredTexts) -> dict[str, Any]:
        if examples.scores is None:
            return {}
        found = examples.scores
        figures = {
            "mean": found.mean(),
            "deviation": found.std(),
            "lowest": found.min(),
            "highest": found.max(),
        }
        return {"scores": {name: round(float(value), 6) for name, value in figures.items()}}

    def detailed_metrics(
        self, examples: ScoredTexts, predictions: Numbers, *, seed: int, resamples: int
    ) -> dict[str, Any]:
        scores = _scores(examples)
        intervals = metrics.intervals(self.metrics, scores, predictions, seed, resamples)
        return {
            "interval": {name: list(found) for name, found in intervals.items()},
            "mean_absolute_error": float(np.abs(scores - predictions).mean()),
        }

    def write_predictions(
        self, directory: str, examples: ScoredTexts, predictions: Numbers
    ) -> None:
        """Write columns index, text, text_pair, label (the true score) and prediction."""
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
