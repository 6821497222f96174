"""Stage semdedup: the driver and its units of work.

    AssignShard    a corpus shard and its vectors -> key, size and cluster per document
    (the driver sorts them by cluster)
    FindSimilar    some clusters -> the documents to drop, and the kept ones
    (the driver sorts those by shard)
    WriteKept      a corpus shard -> the shard without the dropped documents

No process holds all vectors. The result of a unit depends on the unit only.
"""

from __future__ import annotations

import itertools
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
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.pipeline.corpus.document import join_sentences
from cloze.pipeline.corpus.duplicates.semantic_clusters import (
    assign,
    centred,
    counted,
    find_similar,
    fit,
    mean_of,
)
from cloze.pipeline.corpus.duplicates.semantic_config import (
    UNIT_DOCUMENTS,
    SemDedupConfig,
    clusters_for,
    sample_for,
)
from cloze.pipeline.corpus.files.intermediate import CORPUS, compact_batch, run_edges
from cloze.pipeline.corpus.files.shards import (
    CorpusShards,
    fill_missing_columns,
    in_split,
    read_shard,
    text_bytes,
)
from cloze.pipeline.corpus.provenance import UNKNOWN
from cloze.pipeline.corpus.statistics import add_up, added, measure
from cloze.pipeline.runners.fan_out import fan_out

ASSIGNED = pa.schema([("key", pa.uint64()), ("bytes", pa.int64()), ("cluster", pa.int32())])
MEMBERS = pa.schema(
    [("key", pa.uint64()), ("cluster", pa.int32()), ("shard", pa.int32()), ("row", pa.int32())]
)
PAIRS = pa.schema(
    [("key", pa.uint64()), ("of", pa.uint64()), ("cosine", pa.float32())]
    + [(name, pa.int32()) for name in ("shard", "row", "of_shard", "of_row")]
)
DUPLICATES = pa.schema(
    [pa.field(name, PAIRS.field(name).type, nullable=False) for name in ("key", "of", "cosine")]
)
LIMITS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.94, 0.96, 0.98, 0.99)


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
        columns = [keys, text_bytes(table), clusters]
        write_arrow(unit["out"], ASSIGNED, [pa.record_batch(columns, schema=ASSIGNED)])
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
        for begin, end in itertools.pairwise(run_edges(cluster)):
            originals, best[begin:end] = find_similar(vectors[begin:end], self.threshold)
            of[begin:end] = begin + originals
        dropped = np.flatnonzero(of != np.arange(len(of)))
        pair_keys = of[dropped]
        pairs = (key[dropped], key[pair_keys], best[dropped])
        positions = (shard[dropped], row[dropped], shard[pair_keys], row[pair_keys])
        write_arrow(unit["out"], PAIRS, [pa.record_batch([*pairs, *positions], schema=PAIRS)])
        return {"documents": len(dropped), "cosines": counted(best, LIMITS)}

    def _gather(self, shard: npt.NDArray[np.int32], row: npt.NDArray[np.int32]) -> I16:
        """Return the vectors at these positions, int16 [n, D]."""
        numbers = np.unique(shard)
        pieces = [
            vectors_of(self.vectors[number], self.mean)[1][row[shard == number]]
            for number in numbers.tolist()
        ]
        gathered = np.empty((len(shard), pieces[0].shape[1] if pieces else 1), np.int16)
        gathered[np.argsort(shard, kind="stable")] = np.concatenate(pieces or [gathered])
        return gathered


@dataclass(frozen=True, kw_only=True)
class WriteDeduplicated:
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


# Driver: sample, clusters, and the data between the steps.

REASON = "semantic_duplicate"
FIGURES, DUPLICATES_FILE = "semantic.json", "semantic_duplicates.arrow"
EXAMPLES, EXCERPT = 8, 400
_SAMPLE, _EXAMPLE = 0x534D504C, 0x53454D45


