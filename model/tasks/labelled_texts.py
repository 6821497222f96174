"""Texts, or pairs of texts, with a label each: what a classification task reads."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.core.errors import DataError
from pipeline.core.random_keys import document_key


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledTexts:
    """Labelled texts, or pairs of texts, in the order of their file.

    Attributes:
        text_pairs: the second sequence of each example, for tasks on pairs.
        labels: indices into `label_names`; None for a split without labels.
        label_names: the labels as they stand in the files.
        dropped: how many were left out on purpose, by reason.
        where: what was read, for messages.
    """

    texts: Sequence[str]
    labels: Sequence[int] | None
    label_names: tuple[str, ...]
    text_pairs: Sequence[str] | None = None
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
            dropped=dict(dropped),
        )

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
            raise DataError(
                f"{self.where} holds the label {unknown[0]!r}, the model knows {', '.join(names)};"
                " evaluate it on the data that it was made for"
            )
        return dataclasses.replace(self, labels=[number[self.label_names[label]] for label in self.labels], label_names=names)
