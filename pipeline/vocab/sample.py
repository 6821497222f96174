"""Sampling for stage "vocab": two Beam steps, one unit per corpus shard.

    ComputeOrder     a corpus shard -> order, size and split of each document
    (the driver chooses the boundary of the sample)
    ExtractSample    a corpus shard -> its sampled documents

So no process reads the whole corpus, and the trainer, one process, reads only its sample. Each
shard is opened twice, because the sample's boundary depends on the order of all documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.core import random_keys, storage
from cloze.core.arrow import local_copy, read_arrow, write_arrow
from cloze.core.artifacts.artifact import HELDOUT, TRAIN
from cloze.core.errors import DataError
from cloze.core.ragged import I64
from cloze.core.random_keys import U64
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

ORDER = pa.schema([("rank", pa.uint64()), ("size", pa.int64()), ("train", pa.bool_())])
"""Order, UTF-8 bytes and membership in the training split of each document of a shard."""


@dataclass(frozen=True, kw_only=True)
class ComputeOrder:
    """Writes the order of a shard's documents. A unit is {"path": corpus shard, "out": file}."""

    def __call__(self, unit: dict[str, str]) -> dict[str, Any]:
        write_arrow(unit["out"], ORDER, document_order(read_shard(unit["path"])).to_batches())
        return {}


@dataclass(frozen=True, kw_only=True)
class ExtractSample:
    """Writes a shard's documents in any sample. A unit is {"path": corpus shard, "out": file}."""

    boundaries: tuple[SampleBoundary, ...]

    def __call__(self, unit: dict[str, str]) -> dict[str, Any]:
        table = read_shard(unit["path"]).select(READ)
        selected = np.logical_or.reduce([boundary.select(table) for boundary in self.boundaries])
        write_arrow(unit["out"], table.schema, table.filter(pa.array(selected)).to_batches())
        return {"documents": int(selected.sum())}


def draw_samples(
    build: BuildContext, corpus: CorpusShards, sample_bytes: int, *, training: bool
) -> tuple[Sample | None, Sample]:
    """Return the training sample (None unless `training`) and the sample for the metrics.

    Raises:
        DataError: the corpus has no training text.
    """
    orders = map(read_arrow, _for_each_shard(build, corpus, "rank", ComputeOrder()))
    train, heldout = choose(corpus.path, orders, sample_bytes)
    boundaries = (train, heldout) if training else (heldout,)
    files = _for_each_shard(build, corpus, "take", ExtractSample(boundaries=boundaries))
    stamp = build.fingerprint
    samples = [Sample(boundary=boundary, files=files, stamp=stamp) for boundary in boundaries]
    return (samples[0] if training else None), samples[-1]


def _for_each_shard(
    build: BuildContext,
    corpus: CorpusShards,
    step: str,
    function: Callable[[dict[str, str]], dict[str, Any]],
) -> tuple[str, ...]:
    """Run `function` on every corpus shard, and return its output files in shard order."""
    directory = storage.join(build.scratch, f"{step}-files")
    units = [
        (
            f"{step}-{number:05d}",
            {"path": corpus.file(name), "out": storage.join(directory, f"{number:05d}.arrow")},
        )
        for number, name in enumerate(corpus.names)
    ]
    weights = [float(size) for size in corpus.sizes]
    fan_out(build, step, units, function, unit_name="bytes", weights=weights)
    return tuple(unit["out"] for _, unit in units)


# The documents that train a tokenizer, and those that measure it.

RANK = 0x76_6F_63_61_62  # "vocab": separates this use of the documents' keys from others
HELDOUT_BYTES = 1 << 20
REPORT_EVERY = 1 << 20


def document_order(table: pa.Table) -> pa.Table:
    """Return the order of a shard's documents, with the schema `ORDER`."""
    rank, is_train = _rank(table["key"].to_numpy()), in_split(table, TRAIN)
    return pa.table([rank, text_bytes(table), is_train], schema=ORDER)


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

    def select(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Return which documents of a shard are in the sample: bool [D]."""
        return in_split(table, self.split) & (
            _rank(table["key"].to_numpy()) <= np.uint64(self.last)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The documents inside a boundary, and the files that contain them and perhaps others.

    With `stamp`, the version of their content, files in a store are copied to this machine, because
    they are read several times.
    """

    boundary: SampleBoundary
    files: tuple[str, ...]
    stamp: str = ""

    def sentences(self) -> Iterator[list[str]]:
        """Yield the sentences of each document, shard by shard."""
        for file in self.files:
            table = read_shard(local_copy(file, self.stamp) if self.stamp else file)
            documents = texts(table, self.boundary.select(table))
            start = 0
            for count in documents.counts.tolist():
                yield documents.sentences[start : start + count]
                start += count

    def texts(self) -> Iterator[str]:
        """Yield each document as one string."""
        return map(" ".join, self.sentences())

    def texts_with_progress(self, report: Reporter) -> Callable[[], Iterator[str]]:
        """Return `texts` with progress: bytes read, then that training is at work."""

        def read() -> Iterator[str]:
            total = self.boundary.size
            done = reported = 0
            for text in self.texts():
                yield text
                done += len(text)
                if done - reported >= REPORT_EVERY:
                    reported = done
                    report.progress(min(done, total), total, "bytes", {"step": "read"})
            report.progress(0, None, "", {"step": "learn"})

        return read


def choose(
    where: str, shards: Iterable[pa.Table], sample_bytes: int
) -> tuple[SampleBoundary, SampleBoundary]:
    """Choose the training and the held-out sample; without held-out documents, use training ones.

    Args:
        where: path of the corpus, for messages.
        shards: `document_order` of each corpus shard, in shard order.
        sample_bytes: minimum number of UTF-8 bytes to train on.

    Raises:
        DataError: the corpus has no training text.
    """
    order = pa.concat_tables(shards)
    rank, size, is_train = (order[name].to_numpy() for name in ORDER.names)
    if not size[is_train].sum():
        raise DataError(f"{where} has no text in the split {TRAIN}; give `cloze corpus` more text")
    training = _boundary(TRAIN, rank[is_train], size[is_train], sample_bytes)
    if not size[~is_train].sum():
        few_bytes = min(sample_bytes, HELDOUT_BYTES)
        return training, _boundary(TRAIN, rank[is_train], size[is_train], few_bytes)
    return training, _boundary(HELDOUT, rank[~is_train], size[~is_train], HELDOUT_BYTES)


def heldout_sample(corpus: CorpusShards) -> Sample:
    """Return the sample for the metrics, read from the corpus itself."""
    files = tuple(corpus.file(name) for name in corpus.names)
    orders = (document_order(read_shard(file)) for file in files)
    return Sample(boundary=choose(corpus.path, orders, HELDOUT_BYTES)[1], files=files)


def _rank(key: U64) -> U64:
    return random_keys.fold_in(key, RANK)


def _boundary(split: str, rank: U64, size: I64, target: int) -> SampleBoundary:
    """Return the boundary of the first documents with at least `target` bytes together."""
    order = np.argsort(rank, kind="stable")
    totals = np.cumsum(size[order])
    count = min(int(np.searchsorted(totals, target)) + 1, len(order))
    last = int(rank[order[count - 1]])
    return SampleBoundary(split=split, last=last, documents=count, size=int(totals[count - 1]))
