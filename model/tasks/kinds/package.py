"""Which package does a docstring sentence come from? A labelled set that any machine has.

Made from the held-out documents of source `docstrings` in a corpus artifact: documents that pretraining never
saw. The label is the package in the document's id (`docstrings/PACKAGE/MODULE`; `stdlib` is the standard library's).
So that the task asks for the subject and not for a name, and for no memory:

- a sentence has 6 to 60 words,
- it names none of the packages, nor an alias under which one is imported or known (words of a subject, such as
  tensor or data frame, stay),
- it stands in no document that pretraining reads (compared without case and spacing),
- it occurs once: of repeats under one label the first stays, a sentence under two labels goes altogether,
- train and dev share no document: of each package, documents in the order of the hash of their id, the first
  80 % of its sentences are train, the others dev.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from model.tasks.formats.corpus import documents as documents_of
from model.tasks.formats.labelled_texts import LabelledTexts
from model.tasks.kinds.classification import Classification
from pipeline.core import random_keys
from pipeline.core.errors import DataError
from pipeline.core.shards import HELDOUT

SOURCE = "docstrings"
FEWEST_WORDS, MOST_WORDS = 6, 60
TRAIN_SHARE = 0.8
# Names under which the packages are imported or spoken of, beside their own.
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
LONG_NAME = 5  # names of this many letters count inside words too: `numpydoc`, `torchscript`


@dataclass(slots=True, eq=False)
class _Document:
    id: str
    label: str
    sentences: list[str]
    dropped: Counter[str] = field(default_factory=Counter)


class Package(Classification):
    """The task: its examples come from a corpus artifact."""

    metrics = ("accuracy", "macro_f1")
    source: Literal["data", "corpus"] = "corpus"
    files = "a corpus artifact with held-out documents of source docstrings"

    def read(self, path: str, split: str, limit_per_class: int | None) -> LabelledTexts:
        """The sentences of the split's documents. The limit holds in train, a quarter of it in dev, so that both are balanced.

        Raises:
            DataError: `path` is no corpus, has no such documents, or only of one package.
        """
        if split not in ("train", "dev"):
            raise DataError(f"task package has no split {split!r}; use dev (documents held out) or train")
        splits = _split(path)
        names = tuple(sorted({document.label for document in splits["train"]}))
        dropped: Counter[str] = Counter()
        texts: list[str] = []
        labels: list[int] = []
        for document in splits[split]:
            dropped.update(document.dropped)
            texts += document.sentences
            labels += [names.index(document.label) for _ in document.sentences]
        examples = LabelledTexts(
            texts=texts, labels=labels, label_names=names, dropped=dict(dropped), where=f"{path} ({split})"
        )
        if limit_per_class is not None and split == "dev":
            limit_per_class = math.ceil(limit_per_class * (1 - TRAIN_SHARE) / TRAIN_SHARE)
        return examples.capped(limit_per_class)


def label_of(document_id: str) -> str:
    """The package in a document's id: `docstrings/numpy/numpy.linalg` gives `numpy`."""
    return document_id.split("/")[1].partition("@")[0]


def named_packages(labels: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds any of the packages, or an alias of one, in a sentence."""
    tops = {top for label in labels for top in (label, label.split(".")[0])}
    names = {re.escape(name).replace("_", "[ _-]?") for top in tops for name in (top, *ALIASES.get(top, ()))}
    inside = sorted(name for name in names if len(name) >= LONG_NAME)
    alone = sorted(names - set(inside))
    parts = inside + ([rf"(?<![^\W_])(?:{'|'.join(alone)})(?![^\W_])"] if alone else [])
    return re.compile("|".join(parts) or r"(?!)", re.IGNORECASE)


@functools.lru_cache(maxsize=1)  # train and dev are read one after the other
def _split(path: str) -> dict[str, tuple[_Document, ...]]:
    """The documents of train and dev, their sentences filtered."""
    seen: set[str] = set()
    documents = []
    for identity, split, sentences in documents_of(path, ("id", "split", "sentences"), SOURCE):
        if split == HELDOUT:
            documents.append(_Document(id=identity, label=label_of(identity), sentences=sentences))
        else:
            seen.update(map(_normal, sentences))
    if not documents:
        raise DataError(
            f"{path} holds no held-out documents of source {SOURCE};"
            f" make the corpus with --source {SOURCE}=PACKAGES and a heldout_fraction above 0"
        )
    documents.sort(key=lambda document: document.id)
    _filter(documents, seen)
    splits: dict[str, list[_Document]] = {"train": [], "dev": []}
    by_label: dict[str, list[_Document]] = defaultdict(list)
    for document in documents:
        by_label[document.label].append(document)
    for label in sorted(by_label):
        train, dev = _divide(by_label[label])
        splits["train"] += train
        splits["dev"] += dev
    found = {document.label for document in splits["train"]}
    if len(found) < 2:
        raise DataError(
            f"{path} holds held-out sentences of {len(found)} packages with two documents or more, out of"
            f" {', '.join(sorted(by_label))}; name more packages, or raise heldout_fraction"
        )
    return {name: tuple(chosen) for name, chosen in splits.items()}


def _filter(documents: list[_Document], seen: set[str]) -> None:
    """Leave in each document the sentences that the task asks about, and count the others by reason."""
    named = named_packages({document.label for document in documents})
    labels_of: dict[str, set[str]] = defaultdict(set)
    for document in documents:
        for sentence in document.sentences:
            labels_of[_normal(sentence)].add(document.label)
    taken: set[str] = set()
    for document in documents:
        kept = []
        for sentence in document.sentences:
            normal = _normal(sentence)
            if not FEWEST_WORDS <= len(sentence.split()) <= MOST_WORDS:
                document.dropped["length"] += 1
            elif named.search(sentence):
                document.dropped["names_a_package"] += 1
            elif normal in seen:
                document.dropped["seen_in_pretraining"] += 1
            elif len(labels_of[normal]) > 1:
                document.dropped["two_labels"] += 1
            elif normal in taken:
                document.dropped["duplicate"] += 1
            else:
                taken.add(normal)
                kept.append(" ".join(sentence.split()))
        document.sentences = kept


def _divide(documents: list[_Document]) -> tuple[list[_Document], list[_Document]]:
    """One package's documents as train and dev. One with fewer than two documents can be in neither."""
    filled = sorted((d for d in documents if d.sentences), key=lambda d: (random_keys.document_key(d.id), d.id))
    empty = [d for d in documents if not d.sentences]
    if len(filled) < 2:
        for document in filled:
            document.dropped["package_with_one_document"] += len(document.sentences)
            document.sentences = []
        return [], documents
    total = sum(len(d.sentences) for d in filled)
    dev, before = [], 0
    for document in filled:
        if before + len(document.sentences) / 2 >= TRAIN_SHARE * total:
            dev.append(document)
        before += len(document.sentences)
    dev = dev or [min(filled, key=lambda d: len(d.sentences))]
    if len(dev) == len(filled):
        dev.remove(max(filled, key=lambda d: len(d.sentences)))
    return [d for d in documents if d in filled and d not in dev], [*dev, *empty]


def _normal(sentence: str) -> str:
    return " ".join(sentence.lower().split())
