"""Stage semdedup: the driver and its units of work.

    AssignShards   corpus shards and their vectors -> a run of rows sorted by cluster
    FindSimilar    some clusters -> the documents to drop, and the kept ones
    (the driver sorts those by shard)
    WriteKept      a corpus shard -> the shard without the dropped documents

An exchange (`pipeline/runners/exchange.py`) lies between the first two, so each vector is written
and read once. A document is compared with the centres of at most 1,024 clusters, and with those of
its part of its own cluster (`semantic_clusters.divide`): the work grows with the documents alone.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cloze.core import arrow, random_keys, storage
from cloze.core.arrow import F32, I16, open_arrow, read_arrow, write_arrow
from cloze.core.artifacts import artifact
from cloze.core.artifacts.artifact import HELDOUT
from cloze.core.errors import DataError
from cloze.core.ragged import I64
from cloze.core.random_keys import U64
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.labs.selection import semantic_clusters as clustering
from cloze.labs.selection.semantic_stage import (
    SAMPLE,
    UNIT_DOCUMENTS,
    SemDedupConfig,
    clusters_for,
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
class Comparison:
    """What all units know.

    Attributes:
        clusters: exchange of the documents by cluster.
        centres: file of the centres.
        questions: file of the documents whose neighbours are searched in the whole corpus.
        mean: mean to subtract from the vectors; None: not subtracted.
        width: numbers of a vector.
        config: similarity and rounds of k-means.
    """

    clusters: Exchange
    centres: str
    questions: str
    mean: tuple[int, ...] | None
    width: int
    config: SemDedupConfig

    @property
    def rows(self) -> pa.Schema:
        """Schema of the documents in the exchange."""
        places = [("shard", pa.int32()), ("row", pa.int32()), ("bytes", pa.int64())]
        return pa.schema([*arrow.vectors_schema(self.width), *places])

    def centred(self, vectors: I16) -> I16:
        """Return the vectors without the mean."""
        if self.mean is None:
            return vectors
        return clustering.centred(vectors, np.array(self.mean, np.int16))


@dataclass(frozen=True, kw_only=True)
class AssignShards(Comparison):
    """Write a run of documents by cluster.

    Unit: {"run": number, "shards": [[number, corpus shard, vectors file]]}. Returns the highest
    cosine of each question.
    """

    def __call__(self, unit: dict[str, Any]) -> dict[str, Any]:
        centres = arrow.read_vectors(self.centres)[1]
        question_keys, questions = arrow.read_vectors(self.questions)
        best: list[F32] = [np.full(len(questions), -1.0, np.float32)]

        def placed() -> Any:
            for number, corpus, file in unit["shards"]:
                table = read_shard(corpus)
                keys, vectors = arrow.read_vectors(file)
                if not np.array_equal(keys, table["key"].to_numpy()):
                    raise DataError(
                        f"{file} is not of the documents of {corpus}; make it again with "
                        f"`cloze embed-corpus`"
                    )
                vectors = self.centred(vectors)
                best.append(clustering.highest_others(questions, question_keys, vectors, keys))
                shard, row = np.full(len(keys), number, np.int32), np.arange(len(keys))
                batch = arrow.vectors_batch(keys, vectors)
                columns = [*batch.columns, shard, row.astype(np.int32), text_bytes(table)]
                rows = pa.Table.from_arrays(list(map(pa.array, columns)), schema=self.rows)
                yield rows, clustering.assign(vectors, centres).astype(np.int64)

        self.clusters.write(unit["run"], placed())
        return {"cosines": np.max(best, axis=0).tolist()}


@dataclass(frozen=True, kw_only=True)
class FindSimilar(Comparison):
    """Compare the documents of clusters. Unit: {"first", "end": clusters, "out": file of pairs}.

    Returns the histogram of highest cosines, and the number of questions with a similar document in
    their cluster.
    """

    def __call__(self, unit: dict[str, Any]) -> dict[str, Any]:
        counts, near, pairs = np.zeros(len(LIMITS) + 1, np.int64), 0, list[pa.RecordBatch]()
        with self.clusters.read(self.rows, unit["first"], unit["end"]) as runs:
            for cluster in range(unit["first"], unit["end"]):
                if batches := list(runs.batches(cluster)):
                    near += self._compare(pa.concat_batches(batches), counts, pairs)
        write_arrow(unit["out"], PAIRS, pairs)
        return {"counts": counts.tolist(), "near": near}

    def _compare(self, batch: pa.RecordBatch, counts: I64, pairs: list[pa.RecordBatch]) -> int:
        """Add the cluster's pairs and counts; return the number of its questions with one."""
        key, shard, row, size = (
            batch[name].to_numpy() for name in ("key", "shard", "row", "bytes")
        )
        order = np.lexsort((key, -size))  # longest first, then by key
        key, shard, row = key[order], shard[order], row[order]
        vectors = batch["vector"].flatten().to_numpy().reshape(len(key), -1)[order]
        question_keys, near = arrow.read_vectors(self.questions)[0], 0
        ranks = random_keys.fold_in(_SAMPLE, key)
        for members in clustering.divide(vectors, ranks, self.config.rounds):
            own, keys = vectors[members], key[members]
            of, best = clustering.find_similar(own, self.config.similarity)
            dropped, asked = np.flatnonzero(of != np.arange(len(of))), np.isin(keys, question_keys)
            found = clustering.highest_others(own[asked], keys[asked], own, keys)
            near += int((found >= self.config.similarity - clustering.ROUNDING).sum())
            counts += np.bincount(
                np.searchsorted(np.array(LIMITS, np.float32), best, side="right"),
                minlength=len(counts),
            )
            gone, stays = members[dropped], members[of[dropped]]
            columns = [key[gone], key[stays], best[dropped], shard[gone], row[gone], shard[stays]]
            pairs.append(pa.record_batch([*columns, row[stays]], schema=PAIRS))
        return near


