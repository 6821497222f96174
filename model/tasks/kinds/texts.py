"""The task kinds classification and regression: a label or a number for a text or a pair of texts.

Both read tables (`cloze.model.tasks.formats.texts`), and have a linear layer on the pooled state
(Devlin et al. 2019, figure 4a, b) or, with the option `pair_features`, on the mean states of a
pair's texts (`cloze.model.tasks.heads.pair_features`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cloze.core import storage
from cloze.core.errors import DataError, UsageError
from cloze.core.label_metrics import CLASSIFICATION
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import Backbone
from cloze.model.tasks import metrics
from cloze.model.tasks.encode import TextSamples, encode
from cloze.model.tasks.files import write_rows
from cloze.model.tasks.formats.tables import describe_columns
from cloze.model.tasks.formats.texts import (
    LabelledTexts,
    ScoredTexts,
    TextExamples,
    read_scored,
    read_texts,
)
from cloze.model.tasks.heads import SequenceClassifier
from cloze.model.tasks.options import RegressionOptions, SentenceOptions, TaskOptions, TextOptions
from cloze.model.tasks.task import Loss, Metrics, Samples, Task, TaskMetadata
from cloze.model.tasks.teacher import soft_loss
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

TEXT_HEAD, PAIR_HEAD = (
    "classifier",
    "pair_classifier",
)  # linear layer on the pooled state, on both texts
FEATURES = "pair_features"  # key in task options and task metadata
WEIGHTS = "weights"  # batch entry: float32 [B]
NEAR = 0.5  # maximum error of a score that counts as correct in the training log

T = TypeVar("T", bound=TextExamples)
P = TypeVar("P")
Numbers = npt.NDArray[np.float64]  # [n]
Probabilities = npt.NDArray[np.float32]  # [n, labels]


class TextTask(Task[T, P]):
    """Common parts of the kinds whose answers are labels or numbers of texts."""

    def __init__(self, name: str, options: TaskOptions, metrics: tuple[str, ...] = ()) -> None:
        super().__init__(name, options, metrics)
        if isinstance(options, SentenceOptions):
            self.files = describe_columns(options)

    def text_metadata(self, train: T) -> dict[str, Any]:
        """Return task metadata about texts: `pairs`, and `pair_features` if used.

        Raises:
            UsageError: pair features are configured, but the task has single texts.
        """
        pairs = train.text_pairs is not None
        if not getattr(self.options, FEATURES, False):
            return {"pairs": pairs}
        if not pairs:
            raise UsageError(
                f"options.{FEATURES} (true) needs pairs of texts, but the examples of "
                f"{train.where} are single texts; leave it out"
            )
        return {"pairs": True, FEATURES: True}

    def outputs(self, metadata: TaskMetadata) -> int:
        """Return the number of outputs of the head: one per label, or one for a number."""
        return len(metadata["labels"]) if "labels" in metadata else 1

    def heads(self, metadata: TaskMetadata) -> dict[str, Any]:
        return {_head(metadata): {"num_labels": self.outputs(metadata)}}

    def network(
        self, backbone: Backbone, config: ModelConfig, metadata: TaskMetadata, dropout: float
    ) -> nn.Module:
        return SequenceClassifier(
            backbone.encoder,
            backbone.pooler,
            config.hidden_size,
            self.outputs(metadata),
            dropout,
            _head(metadata),
            bool(metadata.get(FEATURES)),
        )

    def member_outputs(self, outputs: Tensor, batch: Mapping[str, Any]) -> Tensor:
        return cast(Tensor, self.select_outputs(outputs, batch))

    def write_table(
        self, directory: str, examples: T, columns: Mapping[str, Sequence[str]]
    ) -> None:
        """Write the columns index, text and text_pair, and these after them.

        The index is the file's own, as in GLUE's test files, or else the example's number from 0.
        """
        index = examples.ids or [str(i) for i in range(len(examples))]
        pairs = {} if examples.text_pairs is None else {"text_pair": examples.text_pairs}
        columns = {"index": index, "text": examples.texts, **pairs, **columns}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        write_rows(storage.join(directory, self.predictions), rows)


def _head(metadata: TaskMetadata) -> str:
    return PAIR_HEAD if metadata.get(FEATURES) else TEXT_HEAD


class Classification(TextTask[LabelledTexts, Probabilities]):
    """One label per example, trained by cross-entropy; metrics: `core.label_metrics`."""

    options: TextOptions
    metrics: tuple[str, ...] = ("accuracy",)

    def read(self, path: str, split: str, limit_per_class: int | None) -> LabelledTexts:
        examples = read_texts(path, split, self.options, self.files)
        return examples.capped(limit_per_class) if split == "train" else examples

    def metadata(self, train: LabelledTexts) -> TaskMetadata:
        counts = train.class_counts()
        if sum(count > 0 for count in counts.values()) < 2:
            only = next((name for name, count in counts.items() if count), "none")
            raise DataError(
                f"{train.where} has examples of one label only ({only!r}); training needs two or "
                f"more labels"
            )
        return {"labels": list(train.label_names), **self.text_metadata(train)}

    def balance_classes(self, train: LabelledTexts) -> LabelledTexts:
        return train.balanced()

    def align_labels(self, examples: LabelledTexts, metadata: TaskMetadata) -> LabelledTexts:
        names = [str(name) for name in metadata["labels"]]
        return examples.relabelled(names, metadata.get("label_map") or {})

    def encode(self, examples: LabelledTexts, tokenizer: Tokenizer, max_length: int) -> TextSamples:
        targets = self.targets(examples)
        return encode(examples.texts, examples.text_pairs, tokenizer, max_length, targets)

    def targets(self, examples: LabelledTexts) -> dict[str, npt.NDArray[Any]]:
        """Return the inputs of the loss: `labels`, int64 [n], and `WEIGHTS`, if known."""
        targets: dict[str, npt.NDArray[Any]] = {}
        if examples.labels is not None:
            targets["labels"] = _labels(examples)
        if examples.weights is not None:
            targets[WEIGHTS] = np.array(examples.weights, dtype=np.float32)
        return targets

    def loss(self, outputs: Tensor, batch: Mapping[str, Any]) -> Loss:
        """Compute cross-entropy in nats, times the examples' weights if the batch has `WEIGHTS`."""
        labels = batch["labels"]
        losses = nn.functional.cross_entropy(outputs, labels, reduction="none")
        total = (losses * batch[WEIGHTS]).sum() if WEIGHTS in batch else losses.sum()
        return Loss(total=total, correct=(outputs.argmax(dim=-1) == labels).sum())

    def soft_loss(
        self, outputs: Tensor, teacher: Tensor, batch: Mapping[str, Any], temperature: float
    ) -> Loss:
        return soft_loss(outputs, teacher, temperature, batch.get(WEIGHTS))

    def select_outputs(self, outputs: Tensor, batch: Mapping[str, Any]) -> Tensor:
        """Return the probabilities of each example, [B, labels]."""
        return torch.softmax(outputs, dim=-1)

    def decode(
        self, answers: Sequence[Any], examples: LabelledTexts, samples: Samples
    ) -> Probabilities:
        """Return each label's probability; outputs of the model with one label add up."""
        labels = len(examples.label_names)
        if examples.outputs is None:
            return np.array(answers, dtype=np.float32).reshape(len(answers), labels)
        by_output = np.array(answers, dtype=np.float32).reshape(-1, len(examples.outputs))
        return by_output @ np.eye(labels, dtype=np.float32)[list(examples.outputs)]

    def score(self, examples: LabelledTexts, predictions: Probabilities) -> Metrics:
        return metrics.scores(self.metrics, _labels(examples), predictions.argmax(axis=1))

    def baselines(self, examples: LabelledTexts) -> Metrics:
        """Return the score of always predicting the most frequent class."""
        labels = _labels(examples)
        majority = np.full_like(labels, np.bincount(labels).argmax() if len(labels) else 0)
        scores = metrics.scores(self.metrics[:1], labels, majority)
        return {"majority": scores[self.metrics[0]]}

    def dataset_statistics(self, examples: LabelledTexts) -> dict[str, Any]:
        return {"classes": examples.class_counts()}

    def detailed_metrics(
        self, examples: LabelledTexts, predictions: Probabilities, *, seed: int, resamples: int
    ) -> dict[str, Any]:
        labels, predicted = _labels(examples), predictions.argmax(axis=1)
        names = list(examples.label_names)
        class_metrics = [name for name in self.metrics if name in CLASSIFICATION]
        matrix = metrics.confusion_matrix(labels, predicted, len(names))
        return {
            "interval": metrics.classification_intervals(
                class_metrics, labels, predicted, seed, resamples
            ),
            "confusion": {"labels": names, "rows_true": matrix.tolist()},
        }

    def write_predictions(
        self, directory: str, examples: LabelledTexts, predictions: Probabilities
    ) -> None:
        """Write index, text, text_pair, label, prediction, and score: its probability."""
        names = examples.label_names
        unknown = [""] * len(examples)
        columns = {
            "label": unknown if examples.labels is None else [names[i] for i in examples.labels],
            "prediction": [names[choice] for choice in predictions.argmax(axis=1)],
            "score": [f"{probability:.6f}" for probability in predictions.max(axis=1)],
        }
        self.write_table(directory, examples, columns)


