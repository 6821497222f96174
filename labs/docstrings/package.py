"""The task package: predict the Python package of a docstring sentence; needs no download.

Examples come from the held-out documents of source `docstrings` in a corpus artifact. The label is
the package in the document's id (`docstrings/PACKAGE/MODULE`; `stdlib` for the standard library).
Rules that make the task about subjects, not names or memorized text:

- A sentence has 6 to 60 words.
- A sentence contains no package name or alias; subject words such as tensor may occur.
- A sentence is in no training document (compared without case and spacing).
- A sentence occurs once: the first of repeats with one label stays; with two labels none stays.
- Train and dev share no document: in order of hashed document ids, 80 % of each package's sentences
  are train, the others dev.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from cloze.core import random_keys
from cloze.core.artifacts.artifact import HELDOUT
from cloze.core.errors import DataError
from cloze.model.tasks.files import documents as documents_of
from cloze.model.tasks.formats.texts import LabelledTexts
from cloze.model.tasks.kinds.texts import Classification
from cloze.model.tasks.options import TaskOptions

SOURCE = "docstrings"
COLUMNS = ("id", "split", "sentences")
FEWEST_WORDS, MOST_WORDS = 6, 60
TRAIN_SHARE = 0.8
# Import names and common names of packages, in addition to their own.
ALIASES = {
    "apache_beam": ("apache", "beam"),
    "jax": ("jnp",),
    "matplotlib": ("mpl", "plt", "pyplot"),
    "numpy": ("np",),
    "pandas": ("pd",),
    "scipy": ("sp",),
    "sklearn": ("scikit",),
    "statsmodels": ("sm",),
    "stdlib": ("cpython", "standard library"),
    "tensorflow": ("tf",),
    "torch": ("pytorch",),
}
# Names of at least this many letters also match inside words: `numpydoc`, `torchscript`.
LONG_NAME = 5


@dataclass(slots=True, eq=False)
class _Document:
    id: str
    label: str
    sentences: list[str]
    dropped: Counter[str] = field(default_factory=Counter)


class Package(Classification):
    """Task whose examples come from a corpus artifact."""

    metrics = ("accuracy", "macro_f1")
    source: Literal["data", "corpus"] = "corpus"
    files = "a corpus artifact with held-out documents of source docstrings"

    def __init__(self, name: str, options: TaskOptions, metrics: tuple[str, ...] = ()) -> None:
        super().__init__(name, options, metrics)
        # Train and dev are read one after the other. The next task may find another corpus there.
        self._splits: dict[str, dict[str, tuple[_Document, ...]]] = {}

    def read(self, path: str, split: str, limit_per_class: int | None) -> LabelledTexts:
        """Read the sentences of a split; the class limit is a quarter in dev, so both are balanced.

        Raises:
            DataError: `path` is no corpus, has no such documents, or only those of one package.
        """
        if split not in ("train", "dev"):
            raise DataError(
                f"task package has no split {split!r}; use dev (documents held out) or train"
            )
        if path not in self._splits:
            self._splits = {path: _split(path)}
        splits = self._splits[path]
        names = tuple(sorted({document.label for document in splits["train"]}))
        dropped: Counter[str] = Counter()
        texts: list[str] = []
        labels: list[int] = []
        for document in splits[split]:
            dropped.update(document.dropped)
            texts += document.sentences
            labels += [names.index(document.label) for _ in document.sentences]
        examples = LabelledTexts(
            texts=texts,
            labels=labels,
            label_names=names,
            dropped=dict(dropped),
            where=f"{path} ({split})",
        )
        if limit_per_class is not None and split == "dev":
            limit_per_class = math.ceil(limit_per_class * (1 - TRAIN_SHARE) / TRAIN_SHARE)
        return examples.capped(limit_per_class)


def label_of(document_id: str) -> str:
    """Return the package in a document id: `docstrings/numpy/numpy.linalg` gives `numpy`."""
    return document_id.split("/")[1].partition("@")[0]


def named_packages(labels: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of the packages or their aliases."""
    packages = {package for label in labels for package in (label, label.split(".")[0])}
    names = {
        re.escape(name).replace("_", "[ _-]?")
        for package in packages
        for name in (package, *ALIASES.get(package, ()))
    }
    long_names = sorted(name for name in names if len(name) >= LONG_NAME)
    short_names = sorted(names - set(long_names))
    patterns = long_names + (
        [rf"(?<![^\W_])(?:{'|'.join(short_names)})(?![^\W_])"] if short_names else []
    )
    return re.compile("|".join(patterns) or r"(?!)", re.IGNORECASE)


