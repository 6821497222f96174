"""Pairs of a query and a passage that answers it: rows of a file, SQuAD's questions, the titles of a corpus' articles."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from model.tasks.formats.corpus import documents
from model.tasks.formats.rows import read_rows
from model.tasks.formats.splits import split_file
from model.tasks.formats.squad import read_squad
from model.tasks.formats.tables import SUFFIXES
from model.tasks.options import RetrievalOptions
from model.tasks.task import Ints
from pipeline.core.errors import DataError
from pipeline.core.random_keys import document_key
from pipeline.core.shards import HELDOUT

Pair = tuple[str, str, str, str]  # the query's id and text, the passage's id and text
CORPUS_SPLITS = {"train": "train", "dev": HELDOUT}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPassages:
    """Queries, passages, and which go together. Equal texts are one query, or one passage, whatever their ids.

    Attributes:
        pairs: int64 [n, 2]: numbers of a query and of a passage that answers it; each pair once.
        query_ids, passage_ids: without white space, as TREC's files want it.
        dropped: how many pairs were left out on purpose, by reason.
        where: what was read, for messages.
    """

    queries: Sequence[str]
    query_ids: Sequence[str]
    passages: Sequence[str]
    passage_ids: Sequence[str]
    pairs: Ints
    dropped: Mapping[str, int] = field(default_factory=dict)
    where: str = ""

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def labelled(self) -> bool:
        return True

    def capped(self, limit: int | None) -> QueryPassages:
        """At most `limit` pairs, and what is in them: those with the smallest hash of their texts, in their old order."""
        if limit is None or limit >= len(self):
            return self
        keys = [document_key(f"{self.queries[q]}\0{self.passages[p]}") for q, p in self.pairs.tolist()]
        kept = self.pairs[np.sort(np.argsort(np.array(keys, np.uint64), kind="stable")[:limit])]
        (queries, query), (passages, passage) = (np.unique(kept[:, side], return_inverse=True) for side in (0, 1))
        return dataclasses.replace(
            self,
            queries=[self.queries[number] for number in queries],
            query_ids=[self.query_ids[number] for number in queries],
            passages=[self.passages[number] for number in passages],
            passage_ids=[self.passage_ids[number] for number in passages],
            pairs=np.stack([query, passage], axis=1).astype(np.int64),
            dropped={**self.dropped, "over_limit": len(self) - limit},
        )


def read_pairs(path: str, split: str, options: RetrievalOptions, told: str) -> QueryPassages:
    """The pairs of one split.

    Args:
        told: what the task reads, for messages.

    Raises:
        DataError: the file or corpus is missing or malformed, or holds fewer than two passages.
    """
    if options.pairs == "titles":
        return _gathered(_titles(path, split), f"{path} ({split})")
    file = split_file(path, split, options, (".json",) if options.pairs == "squad" else tuple(SUFFIXES), told)
    return _gathered(_squad(file) if options.pairs == "squad" else _rows(file, options.columns), file)


def _gathered(pairs: Iterable[Pair], where: str) -> QueryPassages:
    queries: dict[str, int] = {}
    passages: dict[str, int] = {}
    query_ids: list[str] = []
    passage_ids: list[str] = []
    found: dict[tuple[int, int], None] = {}
    dropped: Counter[str] = Counter()
    for query_id, query, passage_id, passage in pairs:
        if not query.strip() or not passage.strip():
            dropped["empty"] += 1
            continue
        for text, identity, numbers, ids in (
            (query, query_id, queries, query_ids),
            (passage, passage_id, passages, passage_ids),
        ):
            if text not in numbers:
                numbers[text] = len(numbers)
                ids.append("_".join(identity.split()))
        key = queries[query], passages[passage]
        dropped["duplicate"] += key in found
        found[key] = None
    if len(passages) < 2:
        raise DataError(f"{where} holds {len(passages)} passages; a ranking needs two or more: name more text")
    return QueryPassages(
        queries=list(queries),
        query_ids=query_ids,
        passages=list(passages),
        passage_ids=passage_ids,
        pairs=np.array(list(found), np.int64).reshape(-1, 2),
        dropped={reason: count for reason, count in dropped.items() if count},
        where=where,
    )


def _rows(file: str, columns: Mapping[str, str]) -> Iterator[Pair]:
    names = [columns.get(role, role) for role in ("query", "passage")]
    for number, (_, row) in enumerate(read_rows(file, names), start=1):
        yield f"q{number}", row[names[0]], f"p{number}", row[names[1]]


def _squad(file: str) -> Iterator[Pair]:
    """Every question with its paragraph (Rajpurkar et al. 2016); questions without an answer are answered by none, and left out."""
    found = read_squad(file, unanswerable=False)
    for identity, question, passage in zip(found.ids, found.questions, found.passage_of, strict=True):
        yield identity, question, f"p{passage + 1}", found.passages[passage]


def _titles(path: str, split: str) -> Iterator[Pair]:
    """Every document of a corpus artifact that has a title: train is what pretraining reads, dev what is held out."""
    if split not in CORPUS_SPLITS:
        raise DataError(f"a corpus has no split {split!r}; use {' or '.join(CORPUS_SPLITS)}")
    for identity, title, own, sentences in documents(path, ("id", "title", "split", "sentences")):
        if own == CORPUS_SPLITS[split]:
            yield identity, title, identity, " ".join(sentences)
