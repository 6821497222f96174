"""Stage semdedup: the driver's part: the sample and its clusters, and what goes from one step to the next."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.core import artifact, random_keys, storage, unit_vectors
from pipeline.core.arrow import read_arrow, write_arrow
from pipeline.core.errors import DataError
from pipeline.core.stage import Build, Outcome
from pipeline.core.unit_vectors import I16
from pipeline.corpus.document import joined
from pipeline.corpus.provenance import UNKNOWN
from pipeline.corpus.semantic.clusters import centred, fit, mean_of
from pipeline.corpus.semantic.config import UNIT_DOCUMENTS, SemDedupConfig, clusters_for, sample_for
from pipeline.corpus.semantic.work import (
    ASSIGNED,
    DUPLICATES,
    LIMITS,
    MEMBERS,
    AssignShard,
    FindSimilar,
    WriteKept,
    batch_of,
    found_in,
    ranked,
    scratch,
)
from pipeline.corpus.shards import CorpusShards, read_shard
from pipeline.corpus.statistics import add_up, added
from pipeline.engines.fan_out import fan_out

REASON = "semantic_duplicate"
FIGURES, DUPLICATES_FILE = "semantic.json", "semantic_duplicates.arrow"
EXAMPLES, EXCERPT = 8, 400
_SAMPLE, _EXAMPLE = 0x534D504C, 0x53454D45


def deduplicate(config: SemDedupConfig, build: Build) -> Outcome:
    """See `pipeline.corpus.semantic.stage.run`."""
    corpus = CorpusShards.open(build.inputs["corpus"])
    vectors = _vectors(corpus, build)
    storage.make_dirs(scratch(build.scratch, ""))
    sample, documents = _sample(vectors, config)
    mean = mean_of(sample) if config.centred else None
    taken = None if mean is None else tuple(mean.tolist())
    wanted = min(config.clusters or clusters_for(documents), max(1, len(sample)))
    centres = fit(sample if mean is None else centred(sample, mean), wanted, config.rounds)
    centres_file = scratch(build.scratch, "centres.arrow")
    numbers = np.arange(len(centres), dtype=np.uint64)
    write_arrow(centres_file, unit_vectors.schema(centres.shape[1]), [unit_vectors.batch(numbers, centres)])

    weights = [float(size) for size in corpus.sizes]
    assigned = [scratch(build.scratch, f"assigned-{number:05d}.arrow") for number in range(len(vectors))]
    units: list[tuple[str, dict[str, Any]]] = [
        (f"{number:05d}", {"corpus": corpus.file(name), "vectors": vectors[number], "out": assigned[number]})
        for number, name in enumerate(corpus.names)
    ]
    fan_out(build, "assign", units, AssignShard(centres=centres_file, mean=taken), unit_name="bytes", weights=weights)

    members = scratch(build.scratch, "members.arrow")
    found = [scratch(build.scratch, f"found-{number:05d}.arrow") for number in range(_write_members(assigned, members))]
    units = [(f"{number:05d}", {"number": number, "out": out}) for number, out in enumerate(found)]
    find = FindSimilar(members=members, vectors=tuple(vectors), mean=taken, threshold=config.cosine)
    compared = fan_out(build, "compare", units, find, unit_name="parts")

    gone = found_in(found)
    shards = gone["shard"].to_numpy()
    batches = [gone.filter(pa.array(shards == number)).select(DUPLICATES.names) for number in range(len(vectors))]
    duplicates = build.file(DUPLICATES_FILE)
    write_arrow(
        duplicates, DUPLICATES, [batch_of(DUPLICATES, *(one[name].to_numpy() for name in DUPLICATES.names)) for one in batches]
    )
    units = [
        (f"{number:05d}", {"number": number, "corpus": corpus.file(name), "out": build.file(name)})
        for number, name in enumerate(corpus.names)
    ]
    write = WriteKept(duplicates=duplicates, documents=documents - gone.num_rows)
    written = fan_out(build, "write", units, write, unit_name="bytes", weights=weights)
    if documents == gone.num_rows:
        raise DataError(f"{build.inputs['corpus']} holds no document; give `cloze corpus` more text")
    build.counters["read/documents"] += documents
    build.counters["kept/documents"] += documents - gone.num_rows
    build.counters[f"dropped/{REASON}"] += gone.num_rows
    figures = {
        "cosine": config.cosine,
        "clusters": len(centres),
        "documents": documents,
        "dropped": gone.num_rows,
        "groups": len(np.unique(gone["of"].to_numpy())),
        "highest_cosines": {"limits": list(LIMITS), "counts": np.sum([one["cosines"] for one in compared], axis=0).tolist()},
        "examples": _examples(corpus, gone),
    }
    storage.write_bytes(build.file(FIGURES), (json.dumps(figures, indent=1, ensure_ascii=False) + "\n").encode())
    return Outcome(
        rows=documents - gone.num_rows, summary={**_summary(build, corpus, figures, written), "size": centres.shape[1]}
    )


def _vectors(corpus: CorpusShards, build: Build) -> list[str]:
    """The file of each shard's vectors; `DataError` where they are of another corpus."""
    path = build.inputs["vectors"]
    made, own = artifact.read_manifest(path), artifact.read_manifest(build.inputs["corpus"])
    if made.stage != "vectors" or made.parents.get("corpus") != own.fingerprint:
        raise DataError(
            f"{path} holds no vectors of the corpus in {corpus.path}; make them: cloze vectors --corpus {corpus.path} --checkpoint …"
        )
    return [storage.join(path, unit_vectors.file_name(name)) for name in corpus.names]


