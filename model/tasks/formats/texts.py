"""Examples of classification and regression: texts or pairs of texts with a label or score."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cloze.core.errors import DataError
from cloze.core.random_keys import document_key
from cloze.model.tasks.formats.text_tables import read_rows
from cloze.model.tasks.options import RegressionOptions, TextOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledTexts:
    """Labelled texts or pairs of texts, in file order.

    Attributes:
        labels: indices into `label_names`; None for a split without labels.
        label_names: labels as in the files.
        text_pairs: second text of each example, for tasks on pairs.
        ids: ids of the examples, if the file has any.
        places: file and line of each example, for messages; empty if unknown.
        weights: training weight of each example, 1 on average; None: equal weights.
        dropped: number of examples dropped on purpose, by reason.
        where: source for messages.
    """

    texts: Sequence[str]
    labels: Sequence[int] | None
    label_names: tuple[str, ...]
    text_pairs: Sequence[str] | None = None
    ids: Sequence[str] | None = None
    places: Sequence[str] = ()
    weights: Sequence[float] | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    where: str = ""

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def labelled(self) -> bool:
        return self.labels is not None

    def class_counts(self) -> dict[str, int]:
        """Count the examples per label, in label order; empty without labels."""
        if self.labels is None:
            return {}
        counts = Counter(self.labels)
        return {name: counts[number] for number, name in enumerate(self.label_names)}

    def majority_share(self) -> float:
        """Return the share of the most frequent label; 0 without labels."""
        counts = self.class_counts()
        return max(counts.values()) / len(self) if counts and len(self) else 0.0

    def capped(self, limit: int | None) -> LabelledTexts:
        """Return at most `limit` examples per class, those with the smallest text hashes."""
        if limit is None or self.labels is None:
            return self
        pairs = self.text_pairs or [""] * len(self)
        ranked = sorted(
            range(len(self)), key=lambda i: (document_key(f"{self.texts[i]}\0{pairs[i]}"), i)
        )
        taken: Counter[int] = Counter()
        kept = []
        for i in ranked:
            if taken[self.labels[i]] < limit:
                taken[self.labels[i]] += 1
                kept.append(i)
        kept.sort()
        dropped = Counter(self.dropped)
        if len(self) > len(kept):
            dropped["over_limit_per_class"] += len(self) - len(kept)
        return dataclasses.replace(
            self,
            texts=[self.texts[i] for i in kept],
            labels=[self.labels[i] for i in kept],
            text_pairs=[pairs[i] for i in kept] if self.text_pairs is not None else None,
            ids=[self.ids[i] for i in kept] if self.ids is not None else None,
            places=[self.places[i] for i in kept] if self.places else (),
            weights=[self.weights[i] for i in kept] if self.weights is not None else None,
            dropped=dict(dropped),
        )

    def balanced(self) -> LabelledTexts:
        """Return the examples with class weights n / (classes * count of the class), 1 on average.

        Sources: King and Zeng 2001; scikit-learn's `class_weight="balanced"`.
        """
        counts = Counter(self.labels or ())
        weight = {label: len(self) / (len(counts) * count) for label, count in counts.items()}
        return dataclasses.replace(self, weights=[weight[label] for label in self.labels or ()])

    def relabelled(self, label_names: Sequence[str]) -> LabelledTexts:
        """Return the examples with the model's label numbers.

        Raises:
            DataError: the model does not know a label.
        """
        names = tuple(label_names)
        if self.labels is None or names == self.label_names:
            return dataclasses.replace(self, label_names=names)
        number = {name: i for i, name in enumerate(names)}
        unknown = sorted({self.label_names[label] for label in self.labels} - number.keys())
        if unknown:
            first = next(
                (i for i, label in enumerate(self.labels) if self.label_names[label] == unknown[0]),
                0,
            )
            raise DataError(
                f"{self.places[first] if self.places else self.where} holds the label "
                f"{unknown[0]!r},"
                f" the model knows {', '.join(names)};"
                " evaluate it on the data that it was made for"
            )
        return dataclasses.replace(
            self,
            labels=[number[self.label_names[label]] for label in self.labels],
            label_names=names,
        )


def read_texts(path: str, split: str, options: TextOptions, told: str) -> LabelledTexts:
    """Read the examples of one split, with labels if the file has them.

    Args:
        path: task directory, its parent, or the split's file.
        told: description of the expected files, for messages.

    Raises:
        DataError: the file is missing or malformed, a text is empty, or a label is unknown. The
            message names file and line.
    """
    rows = read_rows(path, split, options, told)
    names = options.labels or tuple(sorted(set(rows.answers or ())))
    number = {name: i for i, name in enumerate(names)}
    for place, answer in zip(rows.places, rows.answers or (), strict=False):
        if answer not in number:
            raise DataError(
                f"{place}: label {answer!r} is not one of {', '.join(names)}; mend the line"
            )
    return LabelledTexts(
        texts=rows.texts,
        text_pairs=rows.pairs,
        labels=None if rows.answers is None else [number[answer] for answer in rows.answers],
        label_names=names,
        ids=rows.ids,
        places=rows.places,
        dropped=rows.dropped,
        where=rows.path,
    )


# Scored texts, for regression tasks.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredTexts:
    """Scored texts or pairs of texts, in file order.

    Attributes:
        scores: float64 [n], in the file's unit; None for a split without scores.
        text_pairs: second text of each example, for tasks on pairs.
        ids: ids of the examples, if the file has any.
        dropped: number of examples dropped on purpose, by reason.
        where: source for messages.
    """

    texts: Sequence[str]
    scores: npt.NDArray[np.float64] | None
    text_pairs: Sequence[str] | None = None
    ids: Sequence[str] | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    where: str = ""

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def labelled(self) -> bool:
        return self.scores is not None


def read_scored(path: str, split: str, options: RegressionOptions, told: str) -> ScoredTexts:
    """Read the examples of one split.

    Raises:
        DataError: the file is missing or malformed, a text is empty, or a score is no number or out
            of range; the message names file and line.
    """
    rows = read_rows(path, split, options, told)
    scores = None
    if rows.answers is not None:
        found = [
            _number(answer, place, options)
            for answer, place in zip(rows.answers, rows.places, strict=True)
        ]
        scores = np.array(found, dtype=np.float64)
    return ScoredTexts(
        texts=rows.texts,
        text_pairs=rows.pairs,
        scores=scores,
        ids=rows.ids,
        dropped=rows.dropped,
        where=rows.path,
    )


def _number(text: str, place: str, options: RegressionOptions) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{place}: score {text!r} is no number; mend the line")
    low, high = options.lowest, options.highest
    if (low is not None and value < low) or (high is not None and value > high):
        known = (
            f"{'-inf' if low is None else f'{low:g}'} to {'inf' if high is None else f'{high:g}'}"
        )
        raise DataError(
            f"{place}: score {text} is not within {known}; mend the line, or change lowest and "
            f"highest"
        )
    return value
