"""Sampling for stage "vocab": two Beam steps, one unit per corpus shard.

    ComputeOrder     a corpus shard -> order, size and split of each document
    (the driver chooses the boundary of the sample)
    ExtractSample    a corpus shard -> its sampled documents

So no process reads the whole corpus, and the trainer, one process, reads only its sample. Each
shard is opened twice, because the sample's boundary depends on the order of all documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.core import random_keys, storage
from cloze.core.arrow import read_arrow, write_arrow
from cloze.core.artifacts.artifact import HELDOUT, TRAIN
from cloze.core.errors import DataError
from cloze.core.ragged import I64
from cloze.core.stages.stage import BuildContext, Reporter
from cloze.pipeline.corpus.write.shards import (
    READ,
    CorpusShards,
    in_split,
    read_shard,
    text_bytes,
    texts,
)
from cloze.pipeline.runners.fan_out import fan_out

RANKS = pa.schema([("rank", pa.uint64()), ("size", pa.int64()), ("train", pa.bool_())])


@dataclass(frozen=True, kw_only=True)
class ComputeOrder:
    """Writes the order of a shard's documents. A unit is {"path": corpus shard, "out": file}."""

    def __call__(self, unit: dict[str, str]) -> dict[str, Any]:
        found = DocumentOrder.of(read_shard(unit["path"]))
        batch = pa.RecordBatch.from_arrays(
            [pa.array(column) for column in (found.rank, found.size, found.train)], schema=RANKS
        )
        write_arrow(unit["out"], RANKS, [batch])
        return {}


@dataclass(frozen=True, kw_only=True)
class ExtractSample:
    """Writes a shard's documents inside `cuts`. A unit is {"path": corpus shard, "out": file}."""

    cuts: tuple[dict[str, Any], ...]

    def __call__(self, unit: dict[str, str]) -> dict[str, Any]:
        table = read_shard(unit["path"]).select(READ)
        taken = SampleBoundary(**self.cuts[0]).chosen(table)
        for cut in self.cuts[1:]:
            taken |= SampleBoundary(**cut).chosen(table)
        write_arrow(unit["out"], table.schema, table.filter(pa.array(taken)).to_batches())
        return {"documents": int(taken.sum())}


def draw_samples(
    build: BuildContext, corpus: CorpusShards, sample_bytes: int, *, learns: bool
) -> tuple[Sample | None, Sample]:
    """Return the training sample (None unless `learns`) and the sample for the metrics.

    Raises:
        DataError: the corpus has no training text.
    """
    weights = [float(size) for size in corpus.sizes]
    ranks = _units(build, corpus, "ranks")
    fan_out(build, "rank", ranks, ComputeOrder(), unit_name="bytes", weights=weights)
    tables = (read_arrow(unit["out"]) for _, unit in ranks)
    cuts: tuple[SampleBoundary, ...] = choose(
        corpus.path,
        (DocumentOrder(*(table[name].to_numpy() for name in RANKS.names)) for table in tables),
        sample_bytes,
    )
    cuts = cuts if learns else cuts[1:]
    extracts = _units(build, corpus, "sample")
    take = ExtractSample(cuts=tuple(asdict(cut) for cut in cuts))
    fan_out(build, "take", extracts, take, unit_name="bytes", weights=weights)
    files = tuple(unit["out"] for _, unit in extracts)
    *trained, measured = (Sample(cut=cut, files=files) for cut in cuts)
    return trained[0] if trained else None, measured


def _units(
    build: BuildContext, corpus: CorpusShards, step: str
) -> list[tuple[str, dict[str, str]]]:
    """Return one unit per corpus shard, with its output file."""
    directory = storage.join(build.scratch, f"{step}-files")
    return [
        (
            f"{step}-{number:05d}",
            {"path": corpus.file(name), "out": storage.join(directory, f"{number:05d}.arrow")},
        )
        for number, name in enumerate(corpus.names)
    ]


# The documents that train a tokenizer, and those that measure it.

