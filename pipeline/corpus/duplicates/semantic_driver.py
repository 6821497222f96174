"""Stage semdedup: the driver and its units of work.

    AssignShard    a corpus shard and its vectors -> key, size and cluster per document
    (the driver sorts them by cluster)
    FindSimilar    some clusters -> the documents to drop, and the kept ones
    (the driver sorts those by shard)
    WriteKept      a corpus shard -> the shard without the dropped documents

No process holds all vectors. The result of a unit depends on the unit only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.core import arrow, random_keys, storage
from cloze.core.arrow import I16, open_arrow, read_arrow, write_arrow
from cloze.core.artifacts import artifact
from cloze.core.artifacts.artifact import HELDOUT
from cloze.core.errors import DataError
from cloze.core.ragged import I64
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.pipeline.corpus.card.statistics import add_up, added, measure
from cloze.pipeline.corpus.document import join_sentences
from cloze.pipeline.corpus.duplicates.semantic_clusters import (
    assign,
    centred,
    counted,
    find_similar,
    fit,
    mean_of,
)
from cloze.pipeline.corpus.duplicates.semantic_stage import (
    UNIT_DOCUMENTS,
    SemDedupConfig,
    clusters_for,
    sample_for,
)
from cloze.pipeline.corpus.provenance import UNKNOWN
from cloze.pipeline.corpus.read.intermediate import CORPUS, compact_batch
from cloze.pipeline.corpus.write.shards import (
    CorpusShards,
    fill_missing_columns,
    in_split,
    read_shard,
    text_bytes,
)
from cloze.pipeline.runners.fan_out import fan_out

ASSIGNED = pa.schema([("key", pa.uint64()), ("bytes", pa.int64()), ("cluster", pa.int32())])
MEMBERS = pa.schema(
    [("key", pa.uint64()), ("cluster", pa.int32()), ("shard", pa.int32()), ("row", pa.int32())]
)
FOUND = pa.schema(
    [("key", pa.uint64()), ("of", pa.uint64()), ("cosine", pa.float32())]
    + [(name, pa.int32()) for name in ("shard", "row", "of_shard", "of_row")]
)
DUPLICATES = pa.schema(
    [pa.field(name, FOUND.field(name).type, nullable=False) for name in ("key", "of", "cosine")]
)
LIMITS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.94, 0.96, 0.98, 0.99)


def batch_of(schema: pa.Schema, *columns: npt.NDArray[Any]) -> pa.RecordBatch:
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def vectors_of(path: str, mean: Sequence[int] | None) -> tuple[npt.NDArray[np.uint64], I16]:
    """Return the keys and vectors of a file, centred if `mean` is given."""
    keys, vectors = arrow.read_vectors(path)
    return keys, vectors if mean is None else centred(vectors, np.array(mean, np.int16))


@dataclass(frozen=True, kw_only=True)
class AssignShard:
    """Assign the documents of a shard to clusters.

    Unit: {"corpus": shard, "vectors": file, "out": file}.

    Attributes:
        centres: file of the cluster centres.
        mean: mean to subtract from the vectors; None: not subtracted.
    """

    centres: str
    mean: tuple[int, ...] | None

    def __call__(self, unit: dict[str, str]) -> dict[str, Any]:
        table = read_shard(unit["corpus"])
        keys, vectors = vectors_of(unit["vectors"], self.mean)
        if not np.array_equal(keys, table["key"].to_numpy()):
            raise DataError(
                f"{unit['vectors']} is not of the documents of {unit['corpus']}; make it again "
                f"with `cloze embed-corpus`"
            )
        clusters = assign(vectors, arrow.read_vectors(self.centres)[1])
        write_arrow(unit["out"], ASSIGNED, [batch_of(ASSIGNED, keys, text_bytes(table), clusters)])
        return {}


@dataclass(frozen=True, kw_only=True)
class FindSimilar:
    """Compare the documents of some clusters. Unit: {"number": batch of members, "out": file}.

    Returns the number of dropped documents and the histogram of highest cosines.

    Attributes:
        members: file of the members of the clusters, in order of preference.
        vectors: files of vectors, by shard number.
        mean: mean to subtract from the vectors; None: not subtracted.
        threshold: minimum cosine of a duplicate.
    """

    members: str
    vectors: tuple[str, ...]
    mean: tuple[int, ...] | None
    threshold: float

    def __call__(self, unit: dict[str, Any]) -> dict[str, Any]:
        members = open_arrow(self.members).get_batch(unit["number"])
        key, cluster, shard, row = (members[name].to_numpy() for name in MEMBERS.names)
        vectors = self._gather(shard, row)
        of, best = np.arange(len(key), dtype=np.int64), np.full(len(key), -1.0, np.float32)
        edges = [0, *(np.flatnonzero(cluster[1:] != cluster[:-1]) + 1).tolist(), len(cluster)]
        for begin, end in zip(edges[:-1], edges[1:], strict=True):
            originals, best[begin:end] = find_similar(vectors[begin:end], self.threshold)
            of[begin:end] = begin + originals
        dropped = np.flatnonzero(of != np.arange(len(of)))
        kept = of[dropped]
        columns = (
            key[dropped],
            key[kept],
            best[dropped],
            shard[dropped],
            row[dropped],
            shard[kept],
            row[kept],
        )
        write_arrow(unit["out"], FOUND, [batch_of(FOUND, *columns)])
        return {"documents": len(dropped), "cosines": counted(best, LIMITS)}

    def _gather(self, shard: npt.NDArray[np.int32], row: npt.NDArray[np.int32]) -> I16:
        gathered: I16 | None = None
        for number in np.unique(shard).tolist():
            chosen = np.flatnonzero(shard == number)
            vectors = arrow.read_vectors(self.vectors[number])[1][row[chosen]]
            gathered = (
                np.zeros((len(shard), vectors.shape[1]), np.int16) if gathered is None else gathered
            )
            gathered[chosen] = (
                vectors if self.mean is None else centred(vectors, np.array(self.mean, np.int16))
            )
        return np.zeros((0, 1), np.int16) if gathered is None else gathered


@dataclass(frozen=True, kw_only=True)
class WriteKept:
    """Write a shard without the duplicates.

    Unit: {"number": shard number, "corpus": shard, "out": file}.

    Returns the statistics of the shard.

    Attributes:
        duplicates: file of the dropped documents, a record batch per shard.
        documents: number of kept documents in the corpus.
    """

    duplicates: str
    documents: int

    def __call__(self, unit: dict[str, Any]) -> dict[str, Any]:
        dropped_keys = open_arrow(self.duplicates).get_batch(unit["number"])["key"].to_numpy()
        table = fill_missing_columns(read_shard(unit["corpus"]))
        table = table.filter(pa.array(~np.isin(table["key"].to_numpy(), dropped_keys)))
        batch = compact_batch(table, CORPUS)
        write_arrow(unit["out"], CORPUS, [batch])
        return {**measure(batch, self.documents), "heldout": int(in_split(table, HELDOUT).sum())}


def ranked(size: I64, key: npt.NDArray[np.uint64], cluster: npt.NDArray[np.int32]) -> I64:
    """Return the order of the documents, int64 [n]: by cluster, then longest first, then by key."""
    return np.lexsort((key, -size, cluster)).astype(np.int64)


def found_in(paths: Sequence[str]) -> pa.Table:
    """Return the results of `FindSimilar`, sorted by shard and key."""
    table = pa.concat_tables([FOUND.empty_table(), *map(read_arrow, paths)]).combine_chunks()
    return table.sort_by([("shard", "ascending"), ("key", "ascending")])


def scratch(build_scratch: str, name: str) -> str:
    """Return the path of a scratch file of the stage."""
    return storage.join(build_scratch, "files", name)


# Driver: sample, clusters, and the data between the steps.

REASON = "semantic_duplicate"
FIGURES, DUPLICATES_FILE = "semantic.json", "semantic_duplicates.arrow"
EXAMPLES, EXCERPT = 8, 400
_SAMPLE, _EXAMPLE = 0x534D504C, 0x53454D45


def deduplicate(config: SemDedupConfig, build: BuildContext) -> StageResult:
    """Run the stage; see `cloze.pipeline.corpus.duplicates.semantic_stage.run`."""
    corpus = CorpusShards.open(build.inputs["corpus"])
    vectors = _vectors(corpus, build)
    storage.make_dirs(scratch(build.scratch, ""))
    sample, documents = _sample(vectors, config)
    mean = mean_of(sample) if config.center else None
    mean_values = None if mean is None else tuple(mean.tolist())
    cluster_count = min(config.clusters or clusters_for(documents), max(1, len(sample)))
    centres = fit(sample if mean is None else centred(sample, mean), cluster_count, config.rounds)
    centres_file = scratch(build.scratch, "centres.arrow")
    numbers = np.arange(len(centres), dtype=np.uint64)
    write_arrow(
        centres_file,
        arrow.vectors_schema(centres.shape[1]),
        [arrow.vectors_batch(numbers, centres)],
    )

    weights = [float(size) for size in corpus.sizes]
    assigned_files = [
        scratch(build.scratch, f"assigned-{number:05d}.arrow") for number in range(len(vectors))
    ]
    units: list[tuple[str, dict[str, Any]]] = [
        (
            f"{number:05d}",
            {
                "corpus": corpus.file(name),
                "vectors": vectors[number],
                "out": assigned_files[number],
            },
        )
        for number, name in enumerate(corpus.names)
    ]
    fan_out(
        build,
        "assign",
        units,
        AssignShard(centres=centres_file, mean=mean_values),
        unit_name="bytes",
        weights=weights,
    )

    members = scratch(build.scratch, "members.arrow")
    pair_files = [
        scratch(build.scratch, f"found-{number:05d}.arrow")
        for number in range(_write_members(assigned_files, members))
    ]
    units = [
        (f"{number:05d}", {"number": number, "out": out}) for number, out in enumerate(pair_files)
    ]
    find = FindSimilar(
        members=members, vectors=tuple(vectors), mean=mean_values, threshold=config.similarity
    )
    comparisons = fan_out(build, "compare", units, find, unit_name="parts")

    dropped = found_in(pair_files)
    shards = dropped["shard"].to_numpy()
    batches = [
        dropped.filter(pa.array(shards == number)).select(DUPLICATES.names)
        for number in range(len(vectors))
    ]
    duplicates = build.file(DUPLICATES_FILE)
    write_arrow(
        duplicates,
        DUPLICATES,
        [
            batch_of(DUPLICATES, *(one[name].to_numpy() for name in DUPLICATES.names))
            for one in batches
        ],
    )
    units = [
        (f"{number:05d}", {"number": number, "corpus": corpus.file(name), "out": build.file(name)})
        for number, name in enumerate(corpus.names)
    ]
    write = WriteKept(duplicates=duplicates, documents=documents - dropped.num_rows)
    written = fan_out(build, "write", units, write, unit_name="bytes", weights=weights)
    if documents == dropped.num_rows:
        raise DataError(
            f"{build.inputs['corpus']} holds no document; give `cloze corpus` more text"
        )
    build.counters["read/documents"] += documents
    build.counters["kept/documents"] += documents - dropped.num_rows
    build.counters[f"dropped/{REASON}"] += dropped.num_rows
    figures = {
        "cosine": config.similarity,
        "clusters": len(centres),
        "documents": documents,
        "dropped": dropped.num_rows,
        "groups": len(np.unique(dropped["of"].to_numpy())),
        "highest_cosines": {
            "limits": list(LIMITS),
            "counts": np.sum([one["cosines"] for one in comparisons], axis=0).tolist(),
        },
        "examples": _examples(corpus, dropped),
    }
    storage.write_bytes(
        build.file(FIGURES), (json.dumps(figures, indent=1, ensure_ascii=False) + "\n").encode()
    )
    return StageResult(
        rows=documents - dropped.num_rows,
        summary={**_summary(build, corpus, figures, written), "size": centres.shape[1]},
    )


def _vectors(corpus: CorpusShards, build: BuildContext) -> list[str]:
    """Return the file of each shard's vectors.

    Raises:
        DataError: the vectors belong to another corpus.
    """
    path = build.inputs["vectors"]
    vectors_manifest, corpus_manifest = (
        artifact.read_manifest(path),
        artifact.read_manifest(build.inputs["corpus"]),
    )
    if (
        vectors_manifest.stage != "vectors"
        or vectors_manifest.parents.get("corpus") != corpus_manifest.fingerprint
    ):
        raise DataError(
            f"{path} holds no vectors of the corpus in {corpus.path}; make them: cloze "
            f"embed-corpus --corpus {corpus.path} --checkpoint …"
        )
    return [storage.join(path, arrow.vectors_file_name(name)) for name in corpus.names]


def _sample(files: Sequence[str], config: SemDedupConfig) -> tuple[I16, int]:
    """Return a random sample of the vectors, chosen by key hash, and the number of documents."""
    keys = [read_arrow(file)["key"].to_numpy() for file in files]
    documents = sum(map(len, keys))
    ranks = [random_keys.fold_in(_SAMPLE, array) for array in keys]
    sample_size = sample_for(documents, config.clusters or clusters_for(documents))
    limit = (
        np.partition(np.concatenate(ranks), sample_size - 1)[sample_size - 1]
        if sample_size
        else np.uint64(0)
    )
    chosen = [np.flatnonzero(array <= limit) for array in ranks]
    sample = np.concatenate(
        [arrow.read_vectors(file)[1][rows] for file, rows in zip(files, chosen, strict=True)]
    )
    order = np.argsort(
        np.concatenate([array[rows] for array, rows in zip(ranks, chosen, strict=True)]),
        kind="stable",
    )
    return sample[order], documents


def _write_members(assigned: Sequence[str], path: str) -> int:
    """Write all documents by cluster, whole clusters per record batch.

    Return the number of batches.
    """
    tables = [read_arrow(file) for file in assigned]
    shard = np.repeat(np.arange(len(tables), dtype=np.int32), [table.num_rows for table in tables])
    row = np.concatenate([np.arange(table.num_rows, dtype=np.int32) for table in tables])
    key, size, cluster = (
        np.concatenate([table[name].to_numpy() for table in tables]) for name in ASSIGNED.names
    )
    order = ranked(size, key, cluster)
    key, cluster, shard, row = key[order], cluster[order], shard[order], row[order]
    edges = [0]
    for end in [*(np.flatnonzero(cluster[1:] != cluster[:-1]) + 1).tolist(), len(cluster)]:
        if end - edges[-1] >= UNIT_DOCUMENTS or end == len(cluster):
            edges.append(end)
    pieces = [slice(begin, end) for begin, end in zip(edges[:-1], edges[1:], strict=True)]
    write_arrow(
        path,
        MEMBERS,
        (
            batch_of(MEMBERS, key[piece], cluster[piece], shard[piece], row[piece])
            for piece in pieces
        ),
    )
    return len(pieces)


def _examples(corpus: CorpusShards, gone: pa.Table) -> list[dict[str, Any]]:
    """Return random pairs of dropped and kept documents, by decreasing cosine."""
    order = np.argsort(random_keys.fold_in(_EXAMPLE, gone["key"].to_numpy()), kind="stable")[
        :EXAMPLES
    ]
    examples = []
    for row in gone.take(pa.array(order)).to_pylist():
        dropped, kept = (
            _shown(corpus, *position)
            for position in ((row["shard"], row["row"]), (row["of_shard"], row["of_row"]))
        )
        examples.append({"cosine": round(row["cosine"], 4), "dropped": dropped, "kept": kept})
    return sorted(examples, key=lambda one: -one["cosine"])


def _shown(corpus: CorpusShards, shard: int, row: int) -> dict[str, Any]:
    document = read_shard(corpus.file(corpus.names[shard])).slice(row, 1).to_pylist()[0]
    text = join_sentences(document["sentences"], document.get("paragraphs", ()))
    return {
        "id": document["id"],
        "title": document.get("title", ""),
        "characters": len(text),
        "text": text[:EXCERPT],
    }


def _summary(
    build: BuildContext,
    corpus: CorpusShards,
    figures: dict[str, Any],
    written: list[dict[str, Any]],
) -> dict[str, Any]:
    totals = add_up(written)
    sources = totals["sources"].values()
    heldout = sum(counts["heldout"] for counts in written)
    return {
        **{
            name: sum(counts[name] for counts in sources)
            for name in ("documents", "bytes", "characters", "words", "sentences")
        },
        "dropped": {REASON: figures["dropped"]},
        "clusters": figures["clusters"],
        "cosine": figures["cosine"],
        "sources": {
            kind: {name: counts[name] for name in ("documents", "bytes")}
            for kind, counts in totals["sources"].items()
        },
        "licences": {
            name or UNKNOWN: counts["documents"]
            for (name,), counts in added(totals["origins"], "licence").items()
        },
        "heldout_documents": heldout,
        "shards": len(corpus.names),
    }