def _labels(examples: LabelledTexts) -> npt.NDArray[np.int64]:
    return np.array(examples.labels, dtype=np.int64)


class Regression(TextTask[ScoredTexts, Numbers]):
    """A number per example, trained by mean squared error as in Hugging Face.

    Scores stay in the file's unit, and predictions are not clipped: metrics are correlations, those
    of `metrics.REGRESSION`.
    """

    options: RegressionOptions
    metrics: tuple[str, ...] = ("pearson", "spearman")

    def read(self, path: str, split: str, limit_per_class: int | None) -> ScoredTexts:
        self.refuse_limit(limit_per_class, ", whose answers are numbers")
        return read_scored(path, split, self.options, self.files)

    def metadata(self, train: ScoredTexts) -> TaskMetadata:
        scores = _scores(train)
        if len(scores) and np.ptp(scores) == 0.0:
            raise DataError(
                f"{train.where} has examples of one score only ({scores[0]:g}); training needs two "
                f"or more scores"
            )
        return {
            "mean": float(scores.mean()),
            "lowest": float(scores.min()),
            "highest": float(scores.max()),
            **self.text_metadata(train),
        }

    def encode(self, examples: ScoredTexts, tokenizer: Tokenizer, max_length: int) -> TextSamples:
        targets = {} if examples.scores is None else {"scores": examples.scores.astype(np.float32)}
        return encode(examples.texts, examples.text_pairs, tokenizer, max_length, targets)

    def count(self, batch: Mapping[str, Any]) -> int:
        return len(batch["scores"])

    def loss(self, outputs: Tensor, batch: Mapping[str, Any]) -> Loss:
        """Compute squared errors in squared score units; errors below `NEAR` count as correct."""
        errors = outputs.squeeze(-1) - batch["scores"]
        return Loss(total=errors.square().sum(), correct=(errors.abs() < NEAR).sum())

    def soft_loss(
        self, outputs: Tensor, teacher: Tensor, batch: Mapping[str, Any], temperature: float
    ) -> Loss:
        """Compute squared differences from the teacher's numbers; no temperature."""
        return self.loss(outputs, {**batch, "scores": teacher.squeeze(-1)})

    def select_outputs(self, outputs: Tensor, batch: Mapping[str, Any]) -> Tensor:
        """Return the number of each example, [B]."""
        return outputs.squeeze(-1)

    def decode(self, answers: Sequence[Any], examples: ScoredTexts, samples: Samples) -> Numbers:
        return np.array(answers, dtype=np.float64)

    def score(self, examples: ScoredTexts, predictions: Numbers) -> Metrics:
        return metrics.scores(self.metrics, _scores(examples), predictions)

    def baselines(self, examples: ScoredTexts) -> Metrics:
        """Return the score of always predicting the mean: a constant has correlation 0."""
        scores = _scores(examples)
        figures = metrics.scores(self.metrics[:1], scores, np.full_like(scores, scores.mean()))
        return {"constant": figures[self.metrics[0]]}

    def dataset_statistics(self, examples: ScoredTexts) -> dict[str, Any]:
        scores = examples.scores
        if scores is None:
            return {}
        names = ("mean", "deviation", "lowest", "highest")
        values = (scores.mean(), scores.std(), scores.min(), scores.max())
        rounded = (round(float(value), 6) for value in values)
        return {"scores": dict(zip(names, rounded, strict=True))}

    def detailed_metrics(
        self, examples: ScoredTexts, predictions: Numbers, *, seed: int, resamples: int
    ) -> dict[str, Any]:
        scores = _scores(examples)
        return {
            "interval": metrics.regression_intervals(
                self.metrics, scores, predictions, seed, resamples
            ),
            "mean_absolute_error": float(np.abs(scores - predictions).mean()),
        }

    def write_predictions(
        self, directory: str, examples: ScoredTexts, predictions: Numbers
    ) -> None:
        """Write index, text, text_pair, label (the true score) and prediction."""
        scores = examples.scores
        columns = {
            "label": [""] * len(examples) if scores is None else [f"{score:g}" for score in scores],
            "prediction": [f"{number:.6f}" for number in predictions],
        }
        self.write_table(directory, examples, columns)


def _scores(examples: ScoredTexts) -> Numbers:
    assert examples.scores is not None
    return examples.scores