RANK = 0x76_6F_63_61_62  # "vocab": separates this use of the documents' keys from others
HELDOUT_BYTES = 1 << 20
REPORT_EVERY = 1 << 20


@dataclass(frozen=True, slots=True)
class DocumentOrder:
    """Order (uint64), UTF-8 bytes (int64) and training split (bool) of a shard's documents."""

    rank: random_keys.U64
    size: I64
    train: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, table: pa.Table) -> DocumentOrder:
        return cls(_rank(table["key"].to_numpy()), text_bytes(table), in_split(table, TRAIN))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBoundary:
    """The documents of one split up to a shuffle key.

    Attributes:
        split: train or heldout.
        last: shuffle key of the last document.
        documents: number of documents.
        size: UTF-8 bytes of the documents.
    """

    split: str
    last: int
    documents: int
    size: int

    def chosen(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Return which documents of a shard are in the sample: bool [D]."""
        return in_split(table, self.split) & (
            _rank(table["key"].to_numpy()) <= np.uint64(self.last)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The documents inside a boundary, and the files that hold them and perhaps others."""

    cut: SampleBoundary
    files: tuple[str, ...]

    def sentences(self) -> Iterator[list[str]]:
        """Yield the sentences of each document, shard by shard."""
        for file in self.files:
            table = read_shard(file)
            found = texts(table, self.cut.chosen(table))
            start = 0
            for count in found.counts.tolist():
                yield found.sentences[start : start + count]
                start += count

    def texts(self) -> Iterator[str]:
        """Yield each document as one string."""
        return map(" ".join, self.sentences())

    def reported(self, report: Reporter) -> Callable[[], Iterator[str]]:
        """Return `texts` with progress: bytes read, then that training is at work."""

        def read() -> Iterator[str]:
            done, told = 0, 0
            for text in self.texts():
                yield text
                done += len(text)
                if done - told >= REPORT_EVERY:
                    told = done
                    report.progress(
                        min(done, self.cut.size), self.cut.size, "bytes", {"step": "read"}
                    )
            report.progress(0, None, "", {"step": "learn"})

        return read


def choose(
    where: str, shards: Iterable[DocumentOrder], sample_bytes: int
) -> tuple[SampleBoundary, SampleBoundary]:
    """Choose the training and the held-out sample; without held-out documents, use training ones.

    Args:
        where: path of the corpus, for messages.
        shards: document orders of the corpus shards, in shard order.
        sample_bytes: minimum number of UTF-8 bytes to train on.

    Raises:
        DataError: the corpus has no training text.
    """
    found = list(shards)
    rank, size = (
        np.concatenate([one.rank for one in found]),
        np.concatenate([one.size for one in found]),
    )
    train = np.concatenate([one.train for one in found])
    if not size[train].sum():
        raise DataError(
            f"{where} holds no text of the split {TRAIN}; give `cloze corpus` more text"
        )
    trained = _cut(TRAIN, rank[train], size[train], sample_bytes)
    if not size[~train].sum():
        return trained, _cut(TRAIN, rank[train], size[train], min(sample_bytes, HELDOUT_BYTES))
    return trained, _cut(HELDOUT, rank[~train], size[~train], HELDOUT_BYTES)


def heldout_sample(corpus: CorpusShards) -> Sample:
    """Return the sample for the metrics, read from the corpus itself."""
    files = tuple(corpus.file(name) for name in corpus.names)
    _, measured = choose(
        corpus.path, (DocumentOrder.of(read_shard(file)) for file in files), HELDOUT_BYTES
    )
    return Sample(cut=measured, files=files)


def _rank(key: random_keys.U64) -> random_keys.U64:
    return random_keys.fold_in(key, RANK)


def _cut(split: str, rank: random_keys.U64, size: I64, wanted: int) -> SampleBoundary:
    order = np.argsort(rank, kind="stable")
    total = np.cumsum(size[order])
    count = min(int(np.searchsorted(total, wanted)) + 1, len(order))
    return SampleBoundary(
        split=split, last=int(rank[order[count - 1]]), documents=count, size=int(total[count - 1])
    )