def _sample(files: Sequence[str], config: SemDedupConfig) -> tuple[I16, int]:
    """Vectors of documents chosen by a hash of their keys, in its order; and how many documents there are."""
    keys = [read_arrow(file)["key"].to_numpy() for file in files]
    documents = sum(map(len, keys))
    ranks = [random_keys.derive(_SAMPLE, one) for one in keys]
    wanted = sample_for(documents, config.clusters or clusters_for(documents))
    limit = np.partition(np.concatenate(ranks), wanted - 1)[wanted - 1] if wanted else np.uint64(0)
    chosen = [np.flatnonzero(one <= limit) for one in ranks]
    taken = np.concatenate([unit_vectors.read(file)[1][rows] for file, rows in zip(files, chosen, strict=True)])
    order = np.argsort(np.concatenate([one[rows] for one, rows in zip(ranks, chosen, strict=True)]), kind="stable")
    return taken[order], documents


def _write_members(assigned: Sequence[str], path: str) -> int:
    """Write all documents by cluster, whole clusters a record batch. Returns how many there are."""
    tables = [read_arrow(file) for file in assigned]
    shard = np.repeat(np.arange(len(tables), dtype=np.int32), [table.num_rows for table in tables])
    row = np.concatenate([np.arange(table.num_rows, dtype=np.int32) for table in tables])
    key, size, cluster = (np.concatenate([table[name].to_numpy() for table in tables]) for name in ASSIGNED.names)
    order = ranked(size, key, cluster)
    key, cluster, shard, row = key[order], cluster[order], shard[order], row[order]
    edges = [0]
    for end in [*(np.flatnonzero(cluster[1:] != cluster[:-1]) + 1).tolist(), len(cluster)]:
        if end - edges[-1] >= UNIT_DOCUMENTS or end == len(cluster):
            edges.append(end)
    pieces = [slice(begin, end) for begin, end in zip(edges[:-1], edges[1:], strict=True)]
    write_arrow(path, MEMBERS, (batch_of(MEMBERS, key[one], cluster[one], shard[one], row[one]) for one in pieces))
    return len(pieces)


def _examples(corpus: CorpusShards, gone: pa.Table) -> list[dict[str, Any]]:
    """Some of what went beside what stays for it, by a hash of their keys."""
    order = np.argsort(random_keys.derive(_EXAMPLE, gone["key"].to_numpy()), kind="stable")[:EXAMPLES]
    found = []
    for row in gone.take(pa.array(order)).to_pylist():
        dropped, kept = (_shown(corpus, *where) for where in ((row["shard"], row["row"]), (row["of_shard"], row["of_row"])))
        found.append({"cosine": round(row["cosine"], 4), "dropped": dropped, "kept": kept})
    return sorted(found, key=lambda one: -one["cosine"])


def _shown(corpus: CorpusShards, shard: int, row: int) -> dict[str, Any]:
    document = read_shard(corpus.file(corpus.names[shard])).slice(row, 1).to_pylist()[0]
    text = joined(document["sentences"], document.get("paragraphs", ()))
    return {"id": document["id"], "title": document.get("title", ""), "characters": len(text), "text": text[:EXCERPT]}


def _summary(build: Build, corpus: CorpusShards, figures: dict[str, Any], written: list[dict[str, Any]]) -> dict[str, Any]:
    kept = add_up(written)
    sources = kept["sources"].values()
    heldout = sum(one["heldout"] for one in written)
    return {
        **{name: sum(one[name] for one in sources) for name in ("documents", "bytes", "characters", "words", "sentences")},
        "dropped": {REASON: figures["dropped"]},
        "clusters": figures["clusters"],
        "cosine": figures["cosine"],
        "sources": {kind: {name: one[name] for name in ("documents", "bytes")} for kind, one in kept["sources"].items()},
        "licences": {name or UNKNOWN: one["documents"] for (name,), one in added(kept["origins"], "licence").items()},
        "heldout_documents": heldout,
        "shards": len(corpus.names),
    }