def deduplicate(config: SemDedupConfig, build: BuildContext) -> StageResult:
    """Run the stage; see `cloze.pipeline.corpus.duplicates.semantic_stage.run`."""
    corpus = CorpusShards.open(build.inputs["corpus"])
    vectors = _vectors(corpus, build)
    scratch = storage.join(build.scratch, "files")
    storage.make_dirs(scratch)
    centres_file, members = (
        storage.join(scratch, f"{name}.arrow") for name in ("centres", "members")
    )
    sample, documents = _sample(vectors, config)
    mean = mean_of(sample) if config.center else None
    mean_values = None if mean is None else tuple(mean.tolist())
    cluster_count = min(config.clusters or clusters_for(documents), max(1, len(sample)))
    centres = fit(sample if mean is None else centred(sample, mean), cluster_count, config.rounds)
    write_arrow(
        centres_file,
        arrow.vectors_schema(centres.shape[1]),
        [arrow.vectors_batch(np.arange(len(centres), dtype=np.uint64), centres)],
    )

    weights = [float(size) for size in corpus.sizes]
    assigned = _files(scratch, "assigned", len(vectors))
    units: list[dict[str, Any]] = [
        {"corpus": corpus.file(name), "vectors": vector_file, "out": out}
        for name, vector_file, out in zip(corpus.names, vectors, assigned, strict=True)
    ]
    assign_shard = AssignShard(centres=centres_file, mean=mean_values)
    fan_out(build, "assign", _named(units), assign_shard, unit_name="bytes", weights=weights)

    pair_files = _files(scratch, "found", _write_members(assigned, members))
    units = [{"number": number, "out": out} for number, out in enumerate(pair_files)]
    find = FindSimilar(
        members=members, vectors=tuple(vectors), mean=mean_values, threshold=config.similarity
    )
    comparisons = fan_out(build, "compare", _named(units), find, unit_name="parts")
    dropped = pa.concat_tables([PAIRS.empty_table(), *map(read_arrow, pair_files)])
    dropped = dropped.sort_by([("shard", "ascending"), ("key", "ascending")])
    retained = documents - dropped.num_rows
    if not retained:
        raise DataError(
            f"{build.inputs['corpus']} contains no document; give `cloze corpus` more text"
        )

    duplicates = build.file(DUPLICATES_FILE)
    edges = np.searchsorted(dropped["shard"].to_numpy(), np.arange(len(vectors) + 1))
    columns = [dropped[name].to_numpy() for name in DUPLICATES.names]
    batches = (
        pa.record_batch([column[begin:end] for column in columns], schema=DUPLICATES)
        for begin, end in itertools.pairwise(edges)
    )
    write_arrow(duplicates, DUPLICATES, batches)
    units = [
        {"number": number, "corpus": corpus.file(name), "out": build.file(name)}
        for number, name in enumerate(corpus.names)
    ]
    write = WriteDeduplicated(duplicates=duplicates, documents=retained)
    written = fan_out(build, "write", _named(units), write, unit_name="bytes", weights=weights)
    build.counters["read/documents"] += documents
    build.counters["kept/documents"] += retained
    build.counters[f"dropped/{REASON}"] += dropped.num_rows
    figures = {
        "cosine": config.similarity,
        "clusters": len(centres),
        "documents": documents,
        "dropped": dropped.num_rows,
        "groups": len(np.unique(dropped["of"].to_numpy())),
        "highest_cosines": {
            "limits": list(LIMITS),
            "counts": np.sum([result["cosines"] for result in comparisons], axis=0).tolist(),
        },
        "examples": _examples(corpus, dropped),
    }
    storage.write_bytes(
        build.file(FIGURES), (json.dumps(figures, indent=1, ensure_ascii=False) + "\n").encode()
    )
    summary = _summary(corpus, figures, written) | {"size": centres.shape[1]}
    return StageResult(rows=retained, summary=summary)


def _files(directory: str, name: str, count: int) -> list[str]:
    return [storage.join(directory, f"{name}-{number:05d}.arrow") for number in range(count)]


def _named(units: Sequence[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    return [(f"{number:05d}", unit) for number, unit in enumerate(units)]


def _vectors(corpus: CorpusShards, build: BuildContext) -> list[str]:
    """Return the file of each shard's vectors.

    Raises:
        DataError: the vectors belong to another corpus.
    """
    path = build.inputs["vectors"]
    manifest = artifact.read_manifest(path)
    fingerprint = artifact.read_manifest(build.inputs["corpus"]).fingerprint
    if manifest.stage != "vectors" or manifest.parents.get("corpus") != fingerprint:
        raise DataError(
            f"{path} has no vectors of the corpus in {corpus.path}; make them: cloze "
            f"embed-corpus --corpus {corpus.path} --checkpoint …"
        )
    return [storage.join(path, arrow.vectors_file_name(name)) for name in corpus.names]


def _sample(files: Sequence[str], config: SemDedupConfig) -> tuple[I16, int]:
    """Return a random sample of the vectors, chosen by key hash, and the number of documents."""
    ranks = [random_keys.fold_in(_SAMPLE, read_arrow(file)["key"].to_numpy()) for file in files]
    all_ranks = np.sort(np.concatenate(ranks))
    documents = len(all_ranks)
    sample_ranks = all_ranks[: sample_for(documents, config.clusters or clusters_for(documents))]
    limit = sample_ranks[-1] if len(sample_ranks) else np.uint64(0)
    sampled = [np.flatnonzero(array <= limit) for array in ranks]
    sample = [arrow.read_vectors(file)[1][rows] for file, rows in zip(files, sampled, strict=True)]
    order = np.argsort(
        np.concatenate([array[rows] for array, rows in zip(ranks, sampled, strict=True)]),
        kind="stable",
    )
    return np.concatenate(sample)[order], documents


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
    order = np.lexsort((key, -size, cluster))  # longest first, then by key
    columns = [column[order] for column in (key, cluster, shard, row)]
    edges = [0]
    for end in run_edges(columns[1])[1:]:
        if end - edges[-1] >= UNIT_DOCUMENTS or end == len(cluster):
            edges.append(end)
    batches = (
        pa.record_batch([column[begin:end] for column in columns], schema=MEMBERS)
        for begin, end in itertools.pairwise(edges)
    )
    write_arrow(path, MEMBERS, batches)
    return len(edges) - 1


def _examples(corpus: CorpusShards, dropped: pa.Table) -> list[dict[str, Any]]:
    """Return random pairs of dropped and kept documents, by decreasing cosine."""
    ranks = random_keys.fold_in(_EXAMPLE, dropped["key"].to_numpy())
    selected = dropped.take(pa.array(np.argsort(ranks, kind="stable")[:EXAMPLES]))
    examples = [
        {
            "cosine": round(row["cosine"], 4),
            "dropped": _describe(corpus, row["shard"], row["row"]),
            "kept": _describe(corpus, row["of_shard"], row["of_row"]),
        }
        for row in selected.to_pylist()
    ]
    return sorted(examples, key=lambda example: -example["cosine"])


def _describe(corpus: CorpusShards, shard: int, row: int) -> dict[str, Any]:
    document = read_shard(corpus.file(corpus.names[shard])).slice(row, 1).to_pylist()[0]
    text = join_sentences(document["sentences"], document.get("paragraphs", ()))
    names = {"id": document["id"], "title": document.get("title", "")}
    return {**names, "characters": len(text), "text": text[:EXCERPT]}


def _summary(
    corpus: CorpusShards, figures: dict[str, Any], written: Sequence[dict[str, Any]]
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
