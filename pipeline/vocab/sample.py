"""Stage "vocab": which documents a tokenizer is trained on, and which ones measure it.

Documents are ranked by a hash of their keys, and taken in that order until there is enough text: a sample that
depends on the corpus alone, drawn in flat memory (a rank and a size a document).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.core import random_keys
from pipeline.core.errors import DataError
from pipeline.core.ragged import I64
from pipeline.core.reporting import Reporter
from pipeline.core.shards import HELDOUT, TRAIN
from pipeline.corpus.shards import CorpusShards, in_split, read_shard, text_bytes, texts

RANK = 0x76_6F_63_61_62  # "vocab": this use's own numbers from the documents' keys
HELDOUT_BYTES = 1 << 20
REPORT_EVERY = 1 << 20


@dataclass(frozen=True, slots=True)
class DocumentRanks:
    """What is known of a shard's documents when the sample is chosen: rank uint64, UTF-8 bytes int64, and whether of `train`."""

    rank: random_keys.U64
    size: I64
    train: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, table: pa.Table) -> DocumentRanks:
        return cls(_rank(table["key"].to_numpy()), text_bytes(table), in_split(table, TRAIN))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Documents of one split up to a rank.

    Attributes:
        split: train or heldout.
        last: the rank of the last document taken.
        documents: how many there are.
        size: their UTF-8 bytes.
    """

    split: str
    last: int
    documents: int
    size: int

    def chosen(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Which documents of a shard are taken: bool [D]."""
        return in_split(table, self.split) & (_rank(table["key"].to_numpy()) <= np.uint64(self.last))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The documents of a cut, and the files that hold them (and perhaps others): corpus shards, or extracts of them."""

    cut: Cut
    files: tuple[str, ...]

    def sentences(self) -> Iterator[list[str]]:
        """The documents, as their sentences; shard by shard, so in no order that means anything."""
        for file in self.files:
            table = read_shard(file)
            found = texts(table, self.cut.chosen(table))
            start = 0
            for count in found.counts.tolist():
                yield found.sentences[start : start + count]
                start += count

    def texts(self) -> Iterator[str]:
        """The documents, one string each."""
        return map(" ".join, self.sentences())

    def reported(self, report: Reporter) -> Callable[[], Iterator[str]]:
        """`texts`, with progress: the bytes read, then that what is made of them is at work."""

        def read() -> Iterator[str]:
            done, told = 0, 0
            for text in self.texts():
                yield text
                done += len(text)
                if done - told >= REPORT_EVERY:
                    told = done
                    report.progress(min(done, self.cut.size), self.cut.size, "bytes", {"step": "read"})
            report.progress(0, None, "", {"step": "learn"})

        return read


def choose(where: str, shards: Iterable[DocumentRanks], sample_bytes: int) -> tuple[Cut, Cut]:
    """What to train on, and what to measure with: held-out documents, or where there are none, some of the same.

    Args:
        where: the corpus, for messages.
        shards: of the corpus, in order.
        sample_bytes: UTF-8 bytes to train on, at least.

    Raises:
        DataError: the corpus has no text to train on.
    """
    found = list(shards)
    rank, size = np.concatenate([one.rank for one in found]), np.concatenate([one.size for one in found])
    train = np.concatenate([one.train for one in found])
    if not size[train].sum():
        raise DataError(f"{where} holds no text of the split {TRAIN}; give `cloze corpus` more text")
    trained = _cut(TRAIN, rank[train], size[train], sample_bytes)
    if not size[~train].sum():
        return trained, _cut(TRAIN, rank[train], size[train], min(sample_bytes, HELDOUT_BYTES))
    return trained, _cut(HELDOUT, rank[~train], size[~train], HELDOUT_BYTES)


def heldout_sample(corpus: CorpusShards) -> Sample:
    """What vocabularies are measured with, straight from the corpus."""
    files = tuple(corpus.file(name) for name in corpus.names)
    _, measured = choose(corpus.path, (DocumentRanks.of(read_shard(file)) for file in files), HELDOUT_BYTES)
    return Sample(cut=measured, files=files)


def _rank(key: random_keys.U64) -> random_keys.U64:
    return random_keys.derive(key, RANK)


def _cut(split: str, rank: random_keys.U64, size: I64, wanted: int) -> Cut:
    order = np.argsort(rank, kind="stable")
    total = np.cumsum(size[order])
    count = min(int(np.searchsorted(total, wanted)) + 1, len(order))
    return Cut(split=split, last=int(rank[order[count - 1]]), documents=count, size=int(total[count - 1]))
