"""Stage "corpus": raw text in, documents as sentences out, in Arrow shards sorted by a hash of their ids.

Sources (dumps, books, web pages, …) are read by the readers in pipeline/corpus/readers, cleaned and filtered by the steps in
pipeline/corpus/steps, rid of text of given tasks, and of exact and near duplicates across all sources. What is dropped is counted by
reason; what cannot be read is named in `unreadable.jsonl`; `card.html` and `card.json` say what the corpus holds. The shards are
the same bytes for any number of workers and any order of sources and files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipeline.core import storage
from pipeline.core.humanize import si
from pipeline.core.stage import Build, Outcome, Stage
from pipeline.corpus.bundles import Bundle, bundled
from pipeline.corpus.checks import UNREADABLE, Results, check_not_empty, check_readable, counted
from pipeline.corpus.config import CorpusConfig
from pipeline.corpus.cost import COSTS, beyond_one_process
from pipeline.corpus.sources import plan_reading
from pipeline.corpus.steps.chain import prepare_steps

if TYPE_CHECKING:
    from pipeline.corpus.dedup.plan import Plan

VERSION = 8  # 8: a column for what infoboxes say; ranges and sums of convert

CARD_PAGE, CARD = "card.html", "card.json"
PAIRS = 6  # of duplicates of each kind in the card


def run(config: CorpusConfig, build: Build) -> Outcome:
    """Read all sources and write the corpus.

    Raises:
        DataError: a source is missing, damaged, or holds nothing to read; too much cannot be read; or nothing is left.
    """
    from pipeline.corpus.card.collect import collect
    from pipeline.corpus.card.render import render

    slices, repeated = plan_reading(config.listed())
    if repeated:
        build.counters["dropped_files/duplicate_file"] += repeated
    bundles = bundled(slices)
    results = _read(config, build, bundles)
    unreadable = _write_unreadable(build, results)
    check_readable(config, results)
    check_not_empty(config, bundles, results)
    parts = tuple(storage.join(_parts(build), one.part) for one in bundles)
    read = [result["documents"] for result in results]
    placed, written = _write(config, build, parts, read, [one.kind for one in bundles])

    for reason, count in placed.dropped.items():
        build.counters[f"dropped/{reason}"] += count
    documents = placed.documents
    build.counters["kept/documents"] += documents
    build.counters["kept/bytes"] += placed.bytes
    card = collect(config, bundles, results, placed, written, dict(build.counters), parts)
    storage.write_bytes(build.file(CARD), (json.dumps(card, indent=1, ensure_ascii=False) + "\n").encode())
    storage.write_bytes(build.file(CARD_PAGE), render(card).encode())
    return Outcome(rows=documents, summary=_summary(build, card) | ({"first_unreadable": unreadable} if unreadable else {}))


def _parts(build: Build) -> str:
    return storage.join(build.scratch, "parts")


def _read(config: CorpusConfig, build: Build, bundles: list[Bundle]) -> list[dict[str, Any]]:
    """Read every bundle into its part. Returns what each reading gave."""
    from pipeline.corpus.extract import ReadBundle
    from pipeline.engines.fan_out import fan_out

    storage.make_dirs(_parts(build))
    read = ReadBundle(parts=_parts(build), config=config, prepared=prepare_steps(config, build.scratch))
    units = [(one.part, one.unit()) for one in bundles]
    results = fan_out(build, "read", units, read, unit_name="bytes", weights=[float(one.size) for one in bundles])
    for result in results:
        build.counters.update(result["counters"])
    return results


def _write(
    config: CorpusConfig, build: Build, parts: tuple[str, ...], documents: list[int], kinds: list[str]
) -> tuple[Plan, list[dict[str, Any]]]:
    """Find the duplicates and write the shards. Returns the plan, and the statistics of each shard.

    Args:
        parts: their files without endings.
        documents, kinds: of each part.
    """
    from pipeline.corpus.dedup.plan import Wanted, plan
    from pipeline.corpus.write import WriteRejected, WriteShard, index_rejected
    from pipeline.engines.fan_out import fan_out

    plan_file, duplicates, index = (
        storage.join(build.scratch, f"{name}.arrow") for name in ("plan", "duplicates", "rejected-index")
    )
    references = [f"{path}.refs.arrow" for path in parts]
    wanted = Wanted(
        shard_bytes=config.shard_bytes,
        plan_file=plan_file,
        duplicates_file=duplicates if config.keep_rejected else None,
        minhash=config.minhash(),
        exact=config.dedup != "none",
        threshold=config.dedup_similarity,
        examples=PAIRS,
        mix=config if config.mixes else None,
        kinds=kinds,
    )
    if beyond_one_process(build.execution, sum(documents)):
        from pipeline.corpus.dedup.shuffled.search import shuffled_plan

        placed = shuffled_plan(build, references, documents, wanted, build.execution.driver_references)
    else:
        placed = plan(references, wanted, lambda done: build.report.progress(done, len(parts), "parts", {"step": "plan"}))
    units = [(f"{number:05d}", {"number": number}) for number in range(placed.shards)]
    write = WriteShard(parts=parts, plan=plan_file, directory=build.path, shards=placed.shards, documents=placed.documents)
    written = fan_out(build, "write", units, write, unit_name="shards")
    if config.keep_rejected:
        index_rejected(parts, placed.shards, index)
        rejects = WriteRejected(parts=parts, index=index, duplicates=duplicates, directory=build.path, shards=placed.shards)
        rows = fan_out(build, "rejected", units, rejects, unit_name="shards")
        build.counters["rejected/rows"] += sum(answer["rows"] for answer in rows)
    return placed, written


def _summary(build: Build, card: dict[str, Any]) -> dict[str, Any]:
    totals, found = card["totals"], card["duplicates"]
    return {
        "documents": totals["documents"],
        "bytes": totals["bytes"],
        "characters": totals["characters"],
        "words": totals["words"],
        "sentences": totals["sentences"],
        "dropped": counted(build.counters, "dropped/"),
        "dropped_lines": counted(build.counters, "dropped_lines/"),
        "duplicates": {name: found[name] for name in ("exact", "near", "same_id", "groups")},
        "contaminated": {task["name"]: task["documents"] for task in card["decontamination"]["tasks"] if task["documents"]},
        "languages": card["languages"]["shares"],
        "sources": {source["kind"]: {name: source[name] for name in ("documents", "bytes")} for source in card["sources"]},
        "licences": {one["licence"]: one["documents"] for one in card["licences"]},
        **({"mixture": card["mixture"]} if card["mixture"] else {}),
        "heldout_documents": totals["heldout_documents"],
        "shards": totals["shards"],
        "quarantined": counted(build.counters, "quarantined/"),
    }


def _write_unreadable(build: Build, results: Results) -> str:
    """Returns the first of them in words; nothing where all could be read."""
    lines = [entry for result in results for entry in result["unreadable"]]
    if lines:
        lines.sort(key=lambda entry: (entry["file"], entry["offset"], entry["reason"]))
        text = "".join(json.dumps(entry, ensure_ascii=False, sort_keys=True) + "\n" for entry in lines)
        storage.write_bytes(build.file(UNREADABLE), text.encode("utf-8", "surrogatepass"))
    return f"{lines[0]['file']}: {lines[0]['sentence']}" if lines else ""


def headline(summary: Mapping[str, Any]) -> str:
    """Documents, bytes of text, how many documents were dropped, and what could not be read."""
    dropped = sum(summary.get("dropped", {}).values())
    told = f"{summary['documents']:,} documents, {si(summary['bytes'])}B, {dropped:,} dropped"
    first = summary.get("first_unreadable")
    return f"{told}; {sum(summary['quarantined'].values()):,} could not be read, the first: {first}" if first else told


STAGE = Stage(
    name="corpus",
    version=VERSION,
    config=CorpusConfig,
    run=run,
    volatile=(CARD_PAGE, CARD),  # the card says how the corpus came to be; the content hash is of the text alone
    worker="pipeline",
    headline=headline,
    costs=COSTS,
    compared=("documents", "bytes", "words"),
)
