"""Sampling for stage "vocab": two Beam steps, whose units have consecutive corpus shards.

    ComputeOrder     corpus shards -> order, size and split of documents that may be sampled
    (the driver chooses the boundary of the sample)
    ExtractSample    corpus shards -> their sampled documents

So no process reads the whole corpus, or has a number for each of its documents. Each shard is
opened twice, because the sample's boundary depends on the order of all documents.
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
from cloze.core.artifacts.artifact import HELDOUT, SPLITS, TRAIN
from cloze.core.errors import DataError
from cloze.core.ragged import I64
from cloze.core.random_keys import U64
from cloze.core.stages.stage import BuildContext, Reporter
from cloze.pipeline.corpus.files.intermediate import CORPUS
from cloze.pipeline.corpus.files.shards import (
    READ,
    CorpusShards,
    in_split,
    read_shard,
    text_bytes,
    texts,
)
from cloze.pipeline.runners.fan_out import fan_out

ORDER = pa.schema([("rank", pa.uint64()), ("size", pa.int64()), ("train", pa.bool_())])
"""Order, UTF-8 bytes and membership in the training split of documents of a shard."""
SAMPLED = pa.schema([CORPUS.field(name) for name in READ])
ROOM = 8
"""How many times the sample's share of the corpus a shard tells of, since files are compressed and
short documents may come first; if it is too little, all are told."""
HELDOUT_SHARE = 0.001  # of the documents, from which on the held-out sample needs no second look


@dataclass(frozen=True, kw_only=True)
class ComputeOrder:
    """Writes the order of the shards' first documents. A unit is {"paths": corpus shards, "out":
    file}; the result has the bytes of each split, and of these documents of it.
    """

    # of the documents of either split, training first, how large a share is written
    shares: tuple[float, float] = (1.0, 1.0)

    def __call__(self, unit: dict[str, Any]) -> dict[str, Any]:
        totals = {split: np.zeros(2, np.int64) for split in SPLITS}

        def batches() -> Iterator[pa.RecordBatch]:
            for path in unit["paths"]:
                order = document_order(read_shard(path))
                rank, size, is_train = (order[name].to_numpy() for name in ORDER.names)
                is_early = random_keys.uniform(rank) <= np.where(is_train, *self.shares)
                for split, chosen in ((TRAIN, is_train), (HELDOUT, ~is_train)):
                    totals[split] += size[chosen].sum(), size[chosen & is_early].sum()
                yield from order.filter(pa.array(is_early)).to_batches()

        write_arrow(unit["out"], ORDER, batches())
        return {split: total.tolist() for split, total in totals.items()}


@dataclass(frozen=True, kw_only=True)
class ExtractSample:
    """Writes the shards' documents in any sample. A unit is as that of `ComputeOrder`."""

    boundaries: tuple[SampleBoundary, ...]

    def __call__(self, unit: dict[str, Any]) -> dict[str, Any]:
        def batches() -> Iterator[pa.RecordBatch]:
            for path in unit["paths"]:
                table = read_shard(path).select(READ)
                chosen = [boundary.select(table) for boundary in self.boundaries]
                table = table.filter(pa.array(np.logical_or.reduce(chosen)))
                yield from table.cast(SAMPLED).to_batches()

        write_arrow(unit["out"], SAMPLED, batches())
        return {}


