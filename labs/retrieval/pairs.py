"""Pairs of queries and passages: tables, SQuAD, corpus titles, corpus sentences; and their ranking.

Metrics of a ranking are from 0 to 1: nDCG and recall at a depth. A tie counts as the mean over all
orders of the tied passages (McSherry and Najork 2008), so equal scores gain nothing from file
order. scikit-learn's `ndcg_score` does the same, but needs dense tables of all queries and
passages.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cloze.core.artifacts.artifact import HELDOUT
from cloze.core.errors import DataError
from cloze.core.ragged import I64
from cloze.core.random_keys import document_key
from cloze.labs.retrieval.passages import cut
from cloze.labs.retrieval.tasks import BiEncoderOptions
from cloze.model.tasks.files import documents, split_file, split_files
from cloze.model.tasks.formats.squad import read_squad
from cloze.model.tasks.formats.table_files import SUFFIXES, open_tables
from cloze.model.tasks.formats.tables import read_texts_by_column
from cloze.model.tasks.metrics import Floats, Vectors
from cloze.model.tasks.options import TableOptions

Pair = tuple[str, str, str, str]  # query id, query text, passage id, passage text
PASSAGE_WORDS, KEPT_EVERY = 100, 10  # of the inverse cloze task
CORPUS_SPLITS = {"train": "train", "dev": HELDOUT}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPassages:
    """Queries, passages and their relevance; equal texts are merged, even with different ids.

    Attributes:
        pairs: int64 [n, 2], distinct pairs of query and answering passage.
        query_ids, passage_ids: ids without white space, as TREC's files require.
        dropped: number of pairs dropped on purpose, by reason.
        where: source for messages.
    """

    queries: Sequence[str]
    query_ids: Sequence[str]
    passages: Sequence[str]
    passage_ids: Sequence[str]
    pairs: I64
    dropped: Mapping[str, int] = field(default_factory=dict)
    where: str = ""

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def labelled(self) -> bool:
        return True

    def capped(self, limit: int | None) -> QueryPassages:
        """Return at most `limit` pairs: those with the smallest text hashes, in order."""
        if limit is None or limit >= len(self):
            return self
        keys = [
            document_key(f"{self.queries[q]}\0{self.passages[p]}") for q, p in self.pairs.tolist()
        ]
        pairs = self.pairs[np.sort(np.argsort(np.array(keys, np.uint64), kind="stable")[:limit])]
        (queries, query), (passages, passage) = (
            np.unique(pairs[:, side], return_inverse=True) for side in (0, 1)
        )
        return dataclasses.replace(
            self,
            queries=[self.queries[number] for number in queries],
            query_ids=[self.query_ids[number] for number in queries],
            passages=[self.passages[number] for number in passages],
            passage_ids=[self.passage_ids[number] for number in passages],
            pairs=np.stack([query, passage], axis=1).astype(np.int64),
            dropped={**self.dropped, "over_limit": len(self) - limit},
        )


def read_pairs(
    path: str, split: str, options: BiEncoderOptions, expected_files: str
) -> QueryPassages:
    """Read the pairs of one split.

    Args:
        expected_files: description of the expected files, for messages.

    Raises:
        DataError: file or corpus is missing or malformed, or has fewer than two passages.
    """
    if options.pairs == "titles":
        return _gathered(_titles(path, split), f"{path} ({split})")
    if options.pairs == "sentences":
        return _gathered(_inverse_cloze(path, split), f"{path} ({split})")
    if options.pairs == "squad":
        file = split_file(path, split, options, (".json",), expected_files)
        return _gathered(_squad(file), file)
    files = split_files(path, split, options, tuple(SUFFIXES), expected_files)
    return _gathered(_rows(files, options.columns), files[0])


def _gathered(pairs: Iterable[Pair], where: str) -> QueryPassages:
    queries: dict[str, int] = {}
    passages: dict[str, int] = {}
    query_ids: list[str] = []
    passage_ids: list[str] = []
    distinct_pairs: dict[tuple[int, int], None] = {}
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
        pair = queries[query], passages[passage]
        dropped["duplicate"] += pair in distinct_pairs
        distinct_pairs[pair] = None
    if len(passages) < 2:
        raise DataError(
            f"{where} has {len(passages)} passages; a ranking needs two or more, add text"
        )
    return QueryPassages(
        queries=list(queries),
        query_ids=query_ids,
        passages=list(passages),
        passage_ids=passage_ids,
        pairs=np.array(list(distinct_pairs), np.int64).reshape(-1, 2),
        dropped={reason: count for reason, count in dropped.items() if count},
        where=where,
    )


def _rows(files: Sequence[str], columns: Mapping[str, str]) -> Iterator[Pair]:
    names = [columns.get(role, role) for role in ("query", "passage")]
    table = open_tables(files, TableOptions())
    for number, (_, row) in enumerate(read_texts_by_column(table, names), start=1):
        yield f"q{number}", row[names[0]], f"p{number}", row[names[1]]


def _squad(file: str) -> Iterator[Pair]:
    """Iterate over questions with their paragraph (Rajpurkar et al. 2016), if answerable."""
    examples = read_squad(file, unanswerable=False, drop=True)
    for identity, question, passage in zip(
        examples.ids, examples.questions, examples.passage_of, strict=True
    ):
        yield identity, question, f"p{passage + 1}", examples.passages[passage]


def _titles(path: str, split: str) -> Iterator[Pair]:
    for identity, title, sentences in _documents(path, split):
        yield identity, title, identity, " ".join(sentences)


def _inverse_cloze(path: str, split: str) -> Iterator[Pair]:
    """Iterate over passages of a corpus with one of their sentences as the query.

    Nine of ten passages lack the sentence (Lee et al. 2019, section 4); the passage's hash decides.
    """
    for document, _, sentences in _documents(path, split):
        for first, end in cut(sentences, PASSAGE_WORDS):
            identity, own = f"{document}:{first}", sentences[first:end]
            draw = document_key(identity)
            query = own[draw % len(own)]
            if draw // len(own) % KEPT_EVERY:
                own = [sentence for sentence in own if sentence != query]
            yield identity, query, identity, " ".join(own)


def _documents(path: str, split: str) -> Iterator[tuple[str, str, list[str]]]:
    """Iterate over id, title and sentences of a corpus's documents; dev is the held-out split."""
    if split not in CORPUS_SPLITS:
        raise DataError(f"a corpus has no split {split!r}; use {' or '.join(CORPUS_SPLITS)}")
    yield from documents(path, ("id", "title", "sentences"), split=CORPUS_SPLITS[split])