@dataclass(frozen=True, kw_only=True)
class WriteKept:
    """Write a shard without the duplicates. Unit: {"number": of the shard, "corpus", "out"}.

    Returns the statistics of the shard.

    Attributes:
        duplicates: file of the dropped documents, a record batch per shard.
        documents: number of kept documents in the corpus.
    """

    duplicates: str
    documents: int

    def __call__(self, unit: dict[str, Any]) -> dict[str, Any]:
        dropped = open_arrow(self.duplicates).get_batch(unit["number"])["key"].to_numpy()
        table = fill_missing_columns(read_shard(unit["corpus"]))
        table = table.filter(pa.array(~np.isin(table["key"].to_numpy(), dropped)))
        batch = compact_batch(table, CORPUS)
        write_arrow(unit["out"], CORPUS, [batch])
        return {**measure(batch, self.documents), "heldout": int(in_split(table, HELDOUT).sum())}


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
    known: dict[str, Any] = {
        "clusters": Exchange(
            directory=storage.join(build.scratch, "clusters"), runs=len(groups), places=count
        ),
        **{name: storage.join(build.scratch, f"{name}.arrow") for name in ("centres", "questions")},
        "mean": None if mean is None else tuple(mean.tolist()),
        "width": sample.shape[1],
        "config": config,
    }
    assign = AssignShards(**known)
    sample = assign.centred(sample)
    centres = clustering.fit(sample, count, config.rounds)
    _write_vectors(assign.centres, np.arange(len(centres), dtype=np.uint64), centres)
    _write_vectors(assign.questions, keys[:QUESTIONS], sample[:QUESTIONS])

    shards = [[*each] for each in zip(itertools.count(), map(corpus.file, corpus.names), files)]
    runs = [{"run": run, "shards": shards[slice(*group)]} for run, group in enumerate(groups)]
    weights = [float(sum(corpus.sizes[slice(*group)])) for group in groups]
    assigned = fan_out(build, "assign", _named(runs), assign, unit_name="bytes", weights=weights)
    in_clusters = assign.clusters.connect(build, "connect").tolist()
    units: list[dict[str, Any]] = [
        {"first": first, "end": end, "out": storage.join(build.scratch, f"found-{first:05d}.arrow")}
        for first, end in group_by_size(in_clusters, UNIT_DOCUMENTS)
    ]
    find = FindSimilar(**known)
    compared = fan_out(build, "compare", _named(units), find, unit_name="parts")
    dropped = pa.concat_tables([PAIRS.empty_table(), *(read_arrow(unit["out"]) for unit in units)])
    dropped = dropped.sort_by([("shard", "ascending"), ("key", "ascending")])
    documents = sum(in_clusters)
    kept = documents - dropped.num_rows
    if not kept:
        raise DataError(f"{corpus.path} contains no document; give `cloze corpus` more text")

    write = WriteKept(duplicates=build.file(DUPLICATES_FILE), documents=kept)
    edges = np.searchsorted(dropped["shard"].to_numpy(), np.arange(len(files) + 1)).tolist()
    whole = dropped.combine_chunks()
    batches = (
        compact_batch(whole.slice(begin, end - begin), PAIRS)
        for begin, end in itertools.pairwise(edges)
    )
    write_arrow(write.duplicates, PAIRS, batches)
    units = [
        {"number": number, "corpus": corpus.file(name), "out": build.file(name)}
        for number, name in enumerate(corpus.names)
    ]
    written = fan_out(
        build,
        "write",
        _named(units),
        write,
        unit_name="bytes",
        weights=list(map(float, corpus.sizes)),
    )
    build.counters["read/documents"] += documents
    build.counters["kept/documents"] += kept
    build.counters[f"dropped/{REASON}"] += dropped.num_rows
    cosines = np.max([result["cosines"] for result in assigned], axis=0)
    figures = {
        "cosine": config.similarity,
        "clusters": len(centres),
        "documents": documents,
        "dropped": dropped.num_rows,
        "groups": len(np.unique(dropped["of"].to_numpy())),
        "recall": {
            "sample": len(cosines),
            "near": int((cosines >= config.similarity - clustering.ROUNDING).sum()),
            "in_cluster": sum(result["near"] for result in compared),
        },
        "highest_cosines": {
            "limits": list(LIMITS),
            "counts": np.sum([result["counts"] for result in compared], axis=0).tolist(),
        },
        "examples": _examples(corpus, dropped),
    }
    text = json.dumps(figures, indent=1, ensure_ascii=False) + "\n"
    storage.write_bytes(build.file(FIGURES), text.encode())
    summary = _summary(figures, written) | {"shards": len(files), "size": centres.shape[1]}
    return StageResult(rows=kept, summary=summary)


