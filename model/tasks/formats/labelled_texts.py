"""Texts, or pairs of texts, with a label each: what a classification task reads."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from model.tasks.formats.tables_texts import read_rows
from model.tasks.options import TextOptions
from pipeline.core.errors import DataError
from pipeline.core.random_keys import document_key


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledTexts:
    """Labelled texts, or pairs of texts, in the order of their file.

    Attributes:
        text_pairs: the second sequence of each example, for tasks on pairs.
        labels: indices into `label_names`; None for a split without labels.
        label_names: the labels as they stand in the files.
        ids: of the examples, where their file has any.
        places: where each stands, such as a file and a line, for messages; empty where that is not known.
        weights: of each example in training, 1 on average; None: all are alike.
        dropped: how many were left out on purpose, by reason.
        where: what was read, for messages.
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
        """Examples of each label, in the order of the labels; empty without labels."""
        if self.labels is None:
            return {}
        counts = Counter(self.labels)
        return {name: counts[number] for number, name in enumerate(self.label_names)}

    def majority_share(self) -> float:
        """The share of the most frequent label; 0 without labels."""
        counts = self.class_counts()
        return max(counts.values()) / len(self) if counts and len(self) else 0.0

    def capped(self, limit: int | None) -> LabelledTexts:
        """At most `limit` examples of each class: those with the smallest hash of their text, in their old order."""
        if limit is None or self.labels is None:
            return self
        pairs = self.text_pairs or [""] * len(self)
        ranked = sorted(range(len(self)), key=lambda i: (document_key(f"{self.texts[i]}\0{pairs[i]}"), i))
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
        """The same examples with weights that let every class that occurs count alike: n / (classes * examples of the class).

        They are 1 on average. (King and Zeng 2001; scikit-learn's `class_weight="balanced"`.)
        """
        counts = Counter(self.labels or ())
        weight = {label: len(self) / (len(counts) * count) for label, count in counts.items()}
        return dataclasses.replace(self, weights=[weight[label] for label in self.labels or ()])

    def relabelled(self, label_names: Sequence[str]) -> LabelledTexts:
        """The same examples with labels numbered as a model numbers them.

        Raises:
            DataError: a label occurs here that the model does not know.
        """
        names = tuple(label_names)
        if self.labels is None or names == self.label_names:
            return dataclasses.replace(self, label_names=names)
        number = {name: i for i, name in enumerate(names)}
        unknown = sorted({self.label_names[label] for label in self.labels} - number.keys())
        if unknown:
            first = next((i for i, label in enumerate(self.labels) if self.label_names[label] == unknown[0]), 0)
            raise DataError(
                f"{self.places[first] if self.places else self.where} holds the label {unknown[0]!r},"
                f" the model knows {', '.join(names)};"
                " evaluate it on the data that it was made for"
            )
        return dataclasses.replace(self, labels=[number[self.label_names[label]] for label in self.labels], label_names=names)


def read_texts(path: str, split: str, options: TextOptions, told: str) -> LabelledTexts:
    """The examples of one split: texts, or pairs of texts, with their labels where the file has them.

    Args:
        path: the task's directory, the one above it, or the split's file.
        told: what the task reads, for messages.

    Raises:
        DataError: the file is missing or malformed, a text is empty, or a label unknown; the message names file and line.
    """
    rows = read_rows(path, split, options, told)
    names = options.labels or tuple(sorted(set(rows.answers or ())))
    number = {name: i for i, name in enumerate(names)}
    for place, answer in zip(rows.places, rows.answers or (), strict=False):
        if answer not in number:
            raise DataError(f"{place}: label {answer!r} is not one of {', '.join(names)}; mend the line")
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
