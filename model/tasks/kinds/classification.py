"""The kind of task that gives a text, or a pair of texts, one of a few labels: sentiment, paraphrase, entailment, subject."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from model.families.config import ModelConfig
from model.families.models import Backbone
from model.tasks import sentences
from model.tasks.encode import TextSamples, encode
from model.tasks.formats.labelled_texts import LabelledTexts, read_texts
from model.tasks.formats.tables_texts import told
from model.tasks.metrics import classification as metrics
from model.tasks.options import TaskOptions, TextOptions
from model.tasks.predictions import write_rows
from model.tasks.task import Figures, Loss, Meaning, Samples, Task
from pipeline.core import storage
from pipeline.core.errors import DataError
from pipeline.tokenizer.tokenizer import Tokenizer

WEIGHTS = "weights"  # of a batch: float32 [B]
Probabilities = npt.NDArray[np.float32]  # [n, labels]


class Classification(Task[LabelledTexts, Probabilities]):
    """One linear layer on the pooled output (Devlin et al. 2019, figure 4a, b) or the features of a pair, trained by cross-entropy.

    Its metrics are names in `model.tasks.metrics.classification.METRICS`.
    """

    metrics: tuple[str, ...] = ("accuracy",)

    def __init__(self, name: str, options: TaskOptions, metrics: tuple[str, ...] = ()) -> None:
        super().__init__(name, options, metrics)
        if isinstance(options, TextOptions):
            self.files = told(options)

    def read(self, path: str, split: str, limit_per_class: int | None) -> LabelledTexts:
        assert isinstance(self.options, TextOptions)
        examples = read_texts(path, split, self.options, self.files)
        return examples.capped(limit_per_class) if split == "train" else examples

    def meaning(self, train: LabelledTexts) -> Meaning:
        counts = train.class_counts()
        if sum(count > 0 for count in counts.values()) < 2:
            only = next((name for name, count in counts.items() if count), "none")
            raise DataError(f"{train.where} holds one label only ({only!r}); training needs examples of two or more")
        return {"labels": list(train.label_names), **sentences.read_as(self.options, train)}

    def balance(self, train: LabelledTexts) -> LabelledTexts:
        return train.balanced()

    def heads(self, meaning: Meaning) -> dict[str, Any]:
        return sentences.heads(meaning, len(meaning["labels"]))

    def adopt(self, examples: LabelledTexts, meaning: Meaning) -> LabelledTexts:
        return examples.relabelled([str(name) for name in meaning["labels"]])

    def encode(self, examples: LabelledTexts, tokenizer: Tokenizer, max_length: int) -> TextSamples:
        targets = {} if examples.labels is None else {"labels": np.array(examples.labels, dtype=np.int64)}
        if examples.weights is not None:
            targets[WEIGHTS] = np.array(examples.weights, dtype=np.float32)
        return encode(examples.texts, examples.text_pairs, tokenizer, max_length, targets)

    def network(self, backbone: Backbone, config: ModelConfig, meaning: Meaning, dropout: float) -> nn.Module:
        return sentences.network(backbone, config, meaning, len(meaning["labels"]), dropout)

    def count(self, batch: Mapping[str, Any]) -> int:
        return len(batch["labels"])

    def loss(self, outputs: Tensor, batch: Mapping[str, Any]) -> Loss:
        """Cross-entropy in nats, each example's times its weight where the batch has `WEIGHTS`."""
        labels = batch["labels"]
        each = nn.functional.cross_entropy(outputs, labels, reduction="none")
        total = (each * batch[WEIGHTS]).sum() if WEIGHTS in batch else each.sum()
        return Loss(total=total, correct=(outputs.argmax(dim=-1) == labels).sum())

    def answers(self, outputs: Tensor, batch: Mapping[str, Any]) -> Sequence[Any]:
        """Probabilities [labels] of each example."""
        del batch
        return list(torch.softmax(outputs, dim=-1).cpu().numpy())

    def decode(self, answers: Sequence[Any], examples: LabelledTexts, samples: Samples) -> Probabilities:
        del samples
        return np.array(answers, dtype=np.float32).reshape(len(answers), len(examples.label_names))

    def score(self, examples: LabelledTexts, predictions: Probabilities) -> Figures:
        return metrics.score(self.metrics, _labels(examples), predictions.argmax(axis=1))

    def baselines(self, examples: LabelledTexts) -> Figures:
        """The task's score of saying the most frequent class always."""
        labels = _labels(examples)
        most = np.bincount(labels).argmax() if len(labels) else 0
        return {"majority": metrics.score(self.metrics[:1], labels, np.full_like(labels, most))[self.metrics[0]]}

    def facts(self, examples: LabelledTexts) -> dict[str, Any]:
        return {"classes": examples.class_counts()}

    def details(self, examples: LabelledTexts, predictions: Probabilities, *, seed: int, resamples: int) -> dict[str, Any]:
        labels, best, names = _labels(examples), predictions.argmax(axis=1), list(examples.label_names)
        intervals = metrics.intervals(self.metrics, labels, best, seed, resamples)
        return {
            "interval": {name: list(found) for name, found in intervals.items()},
            "confusion": {"labels": names, "rows_true": metrics.confusion_matrix(labels, best, len(names)).tolist()},
        }

    def write(self, directory: str, examples: LabelledTexts, predictions: Probabilities) -> None:
        """Columns index, text (and text_pair), label, prediction and score, the probability of the predicted label.

        The index is the file's own where it has one, as GLUE's test files do; else the example's number from 0.
        """
        best, names, pairs = predictions.argmax(axis=1), examples.label_names, examples.text_pairs
        rows = []
        for i, choice in enumerate(best):
            row = {"index": examples.ids[i] if examples.ids else str(i), "text": examples.texts[i]} | (
                {} if pairs is None else {"text_pair": pairs[i]}
            )
            label = "" if examples.labels is None else names[examples.labels[i]]
            rows.append({**row, "label": label, "prediction": names[choice], "score": f"{predictions[i, choice]:.6f}"})
        write_rows(storage.join(directory, self.predictions), rows)


def _labels(examples: LabelledTexts) -> npt.NDArray[np.int64]:
    return np.array(examples.labels, dtype=np.int64)
