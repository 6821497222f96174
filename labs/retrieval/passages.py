"""Passages of a corpus shard and their postings, as Arrow tables; search by BM25.

    passages-00003-of-00015.arrow   a row per passage: PASSAGES
    postings-00003-of-00015.arrow   a row per word of these passages, sorted: POSTINGS

Both depend on the corpus shard alone, so an index grows by the files of new shards. Numbers of all
passages (the frequency of a word, the mean length) are summed at each search. Files are mapped, not
read.

Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009; idf as in
Lucene: ln(1 + (N - n + 0.5) / (n + 0.5)).
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.core import storage
from cloze.core.arrow import read_arrow
from cloze.core.artifacts import artifact
from cloze.core.errors import DataError
from cloze.core.words import UNSPACED_LETTER, count_words, word_pattern

K1, B = 1.5, 0.75
_UNSPACED_RUN = re.compile(f"((?:{UNSPACED_LETTER.pattern})+)")
PASSAGE_FILE, POSTINGS_FILE = "passages-", "postings-"
PASSAGES = pa.schema(
    [
        pa.field("key", pa.uint64(), nullable=False),  # shard << 32 | row
        pa.field("document", pa.uint64(), nullable=False),  # key of the document in the corpus
        *(pa.field(name, pa.string(), nullable=False) for name in ("id", "title", "url")),
        pa.field("licence", pa.string(), nullable=False),
        pa.field("first", pa.int32(), nullable=False),  # number of its first sentence
        pa.field("sentences", pa.list_(pa.string()), nullable=False),
        pa.field("words", pa.int32(), nullable=False),  # of title and text
    ]
)
POSTINGS = pa.schema(
    [
        pa.field("word", pa.string(), nullable=False),
        pa.field("rows", pa.list_(pa.int32()), nullable=False),  # passages, ascending
        pa.field("counts", pa.list_(pa.int32()), nullable=False),
    ]
)
Scores = npt.NDArray[np.float32]


def words_of_text(text: str) -> list[str]:
    """Return the lowercased words of a text, in NFC.

    Where no space separates words, each pair of adjacent letters is one, as Lucene's CJK bigrams:
    日本語 has 日本 and 本語.
    """
    words = list[str]()
    for number, part in enumerate(_UNSPACED_RUN.split(unicodedata.normalize("NFC", text).lower())):
        if number % 2 == 0:
            words += word_pattern().findall(part)
            continue
        letters = UNSPACED_LETTER.findall(part)
        words += map("".join, pairwise(letters)) if len(letters) > 1 else letters
    return words


def cut(sentences: Sequence[str], words: int) -> Iterator[tuple[int, int]]:
    """Cut a document into passages of whole sentences, of at most about `words` words.

    Returns:
        First sentence and end of each passage. A longer sentence is a passage of its own.
    """
    begin = size = 0
    for number, sentence in enumerate(sentences):
        length = count_words(sentence)
        if number > begin and size + length > words:
            yield begin, number
            begin, size = number, 0
        size += length
    if begin < len(sentences):
        yield begin, len(sentences)


def shard_tables(shard: int, documents: pa.Table, words: int) -> tuple[pa.Table, pa.Table]:
    """Return passages and postings of a corpus shard's documents.

    Args:
        shard: number of the shard.
        words: see `cut`.
    """
    columns: dict[str, list[Any]] = {name: [] for name in PASSAGES.names}
    postings: dict[str, tuple[list[int], list[int]]] = {}
    for row in documents.to_pylist():
        for first, end in cut(row["sentences"], words):
            number = len(columns["key"])
            sentences = row["sentences"][first:end]
            counts = Counter(words_of_text(" ".join([row["title"], *sentences])))
            own = {
                **{name: row[name] or "" for name in ("id", "title", "url", "licence")},
                "key": shard << 32 | number,
                "document": row["key"],
                "first": first,
                "sentences": sentences,
                "words": counts.total(),
            }
            for name, values in columns.items():
                values.append(own[name])
            for word, count in counts.items():
                rows, numbers = postings.setdefault(word, ([], []))
                rows.append(number)
                numbers.append(count)
    names = sorted(postings)
    inverted = {
        "word": names,
        "rows": [postings[word][0] for word in names],
        "counts": [postings[word][1] for word in names],
    }
    return pa.table(columns, PASSAGES), pa.table(inverted, POSTINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A passage with its source."""

    document: str
    title: str
    url: str
    licence: str
    text: str


