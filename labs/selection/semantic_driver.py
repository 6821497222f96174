"""Stage semdedup: the driver and its units of work.

    assign     corpus shards and their vectors -> a run of rows sorted by cluster
    compare    some clusters -> the documents to drop, and the kept ones
    (the driver sorts those by shard)
    write      a corpus shard -> the shard without the dropped documents

An exchange (`pipeline/runners/exchange.py`) lies between the first two, so each vector is written
and read once. A document is compared with the centres of at most 1,024 clusters, and with those of
its part of its own cluster (`semantic_clusters.divide`): the work grows with the documents alone.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from cloze.core import random_keys, storage
from cloze.core.arrow import open_arrow, read_arrow, write_arrow
from cloze.core.artifacts import artifact
from cloze.core.artifacts.artifact import HELDOUT
from cloze.core.errors import DataError
from cloze.core.ragged import I64
from cloze.core.random_keys import U64
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.labs.selection import semantic_clusters as clustering
from cloze.labs.selection.stages import SAMPLE, UNIT_DOCUMENTS, SemDedupConfig, clusters_for
from cloze.labs.vectors import (
    F32,
    I16,
    read_vectors,
    vectors_batch,
    vectors_file_name,
    vectors_schema,
    write_vectors,
)
from cloze.pipeline.corpus.document import join_sentences
from cloze.pipeline.corpus.files.intermediate import CORPUS, compact_batch
from cloze.pipeline.corpus.files.shards import (
    CorpusShards,
    fill_missing_columns,
    in_split,
    read_shard,
    text_bytes,
)
from cloze.pipeline.corpus.provenance import UNKNOWN
from cloze.pipeline.corpus.statistics import add_up, added, measure
from cloze.pipeline.runners.exchange import Exchange
from cloze.pipeline.runners.fan_out import fan_out
from cloze.pipeline.runners.sizes import group_by_size, run_bytes

PAIRS = pa.schema(
    [("key", pa.uint64()), ("of", pa.uint64()), ("cosine", pa.float32())]
    + [(name, pa.int32()) for name in ("shard", "row", "of_shard", "of_row")]
)
LIMITS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.94, 0.96, 0.98, 0.99)
REASON = "semantic_duplicate"
FIGURES, DUPLICATES_FILE = "semantic.json", "semantic_duplicates.arrow"
EXAMPLES, EXCERPT = 8, 400
QUESTIONS = 256  # documents whose neighbours are searched in the whole corpus
_SAMPLE, _EXAMPLE = 0x534D504C, 0x53454D45  # random streams


@dataclass(frozen=True, kw_only=True)
class Deduplication:
    """The units' functions, and what they know.

    Attributes:
        clusters: exchange of the documents by cluster.
        questions: file of the documents whose neighbours are searched in the whole corpus.
        duplicates: file of the dropped documents, a record batch per shard.
        mean: mean to subtract from the vectors; None: not subtracted.
        width: numbers of a vector.
    """

    clusters: Exchange
    centres: str
    questions: str
    duplicates: str
    mean: tuple[int, ...] | None
    width: int
    config: SemDedupConfig

    @property
    def rows(self) -> pa.Schema:
        """Schema of the documents in the exchange."""
        places = [("shard", pa.int32()), ("row", pa.int32()), ("bytes", pa.int64())]
        return pa.schema([*vectors_schema(self.width), *places])

    def centred(self, vectors: I16) -> I16:
        mean = None if self.mean is None else np.array(self.mean, np.int16)
        return vectors if mean is None else clustering.centred(vectors, mean)

    def assign(self, unit: dict[str, Any]) -> dict[str, Any]:
        """Write run `run`, the documents of `shards` by cluster.

        Returns the highest cosine of each question.
        """
        centres = read_vectors(self.centres)[1]
        question_keys, questions = read_vectors(self.questions)
        best = [np.full(len(questions), -1.0, np.float32)]

        def placed() -> Iterator[tuple[pa.Table, I64]]:
            for number, corpus, file in unit["shards"]:
                table = read_shard(corpus)
                keys, vectors = read_vectors(file)
                if not np.array_equal(keys, table["key"].to_numpy()):
                    raise DataError(
                        f"{file} is not of the documents of {corpus}; make it again with "
                        f"`cloze embed-corpus`"
                    )
                vectors = self.centred(vectors)
                best.append(clustering.highest_others(questions, question_keys, vectors, keys))
                shard, row = np.full(len(keys), number, np.int32), np.arange(len(keys))
                columns = [*vectors_batch(keys, vectors).columns, shard, row.astype(np.int32)]
                columns = list(map(pa.array, [*columns, text_bytes(table)]))
                yield (
                    pa.Table.from_arrays(columns, schema=self.rows),
                    clustering.assign(vectors, centres),
                )

        self.clusters.write(unit["run"], placed())
        return {"cosines": np.max(best, axis=0).tolist()}

    def compare(self, unit: dict[str, Any]) -> dict[str, Any]:
        """Write the pairs of dropped and kept documents of clusters `first` to `end` to `out`.

        Returns the histogram of highest cosines, and the number of questions with a similar
        document in their cluster.
        """
        near, highest, pairs = 0, [np.zeros(0, np.float32)], list[pa.RecordBatch]()
        asked = read_vectors(self.questions)[0]
        with self.clusters.read(self.rows, unit["first"], unit["end"]) as runs:
            for cluster in range(unit["first"], unit["end"]):
                if not (batches := list(runs.batches(cluster))):
                    continue
                table = pa.Table.from_batches(batches)
                table = table.sort_by([("bytes", "descending"), ("key", "ascending")])
                table = table.combine_chunks()
                names = ("key", "shard", "row")
                key, shard, row = (table[name].to_numpy() for name in names)
                vectors = table["vector"].chunk(0).flatten().to_numpy().reshape(len(key), -1)
                ranks = random_keys.fold_in(_SAMPLE, key)
                for rows in clustering.divide(vectors, ranks, self.config.rounds):
                    of, best = clustering.find_similar(vectors[rows], self.config.similarity)
                    highest.append(best)
                    own = rows[np.isin(key[rows], asked)]
                    found = clustering.highest_others(
                        vectors[own], key[own], vectors[rows], key[rows]
                    )
                    near += self._similar(found)
                    gone = np.flatnonzero(of != np.arange(len(of)))
                    drop, keep = rows[gone], rows[of[gone]]
                    columns = [key[drop], key[keep], best[gone], shard[drop], row[drop]]
                    pairs.append(pa.record_batch([*columns, shard[keep], row[keep]], schema=PAIRS))
        write_arrow(unit["out"], PAIRS, pairs)
        bins = np.searchsorted(np.array(LIMITS, np.float32), np.concatenate(highest), side="right")
        return {"counts": np.bincount(bins, minlength=len(LIMITS) + 1).tolist(), "near": near}

    def _similar(self, cosines: F32) -> int:
        """Return how many cosines are those of duplicates."""
        return int((cosines >= self.config.similarity - clustering.ROUNDING).sum())

    def write(self, unit: dict[str, Any]) -> dict[str, Any]:
        """Write shard `number` without its duplicates to `out`; return its statistics."""
        dropped = open_arrow(self.duplicates).get_batch(unit["number"])["key"].to_numpy()
        table = fill_missing_columns(read_shard(unit["corpus"]))
        table = table.filter(pa.array(~np.isin(table["key"].to_numpy(), dropped)))
        batch = compact_batch(table, CORPUS)
        write_arrow(unit["out"], CORPUS, [batch])
        heldout = int(in_split(table, HELDOUT).sum())
        return {**measure(batch, unit["documents"]), "heldout": heldout}

    def recall(self, assigned: Sequence[Any], compared: Sequence[Any]) -> dict[str, int]:
        """Return how many questions have a similar document, and how many one in their cluster."""
        cosines = np.max([result["cosines"] for result in assigned], axis=0)
        in_cluster = sum(result["near"] for result in compared)
        return {"sample": len(cosines), "near": self._similar(cosines), "in_cluster": in_cluster}


def deduplicate(config: SemDedupConfig, build: BuildContext) -> StageResult:
    """Cluster and compare the documents; write those that are kept.

    Raises:
        DataError: the vectors are not those of the corpus, or there are no documents.
    """
    corpus = CorpusShards.open(build.inputs["corpus"])
    files = _vectors(corpus, build)
    keys, sample = _sample(files)
    mean = clustering.mean_of(sample) if config.center else None
    documents = artifact.read_manifest(corpus.path).rows or len(sample)
    count = min(config.clusters or clusters_for(documents), max(1, len(sample)))
    groups = group_by_size(corpus.sizes, run_bytes(sum(corpus.sizes)))
    scratch = partial(storage.join, build.scratch)
    units = Deduplication(
        clusters=Exchange(directory=scratch("clusters"), runs=len(groups), places=count),
        centres=scratch("centres.arrow"),
        questions=scratch("questions.arrow"),
        duplicates=build.file(DUPLICATES_FILE),
        mean=None if mean is None else tuple(mean.tolist()),
        width=sample.shape[1],
        config=config,
    )
    sample = units.centred(sample)
    centres = clustering.fit(sample, count, config.rounds)
    write_vectors(units.centres, np.arange(len(centres), dtype=np.uint64), centres)
    write_vectors(units.questions, keys[:QUESTIONS], sample[:QUESTIONS])

    paths = list(map(corpus.file, corpus.names))
    shards = [[number, *each] for number, each in enumerate(zip(paths, files, strict=True))]
    weights = [float(sum(corpus.sizes[slice(*group)])) for group in groups]
    assigned = fan_out(
        build,
        "assign",
        _named({"run": run, "shards": shards[slice(*group)]} for run, group in enumerate(groups)),
        units.assign,
        unit_name="bytes",
        weights=weights,
    )
    in_clusters = units.clusters.connect(build, "connect").tolist()
    parts = [
        {"first": first, "end": end, "out": scratch(f"found-{first:05d}.arrow")}
        for first, end in group_by_size(in_clusters, UNIT_DOCUMENTS)
    ]
    compared = fan_out(build, "compare", _named(parts), units.compare, unit_name="parts")
    found = [read_arrow(str(part["out"])) for part in parts]
    dropped = pa.concat_tables([PAIRS.empty_table(), *found])
    dropped = dropped.sort_by([("shard", "ascending"), ("key", "ascending")]).combine_chunks()
    documents, kept = sum(in_clusters), sum(in_clusters) - dropped.num_rows
    if not kept:
        raise DataError(f"{corpus.path} contains no document; give `cloze corpus` more text")

    edges = np.searchsorted(dropped["shard"].to_numpy(), np.arange(len(files) + 1)).tolist()
    of_shards = (dropped.slice(low, high - low) for low, high in itertools.pairwise(edges))
    write_arrow(units.duplicates, PAIRS, (compact_batch(table, PAIRS) for table in of_shards))
    written = fan_out(
        build,
        "write",
        _named(
            {"number": number, "corpus": path, "out": build.file(name), "documents": kept}
            for number, (path, name) in enumerate(zip(paths, corpus.names, strict=True))
        ),
        units.write,
        unit_name="bytes",
        weights=list(map(float, corpus.sizes)),
    )
    counts = {"read/documents": documents, "kept/documents": kept}
    build.counters.update({**counts, f"dropped/{REASON}": dropped.num_rows})
    figures = {
        "cosine": config.similarity,
        "clusters": len(centres),
        "recall": units.recall(assigned, compared),
    }
    highest = np.sum([result["counts"] for result in compared], axis=0).tolist()
    content = {
        **figures,
        "documents": documents,
        "dropped": dropped.num_rows,
        "groups": len(np.unique(dropped["of"].to_numpy())),
        "highest_cosines": {"limits": list(LIMITS), "counts": highest},
        "examples": _examples(paths, dropped),
    }
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    storage.write_bytes(build.file(FIGURES), text.encode())
    more = {"dropped": {REASON: dropped.num_rows}, "shards": len(files), "size": units.width}
    return StageResult(rows=kept, summary={**_summary(written), **figures, **more})


def _named(units: Iterable[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    return [(f"{number:05d}", unit) for number, unit in enumerate(units)]


def _vectors(corpus: CorpusShards, build: BuildContext) -> list[str]:
    """Return the file of each shard's vectors.

    Raises:
        DataError: the vectors belong to another corpus.
    """
    path = build.inputs["vectors"]
    manifest = artifact.read_manifest(path)
    fingerprint = artifact.read_manifest(corpus.path).fingerprint
    if manifest.stage != "vectors" or manifest.parents.get("corpus") != fingerprint:
        raise DataError(
            f"{path} has no vectors of the corpus in {corpus.path}; make them: cloze "
            f"embed-corpus --corpus {corpus.path} --checkpoint …"
        )
    return [storage.join(path, vectors_file_name(name)) for name in corpus.names]


def _sample(files: Sequence[str]) -> tuple[U64, I16]:
    """Return keys and vectors of a random sample, in random order.

    A corpus is sorted by hashes, so its first documents are a random sample of it.
    """
    parts = [read_vectors(files[0])]
    for file in files[1:]:
        if sum(len(keys) for keys, _ in parts) >= SAMPLE:
            break
        parts.append(read_vectors(file))
    keys, vectors = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(random_keys.fold_in(_SAMPLE, keys), kind="stable")[:SAMPLE]
    return keys[order], vectors[order]


def _examples(paths: Sequence[str], dropped: pa.Table) -> list[dict[str, Any]]:
    """Return random pairs of dropped and kept documents, by decreasing cosine."""

    def described(shard: int, row: int) -> dict[str, Any]:
        (document,) = read_shard(paths[shard]).slice(row, 1).to_pylist()
        text = join_sentences(document["sentences"], document.get("paragraphs", ()))
        names = {"id": document["id"], "title": document.get("title", "")}
        return {**names, "characters": len(text), "text": text[:EXCERPT]}

    ranks = random_keys.fold_in(_EXAMPLE, dropped["key"].to_numpy())
    selected = dropped.take(pa.array(np.argsort(ranks, kind="stable")[:EXAMPLES]))
    return [
        {
            "cosine": round(pair["cosine"], 4),
            "dropped": described(pair["shard"], pair["row"]),
            "kept": described(pair["of_shard"], pair["of_row"]),
        }
        for pair in selected.sort_by([("cosine", "descending")]).to_pylist()
    ]


def _summary(written: Sequence[dict[str, Any]]) -> dict[str, Any]:
    totals = add_up(written)
    names, sources = ("documents", "bytes", "characters", "words", "sentences"), totals["sources"]
    licences = added(totals["origins"], "licence").items()
    return {
        **{name: sum(counts[name] for counts in sources.values()) for name in names},
        "sources": {
            kind: {name: counts[name] for name in names[:2]} for kind, counts in sources.items()
        },
        "licences": {name or UNKNOWN: counts["documents"] for (name,), counts in licences},
        "heldout_documents": sum(counts["heldout"] for counts in written),
    }
