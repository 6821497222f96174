"""The task kind multilabel: any number of labels for a text or a pair of texts.

Trained by binary cross-entropy over sigmoids, as in Hugging Face (`multi_label_classification`).
A label is predicted if its probability exceeds the threshold.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cloze.core.errors import DataError
from cloze.core.ragged import I64
from cloze.model.tasks.encode import TextSamples, encode
from cloze.model.tasks.formats.lines import load_json
from cloze.model.tasks.formats.table_files import Table, as_label, as_text
from cloze.model.tasks.formats.tables import LABEL, MUST_LABEL
from cloze.model.tasks.formats.texts import TextExamples, check_names, read_rows, shared_fields
from cloze.model.tasks.kinds.texts import Probabilities, TextTask
from cloze.model.tasks.metrics import Flags, interval
from cloze.model.tasks.options import MultiLabelOptions
from cloze.model.tasks.task import Loss, Metrics, Samples, TaskMetadata
from cloze.model.tasks.teacher import soft_loss
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

PROBLEM = "multi_label_classification"  # Hugging Face's `problem_type`
LISTS = "labels as JSON"  # name of an added column
ON, OFF = ("1", "1.0", "true"), ("", "0", "0.0", "false")  # values of a label's column


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSets(TextExamples):
    """Texts or pairs of texts with any number of labels each.

    Attributes:
        labels: labels of each example; None for a split without labels.
        label_names: all labels.
    """

    labels: Sequence[Sequence[str]] | None
    label_names: tuple[str, ...]

    @property
    def labelled(self) -> bool:
        return self.labels is not None

    def relabelled(self, label_names: Sequence[str]) -> LabelSets:
        """Return the examples with the model's labels.

        Raises:
            DataError: an example has another label.
        """
        for number, own in enumerate(self.labels or ()):
            if unknown := sorted(set(own) - set(label_names)):
                location = self.locations[number] if self.locations else self.where
                raise DataError(
                    f"{location}: label {unknown[0]!r} is not one of {', '.join(label_names)}; "
                    f"correct the line, or use the data of the model's own task"
                )
        return dataclasses.replace(self, label_names=tuple(label_names))

    def matrix(self) -> Flags:
        """Return bool [n, labels], true for the labels of each example."""
        rows = [[name in own for name in self.label_names] for own in self.labels or ()]
        return np.array(rows, dtype=np.bool_).reshape(-1, len(self.label_names))


def read_label_sets(
    path: str, split: str, options: MultiLabelOptions, expected_files: str
) -> LabelSets:
    """Read the examples of one split, with labels if the file has them; see `read_rows`.

    Raises:
        DataError: a label is unknown, a value is no list of labels, or a value of a label's column
            is not 0 or 1; and as for `read_rows`.
    """

    sources = options.label_columns or (options.columns.get(LABEL, LABEL),)

    def with_lists(table: Table) -> Table:
        """Return the table with a column of the labels of each row, as a JSON list."""
        if split not in MUST_LABEL and table.index(sources[0]) is None:
            return table
        indices = table.indices(sources)
        rows = (
            (location, [*values, json.dumps(own_labels(location, [values[i] for i in indices]))])
            for location, values in table.rows
        )
        return dataclasses.replace(table, columns=(*table.columns, LISTS), rows=rows)

    def own_labels(location: str, cells: Sequence[Any]) -> list[str]:
        if options.label_columns:
            texts = [as_label(as_text(cell, location, "label")).lower() for cell in cells]
            if wrong := set(texts) - {*ON, *OFF}:
                raise DataError(f"{location}: {min(wrong)!r} is not 0 or 1; correct the line")
            return [str(name) for name, text in zip(sources, texts, strict=True) if text in ON]
        labels = _parsed(cells[0])
        if not isinstance(labels, list):
            raise DataError(
                f"{location}: the {sources[0]} is not a list of labels; write one, or name a "
                f"column of 0 and 1 for each label with --set options.label_columns=…"
            )
        texts = [as_label(as_text(label, location, sources[0])) for label in labels]
        if "" in texts:
            raise DataError(
                f"{location}: label {texts.index('') + 1} of {sources[0]} is empty; remove it"
            )
        return texts

    columns = {**options.columns, LABEL: LISTS}
    examples, answers = read_rows(
        path, split, options.model_copy(update={"columns": columns}), expected_files, with_lists
    )
    labels = None if answers is None else [list[str](json.loads(answer)) for answer in answers]
    names = options.labels or tuple(map(str, options.label_columns))
    if labels and not options.label_columns:
        labels = _by_position(labels, names, examples)
    names = names or tuple(sorted({label for own in labels or () for label in own}))
    if not options.labels:
        check_names(names, examples)
    sets = LabelSets(**shared_fields(examples), labels=labels, label_names=names)
    return sets.relabelled(names)


def _parsed(cell: Any) -> Any:
    """Return the list that a text is, in JSON or as Python writes it; else the cell."""
    if not isinstance(cell, str) or not cell.lstrip().startswith("["):
        return cell
    with contextlib.suppress(json.JSONDecodeError):
        return load_json(cell)
    with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        return ast.literal_eval(cell.strip())
    return cell


def _by_position(
    labels: list[list[str]], names: Sequence[str], examples: TextExamples
) -> list[list[str]]:
    """Return the labels; lists that have a 0 or 1 for each of `names` become the names with 1.

    Raises:
        DataError: lists are of 0 and 1 by position, but names are unknown or of another number.
    """
    flags = {*ON, *OFF} - {""}
    if not {label.lower() for own in labels for label in own} <= flags or set(names) & flags:
        return labels
    if not names and all(len(set(own)) == len(own) and own == sorted(own) for own in labels):
        return labels  # sets of two labels that are called 0 and 1
    for own, location in zip(labels, examples.locations, strict=True):
        if not names or len(own) != len(names):
            raise DataError(
                f"{location}: the labels are {len(own)} values of 0 and 1 by position, and "
                f"{len(names) or 'no'} names are known; name one for each value with --set "
                f"'options={{labels: […]}}', or write lists of names"
            )
    return [
        [name for name, on in zip(names, own, strict=True) if on.lower() in ON] for own in labels
    ]


LABEL_SETS = ("micro_f1", "macro_f1")


def label_set_scores(labels: Flags, predictions: Flags) -> dict[str, float]:
    """Return micro F1 of all labels, and the mean of their F1: 0 for a label without examples.

    Args:
        labels, predictions: bool [n, labels].
    """
    correct = 2.0 * (labels & predictions).sum(axis=0)
    total = labels.sum(axis=0) + predictions.sum(axis=0)
    micro = correct.sum() / max(1, total.sum())
    return {"micro_f1": float(micro), "macro_f1": float((correct / np.maximum(total, 1)).mean())}


def label_set_intervals(
    labels: Flags, predictions: Flags, seed: int, resamples: int
) -> dict[str, list[float]]:
    """Return the bootstrap interval of each metric, resampling examples."""

    def compute(name: str, indices: I64) -> float:
        return label_set_scores(labels[indices], predictions[indices])[name]

    return {
        name: interval(partial(compute, name), len(labels), seed, resamples) for name in LABEL_SETS
    }


class MultiLabel(TextTask[LabelSets, Probabilities]):
    """Any number of labels per example; metrics: `LABEL_SETS`."""

    options: MultiLabelOptions
    metrics: tuple[str, ...] = LABEL_SETS

    def read(self, path: str, split: str, limit_per_class: int | None) -> LabelSets:
        self.refuse_limit(limit_per_class, ", whose examples have several labels; leave it out")
        return read_label_sets(path, split, self.options, self.files)

    def metadata(self, train: LabelSets) -> TaskMetadata:
        if not train.label_names:
            raise DataError(f"{train.where} has no labels; training needs one or more")
        names = list(train.label_names)
        return {"labels": names, "problem_type": PROBLEM, **self.text_metadata(train)}

    def align_labels(self, examples: LabelSets, metadata: TaskMetadata) -> LabelSets:
        return examples.relabelled([str(name) for name in metadata["labels"]])

    def encode(self, examples: LabelSets, tokenizer: Tokenizer, max_length: int) -> TextSamples:
        targets = {"labels": examples.matrix().astype(np.float32)} if examples.labelled else {}
        return encode(examples.texts, examples.text_pairs, tokenizer, max_length, targets)

    def loss(self, outputs: Tensor, batch: Mapping[str, Any]) -> Loss:
        """Compute the mean binary cross-entropy over labels, in nats; correct: all labels are."""
        labels = batch["labels"]
        losses = nn.functional.binary_cross_entropy_with_logits(outputs, labels, reduction="none")
        predicted = torch.sigmoid(outputs) > self.options.threshold
        correct = (predicted == labels.bool()).all(dim=-1).sum()
        return Loss(total=losses.mean(dim=-1).sum(), correct=correct)

    def soft_loss(
        self, outputs: Tensor, teacher: Tensor, batch: Mapping[str, Any], temperature: float
    ) -> Loss:
        """Compute the divergence of each label's yes and no, and its mean over labels."""
        own, other = (torch.stack([item, -item], dim=-1) / 2 for item in (outputs, teacher))
        loss, labels = soft_loss(own, other, temperature), outputs.shape[-1]
        return Loss(total=loss.total / labels, correct=loss.correct / labels)

    def select_outputs(self, outputs: Tensor, batch: Mapping[str, Any]) -> Tensor:
        """Return the probability of each label, [B, labels]."""
        return torch.sigmoid(outputs)

    def decode(
        self, answers: Sequence[Any], examples: LabelSets, samples: Samples
    ) -> Probabilities:
        return np.array(answers, dtype=np.float32).reshape(len(answers), len(examples.label_names))

    def score(self, examples: LabelSets, predictions: Probabilities) -> Metrics:
        predicted = predictions > self.options.threshold
        scores = label_set_scores(examples.matrix(), predicted)
        return {name: scores[name] for name in self.metrics}

    def baselines(self, examples: LabelSets) -> Metrics:
        """Return the score of always predicting the most frequent label."""
        matrix = examples.matrix()
        predicted = np.zeros_like(matrix)
        predicted[:, matrix.sum(axis=0).argmax()] = True
        return {"majority": label_set_scores(matrix, predicted)[self.metrics[0]]}

    def dataset_statistics(self, examples: LabelSets) -> dict[str, Any]:
        counts = Counter(label for own in examples.labels or () for label in own)
        return {"classes": {name: counts[name] for name in examples.label_names}}

    def detailed_metrics(
        self, examples: LabelSets, predictions: Probabilities, *, seed: int, resamples: int
    ) -> dict[str, Any]:
        matrix, predicted = examples.matrix(), predictions > self.options.threshold
        intervals = label_set_intervals(matrix, predicted, seed, resamples)
        return {"interval": {name: intervals[name] for name in self.metrics}}

    def write_predictions(
        self, directory: str, examples: LabelSets, predictions: Probabilities
    ) -> None:
        """Write index, text, text_pair, label, prediction, and scores: all probabilities as JSON.

        Labels are separated by a comma and a blank.
        """
        names, threshold = examples.label_names, self.options.threshold
        columns = {
            "label": [", ".join(own) for own in examples.labels or [()] * len(examples)],
            "prediction": [
                ", ".join(name for name, score in zip(names, row, strict=True) if score > threshold)
                for row in predictions
            ],
            "scores": [
                json.dumps({n: round(float(s), 6) for n, s in zip(names, row, strict=True)})
                for row in predictions
            ],
        }
        self.write_table(directory, examples, columns)