class _Shard:
    """Tables of a shard."""

    def __init__(self, passages: pa.Table, postings: pa.Table) -> None:
        self.passages, self._postings = passages.combine_chunks(), postings.combine_chunks()
        self.lengths = self.passages["words"].to_numpy().astype(np.float32)
        self._words = self._postings["word"]

    def postings(self, word: str) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]] | None:
        """Return rows and counts of the passages with a word; None: there are none."""
        low = bisect_left(self._words, word, key=lambda scalar: scalar.as_py())
        if low == len(self._words) or self._words[low].as_py() != word:
            return None
        rows, counts = (self._postings[name][low].values for name in ("rows", "counts"))
        return rows.to_numpy(), counts.to_numpy()


class PassageIndex:
    """Passages that can be searched.

    Args:
        shards: passages and postings of each shard.
        names: names of the files with passages.
    """

    def __init__(
        self, shards: Iterable[tuple[pa.Table, pa.Table]], names: Sequence[str] = ()
    ) -> None:
        self.names = names
        self._shards = [_Shard(*tables) for tables in shards]
        self.edges = np.cumsum([0, *(len(shard.lengths) for shard in self._shards)])
        words = sum(float(shard.lengths.sum(dtype=np.float64)) for shard in self._shards)
        self._mean_length = words / max(1, int(self.edges[-1]))

    @classmethod
    def open(cls, path: str) -> PassageIndex:
        """Open a finished index artifact.

        Raises:
            DataError: `path` has no index, or a file is damaged.
        """
        manifest = artifact.read_manifest(path)
        names = sorted(
            entry.path for entry in manifest.files if entry.path.startswith(PASSAGE_FILE)
        )
        if manifest.stage != "index" or not names:
            raise DataError(f"{path} is no index; name one that `cloze index` made")
        files = [
            tuple(storage.join(path, own) for own in (name, postings_name(name))) for name in names
        ]
        return cls(((read_arrow(first), read_arrow(second)) for first, second in files), names)

    @classmethod
    def of_texts(cls, texts: Sequence[str]) -> PassageIndex:
        """Index texts in memory, a passage each."""
        columns = {name: [""] * len(texts) for name in ("id", "title", "url", "licence")}
        documents = {**columns, "key": range(len(texts)), "sentences": [[text] for text in texts]}
        return cls([shard_tables(0, pa.table(documents), 1)])

    def __len__(self) -> int:
        return int(self.edges[-1])

    def scores(self, query: str) -> Scores:
        """Return the BM25 score of every passage for a query, float32 [passages]."""
        scores = np.zeros(len(self), np.float32)
        for word, times in Counter(words_of_text(query)).items():
            found = [shard.postings(word) for shard in self._shards]
            frequency = sum(len(own[0]) for own in found if own is not None)
            idf = times * np.log1p((len(self) - frequency + 0.5) / (frequency + 0.5))
            for shard, own, begin in zip(self._shards, found, self.edges, strict=False):
                if own is not None:
                    rows, counts = own
                    norm = K1 * (1 - B + B * shard.lengths[rows] / self._mean_length)
                    scores[begin + rows] += idf * counts / (counts + norm)
        return scores

    def passage(self, number: int) -> Passage:
        """Return the passage with this number, from 0 over all shards."""
        shard = int(np.searchsorted(self.edges, number, side="right")) - 1
        table = self._shards[shard].passages.slice(number - int(self.edges[shard]), 1)
        (row,) = table.to_pylist()
        return Passage(
            document=row["id"],
            title=row["title"],
            url=row["url"],
            licence=row["licence"],
            text=" ".join(row["sentences"]),
        )


def postings_name(passages: str) -> str:
    return POSTINGS_FILE + passages.removeprefix(PASSAGE_FILE)


def best(scores: Scores, count: int) -> list[int]:
    """Return the numbers of the highest scores, best first; of equal ones, the first.

    A score of exactly 0 is that of a passage that was not found; cosines may be negative.
    """
    scores = np.where(scores == 0, -np.inf, scores)
    count = min(count, len(scores))
    if not count:
        return []
    chosen = np.flatnonzero(scores >= np.partition(scores, -count)[-count])
    order = chosen[np.lexsort((chosen, -scores[chosen]))]
    return [int(number) for number in order[:count] if scores[number] > -np.inf]
