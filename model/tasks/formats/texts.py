"""Texts or pairs of texts with labels or scores, from the table of a split."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from cloze.core.errors import DataError
from cloze.core.random_keys import document_key
from cloze.model.tasks.files import fold_indices
from cloze.model.tasks.formats.table_files import Table
from cloze.model.tasks.formats.tables import (
    ID,
    LABEL,
    MUST_LABEL,
    NO_LABEL,
    PAIR,
    TEXT,
    check_ids,
    open_split,
)
from cloze.model.tasks.options import RegressionOptions, TableOptions, TextOptions

UNLABELLED = "without_a_label"  # reason for dropping an example
T = TypeVar("T", bound="TextExamples")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextExamples:
    """Texts or pairs of texts, in file order.

    Attributes:
        text_pairs: second text of each example, for tasks on pairs.
        ids: ids of the examples, if the file has any.
        locations: file and line of each example, for messages; empty if unknown.
    """

    texts: Sequence[str]
    text_pairs: Sequence[str] | None = None
    ids: Sequence[str] | None = None
    locations: Sequence[str] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    where: str = ""

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def labelled(self) -> bool:
        """False; a subclass has answers."""
        return False

    def select(self: T, indices: Sequence[int], *per_example: str) -> T:
        """Return the examples at `indices`; `per_example`: further fields with one entry each."""
        changes: dict[str, Any] = {}
        for name in ("texts", "text_pairs", "ids", "locations", *per_example):
            values = getattr(self, name)
            if values:
                changes[name] = [values[i] for i in indices]
        return dataclasses.replace(self, **changes)


def read_rows(
    path: str,
    split: str,
    options: TableOptions,
    expected_files: str,
    prepare: Callable[[Table], Table] = lambda table: table,
) -> tuple[TextExamples, Sequence[str] | None]:
    """Read the texts of one split, and the answers of the file; None if the split has none.

    Raises:
        DataError: the file is missing or malformed, a text is empty, an answer missing, or an id is
            duplicate; the message names file and line.
    """
    split_table = open_split(path, split, options, TEXT, PAIR, expected_files, prepare)
    table, columns = split_table.table, split_table.columns
    values: dict[str, list[str]] = {role: [] for role in columns}
    locations: list[str] = []
    for location, row, _ in split_table.rows():
        if options.unlabelled and row.get(LABEL) in options.unlabelled:
            table.dropped[UNLABELLED] += 1
            continue
        for role in (TEXT, PAIR):
            if options.empty == "refuse" and role in row and not row[role].strip():
                raise DataError(f"{location}: the {columns[role]} is empty; remove the example")
        for role, value in row.items():
            values[role].append(value)
        locations.append(location)
    check_ids(values.get(ID), locations)
    answers = values.get(LABEL)
    if answers is not None and split not in MUST_LABEL and set(answers) <= {"", NO_LABEL}:
        answers = None
    for location, answer in zip(locations, answers or (), strict=False):
        if not answer.strip():
            raise DataError(
                f"{location}: the {columns[LABEL]} is empty; add it, or remove the example"
            )
    examples = TextExamples(
        texts=values[TEXT],
        text_pairs=values.get(PAIR),
        ids=values.get(ID),
        locations=locations,
        dropped=dict(table.dropped),
        where=table.path,
    )
    if not options.folds or split not in MUST_LABEL:
        return examples, answers
    selected = fold_indices(examples.texts, split, options.folds, options.fold)
    return examples.select(selected), answers and [answers[i] for i in selected]


# Labelled texts, for classification.


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledTexts(TextExamples):
    """Labelled texts or pairs of texts.

    Attributes:
        labels: indices into `label_names`; None for a split without labels.
        label_names: labels as in the files.
        weights: training weight of each example, 1 on average; None: equal weights.
        outputs: label number of each output of the model; None: output i is label i.
    """

    labels: Sequence[int] | None
    label_names: tuple[str, ...]
    weights: Sequence[float] | None = None
    outputs: Sequence[int] | None = None

    @property
    def labelled(self) -> bool:
        return self.labels is not None

    def class_counts(self) -> dict[str, int]:
        """Count the examples per label, in label order; empty without labels."""
        if self.labels is None:
            return {}
        counts = Counter(self.labels)
        return {name: counts[number] for number, name in enumerate(self.label_names)}

    def capped(self, limit: int | None) -> LabelledTexts:
        """Return at most `limit` examples per class, those with the smallest text hashes."""
        if limit is None or self.labels is None:
            return self
        pairs = self.text_pairs or [""] * len(self)
        by_hash = sorted(
            range(len(self)), key=lambda i: (document_key(f"{self.texts[i]}\0{pairs[i]}"), i)
        )
        counts: Counter[int] = Counter()
        selected = []
        for i in by_hash:
            if counts[self.labels[i]] < limit:
                counts[self.labels[i]] += 1
                selected.append(i)
        dropped = Counter(self.dropped)
        if len(self) > len(selected):
            dropped["over_limit_per_class"] += len(self) - len(selected)
        capped = self.select(sorted(selected), "labels", "weights")
        return dataclasses.replace(capped, dropped=dict(dropped))

    def balanced(self) -> LabelledTexts:
        """Return the examples with class weights n / (classes * count of the class), 1 on average.

        Sources: King and Zeng 2001; scikit-learn's `class_weight="balanced"`.
        """
        counts = Counter(self.labels or ())
        weight = {label: len(self) / (len(counts) * count) for label, count in counts.items()}
        return dataclasses.replace(self, weights=[weight[label] for label in self.labels or ()])

    def relabelled(
        self, label_names: Sequence[str], renamed: Mapping[str, str] | None = None
    ) -> LabelledTexts:
        """Return the examples with the model's label numbers.

        Args:
            label_names: labels of the model's outputs.
            renamed: new names for labels of the model and of the examples.

        Raises:
            DataError: the model does not know a label.
        """
        if renamed:
            outputs, files = (
                [renamed.get(name, name) for name in own] for own in (label_names, self.label_names)
            )
            file_names = list(dict.fromkeys(files))
            # The data's order: metrics such as F1 are of its second label.
            known = (name for name in file_names if name in outputs)
            names = list(dict.fromkeys([*known, *outputs]))
            examples = dataclasses.replace(
                self,
                labels=self.labels and [file_names.index(files[label]) for label in self.labels],
                label_names=tuple(file_names),
                outputs=[names.index(name) for name in outputs],
            )
            return examples.relabelled(names)
        names = list(label_names)
        if self.labels is None or tuple(names) == self.label_names:
            return dataclasses.replace(self, label_names=tuple(names))
        label_numbers = {name: i for i, name in enumerate(names)}
        unknown = sorted({self.label_names[label] for label in self.labels} - label_numbers.keys())
        if unknown:
            example = self.labels.index(self.label_names.index(unknown[0]))
            location = self.locations[example] if self.locations else self.where
            raise DataError(
                f"{location}: label {unknown[0]!r} is unknown to the model, which has "
                f"{', '.join(names)} of its train split; add examples of it there, map it with "
                f"label_map, or use the data of the model's own task"
            )
        labels = [label_numbers[self.label_names[label]] for label in self.labels]
        return dataclasses.replace(self, labels=labels, label_names=tuple(names))


def read_texts(path: str, split: str, options: TextOptions, expected_files: str) -> LabelledTexts:
    """Read the examples of one split, with labels if the file has them; see `read_rows`.

    Raises:
        DataError: a label is unknown; and as for `read_rows`.
    """
    examples, answers = read_rows(path, split, options, expected_files)
    names = options.labels or tuple(sorted(set(answers or ())))
    if not options.labels:
        check_names(names, examples)
    label_numbers = {name: i for i, name in enumerate(names)}
    for location, answer in zip(examples.locations, answers or (), strict=False):
        if answer not in label_numbers:
            raise DataError(
                f"{location}: label {answer!r} is not one of {', '.join(names)}; correct the line"
            )
    return LabelledTexts(
        **shared_fields(examples),
        labels=None if answers is None else [label_numbers[answer] for answer in answers],
        label_names=names,
    )


def check_names(names: Sequence[str], examples: TextExamples) -> None:
    """Check that labels are no measured numbers.

    Raises:
        DataError: all are numbers, and not all are whole.
    """
    try:
        numbers = list(map(float, names))
    except ValueError:
        return
    if measured := [name for name, number in zip(names, numbers, strict=True) if number % 1]:
        raise DataError(
            f"{examples.where}: labels such as {measured[0]} are numbers, not names of classes; "
            f"use task regression, or name the classes with --set 'options={{labels: […]}}'"
        )


def shared_fields(examples: TextExamples) -> dict[str, Any]:
    """Return the fields of `TextExamples` by name, for a subclass with further ones."""
    return {item.name: getattr(examples, item.name) for item in dataclasses.fields(TextExamples)}


# Scored texts, for regression.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredTexts(TextExamples):
    """Texts or pairs of texts with `scores`, float64 [n], in the file's unit, or None."""

    scores: npt.NDArray[np.float64] | None

    @property
    def labelled(self) -> bool:
        return self.scores is not None


def read_scored(
    path: str, split: str, options: RegressionOptions, expected_files: str
) -> ScoredTexts:
    """Read the examples of one split, with scores if the file has them; see `read_rows`.

    Raises:
        DataError: a score is not a number or out of range; and as for `read_rows`.
    """
    examples, answers = read_rows(path, split, options, expected_files)
    numbers = [
        _parse_score(answer, location, options)
        for answer, location in zip(answers or (), examples.locations, strict=False)
    ]
    scores = None if answers is None else np.array(numbers, dtype=np.float64)
    return ScoredTexts(**shared_fields(examples), scores=scores)


def _parse_score(text: str, location: str, options: RegressionOptions) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{location}: score {text!r} is not a number; correct the line")
    low = -math.inf if options.lowest is None else options.lowest
    high = math.inf if options.highest is None else options.highest
    if not low <= value <= high:
        raise DataError(
            f"{location}: score {text} is not between {low:g} and {high:g}; correct the line, or "
            f"change options.lowest and options.highest"
        )
    return value
