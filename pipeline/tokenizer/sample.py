"""Stage "vocab": which documents a tokenizer is trained on, and which ones measure it.

Documents are ranked by a hash of their keys, and taken in that order until there is enough text: a sample that
depends on the corpus alone, drawn in flat memory (a rank and a size a document).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from pipeline import keys
from pipeline.errors import DataError
from pipeline.schema import HELDOUT, TRAIN
from pipeline.stage import Reporter
from pipeline.transforms.corpus_shards import CorpusShards, in_split, read_shard, text_bytes, texts

RANK = 0x76_6F_63_61_62  # "vocab": this use's own numbers from the documents' keys
HELDOUT_BYTES = 1 << 20
REPORT_EVERY = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Documents of one split up to a rank.

    Attributes:
        corpus: where they lie.
        split: train or heldout.
        last: the rank of the last document taken.
        documents: how many there are.
        size: their UTF-8 bytes.
    """

    corpus: CorpusShards
    split: str
    last: int
    documents: int
    size: int

    def sentences(self) -> Iterator[list[str]]:
        """The documents, as their sentences; shard by shard, so in no order that means anything."""
        for name in self.corpus.names:
            table = read_shard(self.corpus.file(name))
            chosen = in_split(table, self.split) & (_rank(table["key"].to_numpy()) <= np.uint64(self.last))
            found = texts(table, chosen)
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
                    report(min(done, self.size), self.size, "bytes", {"step": "read"})
            report(0, None, "", {"step": "learn"})

        return read


def draw_samples(corpus: CorpusShards, sample_bytes: int, report: Reporter) -> tuple[Sample, Sample]:
    """The sample to train on, and one to measure with: of held-out documents, or where there are none, the same.

    Raises:
        DataError: the corpus has no text to train on.
    """
    ranks, sizes, train = [], [], []
    for number, name in enumerate(corpus.names):
        table = read_shard(corpus.file(name))
        ranks.append(_rank(table["key"].to_numpy()))
        sizes.append(text_bytes(table))
        train.append(in_split(table, TRAIN))
        report(number + 1, len(corpus.names), "shards", {"step": "sample"})
    rank, size, is_train = np.concatenate(ranks), np.concatenate(sizes), np.concatenate(train)
    if not size[is_train].sum():
        raise DataError(f"{corpus.path} holds no text of the split {TRAIN}; give `cloze corpus` more text")
    trained = _take(corpus, TRAIN, rank[is_train], size[is_train], sample_bytes)
    if not size[~is_train].sum():
        return trained, _take(corpus, TRAIN, rank[is_train], size[is_train], min(sample_bytes, HELDOUT_BYTES))
    return trained, _take(corpus, HELDOUT, rank[~is_train], size[~is_train], HELDOUT_BYTES)


def _rank(key: keys.U64) -> keys.U64:
    return keys.derive(key, RANK)


def _take(corpus: CorpusShards, split: str, rank: keys.U64, size: np.ndarray, wanted: int) -> Sample:
    order = np.argsort(rank, kind="stable")
    total = np.cumsum(size[order])
    count = min(int(np.searchsorted(total, wanted)) + 1, len(order))
    return Sample(corpus=corpus, split=split, last=int(rank[order[count - 1]]), documents=count, size=int(total[count - 1]))