BLOCK = 1 << 24  # scores in memory at once


def query_blocks(queries: int, passages: int) -> Iterator[slice]:
    """Iterate over blocks of queries whose scores fit in memory."""
    size = max(1, BLOCK // max(passages, 1))
    return (slice(begin, min(begin + size, queries)) for begin in range(0, queries, size))


def relevant_ranks(scores: Vectors, relevant: I64) -> tuple[I64, I64]:
    """Return the rank of a relevant passage for each query.

    Args:
        scores: float32 [n, P].
        relevant: int64 [n], passage numbers.

    Returns:
        Number of passages with higher scores, and with equal scores, itself included; int64 [n]
        each.
    """
    relevant_scores = scores[np.arange(len(scores)), relevant][:, None]
    return (scores > relevant_scores).sum(axis=1), (scores == relevant_scores).sum(axis=1)


def ndcg(above: I64, tied: I64, query: I64, queries: int, depth: int) -> Floats:
    """Return nDCG at `depth` of each query, gains 0 or 1 (Järvelin and Kekäläinen 2002).

    Args:
        above, tied: int64 [n], results of `relevant_ranks` for each pair of query and passage.
        query: int64 [n], query number; each query has a pair.

    Returns:
        float64 [queries].
    """
    discounts = np.concatenate([[0.0], np.cumsum(1.0 / np.log2(np.arange(2, depth + 2)))])
    gains = discounts[np.minimum(above + tied, depth)] - discounts[np.minimum(above, depth)]
    ideal = discounts[np.minimum(np.bincount(query, minlength=queries), depth)]
    return np.asarray(np.bincount(query, gains / tied, minlength=queries) / ideal)


def recall(above: I64, tied: I64, query: I64, queries: int, depth: int) -> Floats:
    """Return the share of each query's relevant passages in the first `depth`: float64 [queries].

    Arguments as for `ndcg`.
    """
    retrieved = np.clip((depth - above) / tied, 0.0, 1.0)
    relevant = np.bincount(query, minlength=queries)
    return np.asarray(np.bincount(query, retrieved, minlength=queries) / relevant)
