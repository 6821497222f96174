"""The task kind classification: one label for a text or a pair of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from cloze.core import storage
from cloze.core.errors import DataError
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import Backbone
from cloze.model.tasks.encode import TextSamples, encode
from cloze.model.tasks.formats.text_tables import describe_columns
from cloze.model.tasks.formats.texts import LabelledTexts, read_texts
from cloze.model.tasks.heads import heads, network, read_as
from cloze.model.tasks.metrics import classification as metrics
from cloze.model.tasks.options import TaskOptions, TextOptions
from cloze.model.tasks.predict import write_rows
from cloze.model.tasks.task import Figures, Loss, Samples, Task, TaskMetadata
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

WEIGHTS = "weights"  # batch entry: float32 [B]
Probabilities = npt.NDArray[np.float32]  # [n, labels]


class Classification(Task[LabelledTexts, Probabilities]):
    """Linear layer on the pooled output (Devlin et al. 2019, figure 4a, b) or on pair features.

    Trained by cross-entropy. Its metrics are in `cloze.model.tasks.metrics.classification.METRICS`.
    """

    metrics: tuple[str, ...] = ("accuracy",)

    def __init__(self, name: str, options: TaskOptions, metrics: tuple[str, ...] = ()) -> None:
        super().__init__(name, options, metrics)
        if isinstance(options, TextOptions):
            self.files = describe_columns(options)

    def read(self, path: str, split: str, limit_per_class: int | None) -> LabelledTexts:
        assert isinstance(self.options, TextOptions)
        examples = read_texts(path, split, self.options, self.files)
        return examples.capped(limit_per_class) if split == "train" else examples

    def metadata(self, train: LabelledTexts) -> TaskMetadata:
        counts = train.class_counts()
        if sum(count > 0 for count in counts.values()) < 2:
            only = next((name for name, count in counts.items() if count), "none")
            raise DataError(
                f"{train.where} holds one label only ({only!r}); training needs examples of two or "
                f"more"
            )
        return {"labels": list(train.label_names), **read_as(self.options, train)}

    def balance_classes(self, train: LabelledTexts) -> LabelledTexts:
        return train.balanced()

    def heads(self, meaning: TaskMetadata) -> dict[str, Any]:
        return heads(meaning, len(meaning["labels"]))

    def align_labels(self, examples: LabelledTexts, meaning: TaskMetadata) -> LabelledTexts:
        return examples.relabelled([str(name) for name in meaning["labels"]])

    def encode(self, examples: LabelledTexts, tokenizer: Tokenizer, max_length: int) -> TextSamples:
        targets = (
            {} if examples.labels is None else {"labels": np.array(examples.labels, dtype=np.int64)}
        )
        if examples.weights is not None:
            targets[WEIGHTS] = np.array(examples.weights, dtype=np.float32)
        return encode(examples.texts, examples.text_pairs, tokenizer, max_length, targets)

    def network(
        self, backbone: Backbone, config: ModelConfig, meaning: TaskMetadata, dropout: float
    ) -> nn.Module:
        return network(backbone, config, meaning, len(meaning["labels"]), dropout)

    def count(self, batch: Mapping[str, Any]) -> int:
        return len(batch["labels"])

    def loss(self, outputs: Tensor, batch: Mapping[str, Any]) -> Loss:
        """Compute cross-entropy in nats, times the examples' weights if the batch has `WEIGHTS`."""
        labels = batch["labels"]
        each = nn.functional.cross_entropy(outputs, labels, reduction="none")
        total = (each * batch[WEIGHTS]).sum() if WEIGHTS in batch else each.sum()
        return Loss(total=total, correct=(outputs.argmax(dim=-1) == labels).sum())

    def select_outputs(self, outputs: Tensor, batch: Mapping[str, Any]) -> Sequence[Any]:
        """Return the probabilities [labels] of each example."""
        del batch
        return list(torch.softmax(outputs, dim=-1).cpu().numpy())

    def decode(
        self, answers: Sequence[Any], examples: LabelledTexts, samples: Samples
    ) -> Probabilities:
        del samples
        return np.array(answers, dtype=np.float32).reshape(len(answers), len(examples.label_names))

    def score(self, examples: LabelledTexts, predictions: Probabilities) -> Figures:
        return metrics.score(self.metrics, _labels(examples), predictions.argmax(axis=1))

    def baselines(self, examples: LabelledTexts) -> Figures:
        """Return the score of always predicting the most frequent class."""
        labels = _labels(examples)
        most = np.bincount(labels).argmax() if len(labels) else 0
        return {
            "majority": metrics.score(self.metrics[:1], labels, np.full_like(labels, most))[
                self.metrics[0]
            ]
        }

    def dataset_statistics(self, examples: LabelledTexts) -> dict[str, Any]:
        return {"classes": examples.class_counts()}

    def detailed_metrics(
        self, examples: LabelledTexts, predictions: Probabilities, *, seed: int, resamples: int
    ) -> dict[str, Any]:
        labels, best, names = (
            _labels(examples),
            predictions.argmax(axis=1),
            list(examples.label_names),
        )
        intervals = metrics.intervals(self.metrics, labels, best, seed, resamples)
        return {
            "interval": {name: list(found) for name, found in intervals.items()},
            "confusion": {
                "labels": names,
                "rows_true": metrics.confusion_matrix(labels, best, len(names)).tolist(),
            },
        }

    def write_predictions(
        self, directory: str, examples: LabelledTexts, predictions: Probabilities
    ) -> None:
        """Write columns index, text, text_pair, label, prediction and score, its probability.

        The index is the file's own, as in GLUE's test files, or else the example's number from 0.
        """
        best, names, pairs = predictions.argmax(axis=1), examples.label_names, examples.text_pairs
        rows = []
        for i, choice in enumerate(best):
            row = {
                "index": examples.ids[i] if examples.ids else str(i),
                "text": examples.texts[i],
            } | ({} if pairs is None else {"text_pair": pairs[i]})
            label = "" if examples.labels is None else names[examples.labels[i]]
            rows.append(
                {
                    **row,
                    "label": label,
                    "prediction": names[choice],
                    "score": f"{predictions[i, choice]:.6f}",
                }
            )
        write_rows(storage.join(directory, self.predictions), rows)


def _labels(examples: LabelledTexts) -> npt.NDArray[np.int64]:
    return np.array(examples.labels, dtype=np.int64)