def draw_samples(
    build: BuildContext, corpus: CorpusShards, sample_bytes: int, *, training: bool
) -> tuple[Sample | None, Sample]:
    """Return the training sample (None unless `training`) and the sample for the metrics.

    Raises:
        DataError: the corpus has no training text.
    """
    share = ROOM / max(1, sum(corpus.sizes))
    shares = (share * sample_bytes, share * HELDOUT_BYTES / HELDOUT_SHARE)
    for step, compute in (("rank", ComputeOrder(shares=shares)), ("rank-all", ComputeOrder())):
        files, told = _for_all_shards(build, corpus, step, compute)
        if all(
            early == total or early >= target
            for split, target in ((TRAIN, sample_bytes), (HELDOUT, HELDOUT_BYTES))
            for total, early in [np.sum([one[split] for one in told], axis=0).tolist()]
        ):
            break
    train, heldout = choose(corpus.path, map(read_arrow, files), sample_bytes)
    boundaries = (train, heldout) if training else (heldout,)
    files, _ = _for_all_shards(build, corpus, "take", ExtractSample(boundaries=boundaries))
    stamp = build.fingerprint
    samples = [Sample(boundary=boundary, files=files, stamp=stamp) for boundary in boundaries]
    return (samples[0] if training else None), samples[-1]


def _for_all_shards(
    build: BuildContext,
    corpus: CorpusShards,
    step: str,
    function: Callable[[dict[str, Any]], dict[str, Any]],
) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    """Run `function` on all corpus shards, and return its output files and results, in order."""
    directory = storage.join(build.scratch, f"{step}-files")
    groups = corpus.groups(build.scratch)
    files = tuple(storage.join(directory, f"{group.name}.arrow") for group in groups)
    units = [
        (group.name, {"paths": group.paths, "out": file})
        for group, file in zip(groups, files, strict=True)
    ]
    weights = [group.size for group in groups]
    return files, fan_out(build, step, units, function, unit_name="bytes", weights=weights)


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
    """The documents of one split up to a shuffle key."""

    split: str  # train or heldout
    last: int  # shuffle key of the last document
    documents: int  # number of documents
    size: int  # UTF-8 bytes of the documents

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
            # a file of samples is in the order of the shards, and in theirs
            table = read_arrow(local_copy(file, self.stamp)) if self.stamp else read_shard(file)
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
    train, heldout = _FirstDocuments(sample_bytes), _FirstDocuments(HELDOUT_BYTES)
    few = _FirstDocuments(min(sample_bytes, HELDOUT_BYTES))
    for order in shards:
        rank, size, is_train = (order[name].to_numpy() for name in ORDER.names)
        for documents, chosen in ((train, is_train), (few, is_train), (heldout, ~is_train)):
            documents.add(rank[chosen], size[chosen])
    if not train.bytes:
        raise DataError(f"{where} has no text in the split {TRAIN}; give `cloze corpus` more text")
    measured = heldout.boundary(HELDOUT) if heldout.bytes else few.boundary(TRAIN)
    return train.boundary(TRAIN), measured


def heldout_sample(corpus: CorpusShards) -> Sample:
    """Return the sample for the metrics, read from the corpus itself."""
    files = tuple(corpus.file(name) for name in corpus.names)
    orders = (document_order(read_shard(file)) for file in files)
    return Sample(boundary=choose(corpus.path, orders, HELDOUT_BYTES)[1], files=files)


def _rank(key: U64) -> U64:
    return random_keys.fold_in(key, RANK)


class _FirstDocuments:
    """Of all documents that are added those first in order, with `target` bytes or more together.

    Later ones are forgotten, so memory is bounded by the target.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._rank, self._size = np.zeros(0, np.uint64), np.zeros(0, np.int64)

    @property
    def bytes(self) -> int:
        return int(self._size.sum())

    def add(self, rank: U64, size: I64) -> None:
        order = np.argsort(rank, kind="stable")  # what is kept is in order
        places = np.searchsorted(self._rank, rank[order], side="right")
        ranks, sizes = (
            np.insert(self._rank, places, rank[order]), np.insert(self._size, places, size[order])
        )  # fmt: skip
        count = int(np.searchsorted(np.cumsum(sizes), self._target)) + 1
        self._rank, self._size = ranks[:count], sizes[:count]

    def boundary(self, split: str) -> SampleBoundary:
        last, documents = int(self._rank[-1]), self._rank.size
        return SampleBoundary(split=split, last=last, documents=documents, size=self.bytes)
