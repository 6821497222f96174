"""Building an index: one unit of work per corpus shard, and reuse of an earlier index's files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cloze.core.arrow import write_arrow
from cloze.core.artifacts import artifact, fingerprints
from cloze.core.stages.stage import BuildContext, StageResult
from cloze.labs.retrieval.passages import (
    PASSAGE_FILE,
    PASSAGES,
    POSTINGS,
    postings_name,
    shard_tables,
)
from cloze.labs.retrieval.stages import INDEX_NAME as NAME
from cloze.labs.retrieval.stages import INDEX_VERSION as VERSION
from cloze.labs.retrieval.stages import IndexConfig
from cloze.pipeline.corpus.files.shards import CorpusShards, fill_missing_columns, read_shard
from cloze.pipeline.runners.fan_out import fan_out

COLUMNS = ["key", "id", "title", "url", "licence", "sentences"]


@dataclass(frozen=True, kw_only=True)
class IndexShard:
    """Write passages and postings of a shard.

    Unit: {"number": shard number, "corpus": shard, "passages": file, "postings": file}.

    Returns the numbers of documents, passages and words.
    """

    passage_words: int

    def __call__(self, unit: dict[str, Any]) -> dict[str, Any]:
        documents = fill_missing_columns(read_shard(unit["corpus"])).select(COLUMNS)
        passages, postings = shard_tables(unit["number"], documents, self.passage_words)
        for name, table, schema in (
            ("passages", passages, PASSAGES),
            ("postings", postings, POSTINGS),
        ):
            write_arrow(unit[name], schema, table.combine_chunks().to_batches())
        return {
            "documents": documents.num_rows,
            "passages": passages.num_rows,
            "words": sum(passages["words"].to_pylist()),
        }


def run(config: IndexConfig, build: BuildContext) -> StageResult:
    """Index every shard.

    Raises:
        DataError: the corpus or the index to append to is missing or damaged.
    """
    corpus = CorpusShards.open(build.inputs["corpus"])
    hashes = {entry.path: entry.sha256 for entry in artifact.read_manifest(corpus.path).files}
    earlier, files = _earlier(config, build.inputs.get("append"))
    results, units, weights = dict[str, dict[str, Any]](), [], []
    for number, (name, size) in enumerate(zip(corpus.names, corpus.sizes, strict=True)):
        target = PASSAGE_FILE + name.removeprefix("corpus-")
        source = f"{number} {hashes[name]}"  # a passage's key contains its shard's number
        if source in earlier:
            results[source] = earlier[source]
            path = str(build.inputs["append"])
            for mine, other in (
                (target, earlier[source]["file"]),
                (postings_name(target), postings_name(earlier[source]["file"])),
            ):
                fingerprints.link_unchanged(path, files[other], build.file(mine))
        else:
            unit = {
                "number": number,
                "corpus": corpus.file(name),
                "passages": build.file(target),
                "postings": build.file(postings_name(target)),
            }
            units.append((f"{number:05d}", unit))
            weights.append(float(size))
        results.setdefault(source, {})["file"] = target
    made = fan_out(
        build,
        "index",
        units,
        IndexShard(passage_words=config.passage_words),
        unit_name="bytes",
        weights=weights,
    )
    new = [source for source in results if source not in earlier]
    for source, counts in zip(new, made, strict=True):
        results[source] |= counts
    totals = {
        name: sum(int(counts[name]) for counts in results.values())
        for name in ("documents", "passages", "words")
    }
    summary = {
        **totals,
        "shards": len(corpus.names),
        "reused": len(results) - len(new),
        "sources": results,
    }
    return StageResult(rows=totals["passages"], summary=summary)


def _earlier(
    config: IndexConfig, path: str | None
) -> tuple[dict[str, dict[str, Any]], dict[str, artifact.FileEntry]]:
    """Return shards by source, and files by name, of an index with equal settings, else none."""
    if path is None:
        return {}, {}
    manifest = artifact.read_manifest(path)
    settings = NAME, VERSION, config.model_dump(mode="json")
    if (manifest.stage, manifest.version, manifest.config) != settings:
        return {}, {}
    shards = {source: dict(counts) for source, counts in manifest.summary["sources"].items()}
    return shards, {entry.path: entry for entry in manifest.files}