def _split(path: str) -> dict[str, tuple[_Document, ...]]:
    """Return the documents of train and dev, with filtered sentences."""
    training_sentences: set[str] = set()
    documents = []
    for identity, split, sentences in documents_of(path, COLUMNS, SOURCE):
        if split == HELDOUT:
            documents.append(_Document(id=identity, label=label_of(identity), sentences=sentences))
        else:
            training_sentences.update(map(_normal, sentences))
    if not documents:
        raise DataError(
            f"{path} has no held-out documents of source {SOURCE}; make the corpus with "
            f"--source {SOURCE}=PACKAGES and a heldout_fraction above 0"
        )
    documents.sort(key=lambda document: document.id)
    _filter(documents, training_sentences)
    by_label: dict[str, list[_Document]] = defaultdict(list)
    for document in documents:
        by_label[document.label].append(document)
    divided = [_divide(by_label[label]) for label in sorted(by_label)]
    train, dev = (tuple(chain.from_iterable(split)) for split in zip(*divided, strict=True))
    train_labels = {document.label for document in train}
    if len(train_labels) < 2:
        raise DataError(
            f"{path} has held-out sentences of {len(train_labels)} packages with two documents "
            f"or more, out of {', '.join(sorted(by_label))}; name more packages, or raise "
            f"heldout_fraction"
        )
    return {"train": train, "dev": dev}


def _filter(documents: list[_Document], seen: set[str]) -> None:
    """Remove the sentences that break the rules, and count them by reason."""
    package_pattern = named_packages({document.label for document in documents})
    labels_of: dict[str, set[str]] = defaultdict(set)
    for document in documents:
        for sentence in document.sentences:
            labels_of[_normal(sentence)].add(document.label)
    accepted: set[str] = set()
    for document in documents:
        sentences = []
        for sentence in document.sentences:
            normalized = _normal(sentence)
            if not FEWEST_WORDS <= len(sentence.split()) <= MOST_WORDS:
                document.dropped["length"] += 1
            elif package_pattern.search(sentence):
                document.dropped["names_a_package"] += 1
            elif normalized in seen:
                document.dropped["seen_in_pretraining"] += 1
            elif len(labels_of[normalized]) > 1:
                document.dropped["two_labels"] += 1
            elif normalized in accepted:
                document.dropped["duplicate"] += 1
            else:
                accepted.add(normalized)
                sentences.append(" ".join(sentence.split()))
        document.sentences = sentences


def _divide(documents: list[_Document]) -> tuple[list[_Document], list[_Document]]:
    """Split a package's documents into train and dev; packages with one document are dropped."""
    nonempty = sorted(
        (d for d in documents if d.sentences), key=lambda d: (random_keys.document_key(d.id), d.id)
    )
    empty = [d for d in documents if not d.sentences]
    if len(nonempty) < 2:
        for document in nonempty:
            document.dropped["package_with_one_document"] += len(document.sentences)
            document.sentences = []
        return [], documents
    total = sum(len(d.sentences) for d in nonempty)
    dev, sentences_before = [], 0
    for document in nonempty:
        if sentences_before + len(document.sentences) / 2 >= TRAIN_SHARE * total:
            dev.append(document)
        sentences_before += len(document.sentences)
    dev = dev or [min(nonempty, key=lambda d: len(d.sentences))]
    if len(dev) == len(nonempty):
        dev.remove(max(nonempty, key=lambda d: len(d.sentences)))
    return [d for d in documents if d in nonempty and d not in dev], [*dev, *empty]


def _normal(sentence: str) -> str:
    return " ".join(sentence.lower().split())
