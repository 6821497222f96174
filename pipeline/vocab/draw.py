"""Stage "vocab": the sample, drawn by workers. One function a step, a corpus shard a unit.

    RankShard     a corpus shard -> rank, size and split of each document
    (the driver chooses up to which rank documents are taken)
    TakeShard     a corpus shard -> its documents that are taken

So no process reads the whole corpus, and the trainer, which is one process, reads its sample alone. A shard is opened twice, because
where the sample ends follows from the ranks of all.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from pipeline.core import storage
from pipeline.core.arrow import read_arrow, write_arrow
from pipeline.core.stage import Build
from pipeline.corpus.shards import READ, CorpusShards, read_shard
from pipeline.engines.fan_out import fan_out
from pipeline.vocab.sample import Cut, DocumentRanks, Sample, choose

RANKS = pa.schema([("rank", pa.uint64()), ("size", pa.int64()), ("train", pa.bool_())])


@dataclass(frozen=True, kw_only=True)
class RankShard:
    """A unit is {"path": corpus shard, "out": file}."""

    def __call__(self, unit: dict[str, str]) -> dict[str, Any]:
        found = DocumentRanks.of(read_shard(unit["path"]))
        batch = pa.RecordBatch.from_arrays([pa.array(column) for column in (found.rank, found.size, found.train)], schema=RANKS)
        write_arrow(unit["out"], RANKS, [batch])
        return {}


@dataclass(frozen=True, kw_only=True)
class TakeShard:
    """A unit is {"path": corpus shard, "out": file}; `cuts` say what is taken."""

    cuts: tuple[dict[str, Any], ...]

    def __call__(self, unit: dict[str, str]) -> dict[str, Any]:
        table = read_shard(unit["path"]).select(READ)
        taken = Cut(**self.cuts[0]).chosen(table)
        for cut in self.cuts[1:]:
            taken |= Cut(**cut).chosen(table)
        write_arrow(unit["out"], table.schema, table.filter(pa.array(taken)).to_batches())
        return {"documents": int(taken.sum())}


def draw_samples(build: Build, corpus: CorpusShards, sample_bytes: int) -> tuple[Sample, Sample]:
    """The sample to train on, and the one to measure with.

    Raises:
        DataError: the corpus has no text to train on.
    """
    weights = [float(size) for size in corpus.sizes]
    ranks = _units(build, corpus, "ranks")
    fan_out(build, "rank", ranks, RankShard(), unit_name="bytes", weights=weights)
    tables = (read_arrow(unit["out"]) for _, unit in ranks)
    cuts = choose(
        corpus.path, (DocumentRanks(*(table[name].to_numpy() for name in RANKS.names)) for table in tables), sample_bytes
    )
    extracts = _units(build, corpus, "sample")
    take = TakeShard(cuts=tuple(asdict(cut) for cut in cuts))
    fan_out(build, "take", extracts, take, unit_name="bytes", weights=weights)
    files = tuple(unit["out"] for _, unit in extracts)
    trained, measured = (Sample(cut=cut, files=files) for cut in cuts)
    return trained, measured


def _units(build: Build, corpus: CorpusShards, step: str) -> list[tuple[str, dict[str, str]]]:
    """A unit a corpus shard, with the file that it writes."""
    directory = storage.join(build.scratch, f"{step}-files")
    return [
        (f"{step}-{number:05d}", {"path": corpus.file(name), "out": storage.join(directory, f"{number:05d}.arrow")})
        for number, name in enumerate(corpus.names)
    ]
