"""The kind of task that gives a text, or a pair of texts, one of a few labels: sentiment, paraphrase, entailment, subject."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from model.families.config import ModelConfig
from model.families.models import Backbone
from model.tasks import metrics
from model.tasks.encode import TextSamples, encode
from model.tasks.heads import SequenceClassifier
from model.tasks.labelled_texts import LabelledTexts
from model.tasks.predictions import write_rows
from model.tasks.task import Figures, Loss, Meaning, Samples, Task
from pipeline.tokenizer.tokenizer import Tokenizer

Probabilities = npt.NDArray[np.float32]  # [n, labels]


class Reader(Protocol):
    """Where a classification task's examples come from. Attributes: see `Task`."""

    source: Any
    files: str

    def __call__(self, path: str, split: str, limit_per_class: int | None) -> LabelledTexts:
        """The examples of one split; raises DataError, see `Task.read`."""
        ...


class Classification(Task[LabelledTexts, Probabilities]):
    """One linear layer on the pooled output (Devlin et al. 2019, figure 4a, b), trained by cross-entropy.

    Args:
        reader: of the task's files.
        names: in `model.tasks.metrics.METRICS`; the first one is the task's score.
    """

    def __init__(self, name: str, reader: Reader, names: tuple[str, ...] = ("accuracy",)) -> None:
        self.name, self.metrics, self._reader = name, names, reader
        self.source, self.files = reader.source, reader.files

    def read(self, path: str, split: str, limit_per_class: int | None) -> LabelledTexts:
        return self._reader(path, split, limit_per_class)

    def meaning(self, train: LabelledTexts) -> Meaning:
        return {"labels": list(train.label_names)}

    def heads(self, meaning: Meaning) -> dict[str, Any]:
        return {"classifier": {"num_labels": len(meaning["labels"])}}

    def adopt(self, examples: LabelledTexts, meaning: Meaning) -> LabelledTexts:
        return examples.relabelled([str(name) for name in meaning["labels"]])

    def encode(self, examples: LabelledTexts, tokenizer: Tokenizer, max_length: int) -> TextSamples:
        targets = {} if examples.labels is None else {"labels": np.array(examples.labels, dtype=np.int64)}
        return encode(examples.texts, examples.text_pairs, tokenizer, max_length, targets)

    def network(self, backbone: Backbone, config: ModelConfig, meaning: Meaning, dropout: float) -> nn.Module:
        return SequenceClassifier(backbone.encoder, backbone.pooler, config.hidden_size, len(meaning["labels"]), dropout)

    def count(self, batch: Mapping[str, Any]) -> int:
        return len(batch["labels"])

    def loss(self, outputs: Tensor, batch: Mapping[str, Any]) -> Loss:
        labels = batch["labels"]
        total = nn.functional.cross_entropy(outputs, labels, reduction="sum")
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
        return {"majority": examples.majority_share()}

    def facts(self, examples: LabelledTexts) -> dict[str, Any]:
        return {"classes": examples.class_counts()}

    def details(self, examples: LabelledTexts, predictions: Probabilities, *, seed: int, resamples: int) -> dict[str, Any]:
        labels, best, names = _labels(examples), predictions.argmax(axis=1), list(examples.label_names)
        return {
            "interval": {"accuracy": list(metrics.bootstrap_interval(labels == best, seed, resamples))},
            "confusion": {"labels": names, "rows_true": metrics.confusion_matrix(labels, best, len(names)).tolist()},
        }

    def write(self, path: str, examples: LabelledTexts, predictions: Probabilities) -> None:
        """Columns index, text (and text_pair), label, prediction and score, the probability of the predicted label."""
        best, names, pairs = predictions.argmax(axis=1), examples.label_names, examples.text_pairs
        rows = []
        for i, choice in enumerate(best):
            row = {"index": str(i), "text": examples.texts[i]} | ({} if pairs is None else {"text_pair": pairs[i]})
            label = "" if examples.labels is None else names[examples.labels[i]]
            rows.append({**row, "label": label, "prediction": names[choice], "score": f"{predictions[i, choice]:.6f}"})
        write_rows(path, rows)


def _labels(examples: LabelledTexts) -> npt.NDArray[np.int64]:
    return np.array(examples.labels, dtype=np.int64)