def _named(units: Sequence[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    return [(f"{number:05d}", unit) for number, unit in enumerate(units)]


def _write_vectors(path: str, keys: U64, vectors: I16) -> None:
    batch = arrow.vectors_batch(keys, vectors)
    write_arrow(path, batch.schema, [batch])


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
    return [storage.join(path, arrow.vectors_file_name(name)) for name in corpus.names]


def _sample(files: Sequence[str]) -> tuple[U64, I16]:
    """Return keys and vectors of a random sample, in random order.

    A corpus is sorted by hashes, so its first documents are a random sample of it.
    """
    parts = [arrow.read_vectors(files[0])]
    for file in files[1:]:
        if sum(len(keys) for keys, _ in parts) >= SAMPLE:
            break
        parts.append(arrow.read_vectors(file))
    keys, vectors = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(random_keys.fold_in(_SAMPLE, keys), kind="stable")[:SAMPLE]
    return keys[order], vectors[order]


def _examples(corpus: CorpusShards, dropped: pa.Table) -> list[dict[str, Any]]:
    """Return random pairs of dropped and kept documents, by decreasing cosine."""
    ranks = random_keys.fold_in(_EXAMPLE, dropped["key"].to_numpy())
    selected = dropped.take(pa.array(np.argsort(ranks, kind="stable")[:EXAMPLES]))
    examples = [
        {
            "cosine": round(pair["cosine"], 4),
            "dropped": _describe(corpus, pair["shard"], pair["row"]),
            "kept": _describe(corpus, pair["of_shard"], pair["of_row"]),
        }
        for pair in selected.to_pylist()
    ]
    return sorted(examples, key=lambda example: -example["cosine"])


def _describe(corpus: CorpusShards, shard: int, row: int) -> dict[str, Any]:
    document = read_shard(corpus.file(corpus.names[shard])).slice(row, 1).to_pylist()[0]
    text = join_sentences(document["sentences"], document.get("paragraphs", ()))
    names = {"id": document["id"], "title": document.get("title", "")}
    return {**names, "characters": len(text), "text": text[:EXCERPT]}


def _summary(figures: Mapping[str, Any], written: Sequence[dict[str, Any]]) -> dict[str, Any]:
    totals = add_up(written)
    names = ("documents", "bytes", "characters", "words", "sentences")
    sources = totals["sources"]
    return {
        **{name: sum(counts[name] for counts in sources.values()) for name in names},
        "dropped": {REASON: figures["dropped"]},
        **{name: figures[name] for name in ("clusters", "cosine", "recall")},
        "sources": {
            kind: {name: counts[name] for name in names[:2]} for kind, counts in sources.items()
        },
        "licences": {
            name or UNKNOWN: counts["documents"]
            for (name,), counts in added(totals["origins"], "licence").items()
        },
        "heldout_documents": sum(counts["heldout"] for counts in written),
    }
