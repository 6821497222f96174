"""Stage corpus: reads raw text, writes documents as sentences in Arrow shards sorted by id hash."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cloze.core import storage
from cloze.core.errors import DataError
from cloze.core.humanize import agree, format_count, most_first
from cloze.core.stages.stage import BuildContext, Stage, StageResult
from cloze.pipeline.corpus.config import COSTS, CorpusConfig
from cloze.pipeline.corpus.readers.base import counted
from cloze.pipeline.corpus.sources import SliceGroup, group_slices, plan_reading
from cloze.pipeline.corpus.steps.chain import prepare_steps, settings
from cloze.pipeline.runners.sizes import destination_count, least_bytes, places_per_unit

if TYPE_CHECKING:
    from cloze.pipeline.corpus.duplicates.plan import CorpusPlan


UNREADABLE = "unreadable.jsonl"
MINOR = 0.02  # share of the documents below which a language is not named
MOST = 0.5  # share of documents that one reason may drop without a warning

# Option behind each reason, by prefix. Pages without text, such as redirects, have other reasons.
SETTINGS = {**settings(), "exact_duplicate": "dedup", "near_duplicate": "dedup_similarity"}

Results = Sequence[Mapping[str, Any]]  # results of `ReadSliceGroup`, one per slice group


def most_dropped(dropped: Mapping[str, int], retained: int) -> str:
    """Return a warning if one reason drops more than half of the documents; else ""."""
    texts = {name: count for name, count in dropped.items() if name.startswith(tuple(SETTINGS))}
    reason, count = max(texts.items(), key=lambda pair: pair[1], default=("", 0))
    total = retained + sum(texts.values())
    if count <= MOST * total:
        return ""
    setting = SETTINGS[max(filter(reason.startswith, SETTINGS), key=len)]
    return (
        f"{reason} dropped {count:,} of {total:,} documents ({100 * count / total:.0f} %): if they "
        f"are good text, change corpus.{setting}; card.html shows some of them"
    )


def _by_count(counts: Mapping[str, int]) -> str:
    """Return `name count` of each entry, largest count first."""
    return ", ".join(f"{name} {count:,}" for name, count in most_first(counts).items())


def check_readable(config: CorpusConfig, results: Results) -> None:
    """Check that the unreadable share is within the limit.

    Raises:
        DataError: more than `config.unreadable_share` of files, pages and lines is unreadable.
    """
    counters = sum((Counter(result["counters"]) for result in results), Counter[str]())
    bad = counted(counters, "quarantined/")
    refused, documents = sum(bad.values()), counters["read/documents"]
    share = refused / max(1, refused + documents)
    if share > config.unreadable_share:
        raise DataError(
            f"{refused:,} of {refused + documents:,} files, pages and lines could not be read "
            f"({_by_count(bad)}; such as {_examples(_unreadable(results))}), more than "
            f"corpus.max_unreadable_share ({config.unreadable_share:g}). Repair or remove the "
            f"files listed in {UNREADABLE}, or raise the limit"
        )


def check_not_empty(config: CorpusConfig, groups: Sequence[SliceGroup], results: Results) -> None:
    """Check that every source has documents and that cleaning left any.

    Raises:
        DataError: a source without documents, or no documents left.
    """
    for source in config.sources:
        source_results = [
            result for group, result in zip(groups, results, strict=True) if source in group.sources
        ]
        if not any(result["counters"].get("read/documents") for result in source_results):
            unreadable = [entry for result in source_results for entry in result["unreadable"]]
            detail = (
                f" ({unreadable[0]['file']}: {unreadable[0]['sentence']})" if unreadable else ""
            )
            raise DataError(
                f"source {source.kind} at {source.path} contains no documents{detail}"
                f"{_passed_over(config)}. Check the path, or remove the source"
            )
    if not any(result["documents"] for result in results):
        counters = sum((Counter(result["counters"]) for result in results), Counter[str]())
        reasons = _by_count(counted(counters, "dropped/"))
        first = config.sources[0]
        read = agree(f"of the {counters['read/documents']:,} documents")
        others = " and other sources" if len(config.sources) > 1 else ""
        raise DataError(
            f"{read} of {first.path}{others} none is left ({reasons}){_passed_over(config)}. Add "
            f"text, or relax the filters of the corpus config"
        )


def _passed_over(config: CorpusConfig) -> str:
    """Return the sentence on files that no source reads, for the end of an error; or ""."""
    return "".join(f"; {sentence}" for sentence in config.listing().describe())


# 10: licences with brackets, years of dumps, language_probability of web sources; scripts without
# spaces: paragraphs, personal data, encodings
# 11: telephone numbers of 13 more languages
# 12: templates, lists and sections of wikis; books, encodings, languages, ids, duplicates, crawls
# 14: with language: auto, a dump's documents have the dump's language
VERSION = 15

CARD_PAGE, CARD = "card.html", "card.json"
PAIRS = 6  # example pairs of duplicates of each kind in the card


def run(config: CorpusConfig, build: BuildContext) -> StageResult:
    """Read all sources and write the corpus.

    Raises:
        DataError: a source is missing, damaged or without documents; too much is unreadable; or no
            documents are left.
    """
    from cloze.pipeline.corpus.card.card import collect, render
    from cloze.pipeline.corpus.read.detect_language import with_detected_language

    slices, repeated = plan_reading(config.listed())
    if repeated:
        build.counters["dropped_files/duplicate_file"] += repeated
    build.counters.update(config.listing().counters())
    config = with_detected_language(slices, config)
    groups = group_slices(slices, in_store=not storage.is_local(build.path))
    results = _read(config, build, groups)
    unreadable = _write_unreadable(build, results)
    check_not_empty(config, groups, results)
    check_readable(config, results)
    part_paths = tuple(storage.join(_parts(build), group.part) for group in groups)
    corpus_plan, shard_statistics = _write(config, build, part_paths, groups, results)

    for reason, count in corpus_plan.dropped.items():
        build.counters[f"dropped/{reason}"] += count
    if corpus_plan.renamed:
        build.counters["renamed/duplicate_id"] += corpus_plan.renamed
    documents = corpus_plan.documents
    build.counters["kept/documents"] += documents
    build.counters["kept/bytes"] += corpus_plan.bytes
    card = collect(
        config, groups, results, corpus_plan, shard_statistics, dict(build.counters), part_paths
    )
    storage.write_bytes(
        build.file(CARD), (json.dumps(card, indent=1, ensure_ascii=False) + "\n").encode()
    )
    storage.write_bytes(build.file(CARD_PAGE), render(card).encode())
    summary = (
        _summary(build, card)
        | {"passed_over": card["passed_over"], "renamed": corpus_plan.renamed}
        | {"unconfirmed": corpus_plan.unconfirmed, "split": corpus_plan.split}
        | ({"first_unreadable": unreadable} if unreadable else {})
    )
    if config.identify is not None:
        summary["read_languages"] = counted(build.counters, "language/")
        summary |= {"language": config.language} if config.language else {}
    return StageResult(rows=documents, summary=summary)


def _parts(build: BuildContext) -> str:
    return storage.join(build.scratch, "parts")


def _read(
    config: CorpusConfig, build: BuildContext, groups: list[SliceGroup]
) -> list[dict[str, Any]]:
    """Read every slice group into its intermediate files; return the results."""
    from cloze.pipeline.corpus.read.read_and_clean import ReadSliceGroup
    from cloze.pipeline.runners.fan_out import fan_out

    storage.make_dirs(_parts(build))
    read_group = ReadSliceGroup(
        parts=_parts(build), config=config, prepared=prepare_steps(config, build.scratch)
    )
    units = [(group.part, group.unit()) for group in groups]
    results = fan_out(
        build,
        "read",
        units,
        read_group,
        unit_name="bytes",
        weights=[float(group.size) for group in groups],
    )
    for result in results:
        build.counters.update(result["counters"])
    return results


def _write(
    config: CorpusConfig,
    build: BuildContext,
    parts: tuple[str, ...],
    groups: Sequence[SliceGroup],
    results: Results,
) -> tuple[CorpusPlan, list[dict[str, Any]]]:
    """Find duplicates and write the shards. Return the plan and the statistics of each shard.

    Args:
        parts: paths of the intermediate files without endings, one per group.
        groups, results: of the reading.
    """
    from cloze.pipeline.corpus.duplicates.plan import plan
    from cloze.pipeline.corpus.duplicates.rules import CorpusPlanRequest

    plans = storage.join(build.scratch, "plans")
    request = CorpusPlanRequest(
        shard_bytes=config.shard_bytes,
        directory=plans,
        keep_dropped=config.keep_dropped,
        minhash=config.minhash(),
        exact=config.dedup != "none",
        threshold=config.dedup_similarity,
        examples=PAIRS,
        mix=config if config.mixes else None,
        parts=parts,
        kinds=[group.kind for group in groups],
        sizes=[result["bytes"] for result in results],
    )
    corpus_plan = plan(build, request, sum(result["documents"] for result in results))
    return corpus_plan, _write_shards(config, build, plans, corpus_plan)


def _write_shards(
    config: CorpusConfig, build: BuildContext, plans: str, corpus_plan: CorpusPlan
) -> list[dict[str, Any]]:
    """Sort the documents by shard and write the shards; return the statistics of each."""
    from cloze.pipeline.corpus.write.write import SortDocuments, WriteShards
    from cloze.pipeline.runners.exchange import Exchange
    from cloze.pipeline.runners.fan_out import fan_out

    shards, count = corpus_plan.shards, corpus_plan.units
    total, least = corpus_plan.bytes, least_bytes(build.scratch, 1)
    group = places_per_unit(shards, min(destination_count(total, count), total // least))
    documents, dropped = (
        Exchange(
            directory=storage.join(build.scratch, name), runs=count, places=shards, group=group
        )
        for name in ("documents", "dropped")
    )
    rejects = dropped if config.keep_dropped else None
    sort = SortDocuments(plans=plans, documents=documents, dropped=rejects)
    runs = [(f"{number:05d}-of-{count:05d}", number) for number in range(count)]
    fan_out(build, "sort", runs, sort, unit_name="runs")
    for name, exchange in (("documents", documents), ("dropped", rejects)):
        if exchange is not None:
            exchange.connect(build, f"connect-{name}")
    write = WriteShards(
        runs=documents, dropped=rejects, directory=build.path, documents=corpus_plan.documents
    )
    ranges = [(first, min(first + group, shards)) for first in range(0, shards, group)]
    units = [(f"{first:05d}-{end:05d}", number) for number, (first, end) in enumerate(ranges)]
    weights = [float(end - first) for first, end in ranges]
    results = fan_out(build, "shards", units, write, unit_name="shards", weights=weights)
    if config.keep_dropped:
        build.counters["dropped_texts/rows"] += sum(result["dropped"] for result in results)
    return [shard for result in results for shard in result["shards"]]


def _summary(build: BuildContext, card: dict[str, Any]) -> dict[str, Any]:
    totals, duplicates = card["totals"], card["duplicates"]
    return {
        **{
            name: totals[name]
            for name in ("documents", "bytes", "characters", "words", "sentences")
        },
        "dropped": counted(build.counters, "dropped/"),
        "dropped_lines": counted(build.counters, "dropped_lines/"),
        "encodings": counted(build.counters, "encoding/"),
        "duplicates": {name: duplicates[name] for name in ("exact", "near", "same_id", "groups")},
        "contaminated": {
            task["name"]: task["documents"]
            for task in card["decontamination"]["tasks"]
            if task["documents"]
        },
        "languages": card["languages"]["shares"],
        "sources": {
            source["kind"]: {name: source[name] for name in ("documents", "bytes")}
            for source in card["sources"]
        },
        "licences": {licence["licence"]: licence["documents"] for licence in card["licences"]},
        **({"mixture": card["mixture"]} if card["mixture"] else {}),
        "heldout_documents": totals["heldout_documents"],
        "shards": totals["shards"],
        "quarantined": counted(build.counters, "quarantined/"),
    }


def _unreadable(results: Results) -> list[dict[str, Any]]:
    """Return the unreadable places, by file and place."""
    entries = [entry for result in results for entry in result["unreadable"]]
    return sorted(entries, key=lambda entry: (entry["file"], entry["offset"], entry["reason"]))


def _examples(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return the first place of each of up to three files as text."""
    places = {each["file"]: f"{each['file']}: {each['sentence']}" for each in reversed(entries)}
    return ", ".join([*reversed(places.values())][:3])


def _write_unreadable(build: BuildContext, results: Results) -> str:
    """Write the list of unreadable places; return some as text, or "" if there is none."""
    entries = _unreadable(results)
    if entries:
        text = "".join(
            json.dumps(entry, ensure_ascii=False, sort_keys=True) + "\n" for entry in entries
        )
        storage.write_bytes(build.file(UNREADABLE), text.encode("utf-8", "surrogatepass"))
    return _examples(entries)


def _rules_used(languages: Mapping[str, int], main: str) -> str:
    """Return which rules were used, by documents of each language; "" for English text."""
    known = {name: count for name, count in languages.items() if name != "unknown"}
    major = {name: count for name, count in known.items() if count > MINOR * sum(known.values())}
    if len(major) > 1:
        return (
            f"the text is in several ({_by_count(major)} documents), so each document's own rules "
            f"were used; set --language auto"
        )
    language = next(iter(major), main)
    if languages and not language:
        return "none could be told, so English rules were used; set --language"
    if language in ("", "en"):
        return ""
    return f"the text is in {language!r}, so its rules were used; set --language {language}"


_COUNTED = {
    "renamed": "have the id of another document, so their ids end in #2, #3, …: is the column the "
    "right one (--column id=NAME)?",
    "unconfirmed": "near the limit of similarity were kept, compared with some of the documents "
    "like them only",
    "split": "are linked in groups too large for one process, which were compared in parts: some "
    "near duplicates may have stayed",
}


def headline(summary: Mapping[str, Any]) -> str:
    """Return a line with documents, bytes, drops and warnings."""
    dropped = summary.get("dropped", {})
    messages = [
        f"{summary['documents']:,} documents, {format_count(summary['bytes'])}B, "
        f"{sum(dropped.values()):,} dropped"
    ]
    if warning := most_dropped(dropped, summary["documents"]):
        messages.append(f"warning: {warning}")
    if rules := _rules_used(summary.get("read_languages", {}), summary.get("language", "")):
        messages.append(f"warning: no language is set and {rules}")
    messages += summary.get("passed_over", ())
    messages += [
        f"{summary[name]:,} {what}" for name, what in _COUNTED.items() if summary.get(name)
    ]
    if encodings := summary.get("encodings"):
        messages.append(f"texts that are not UTF-8 were read as {_by_count(encodings)}")
    if first := summary.get("first_unreadable"):
        messages.append(
            f"{sum(summary['quarantined'].values()):,} could not be read, such as {first} "
            f"(all: {UNREADABLE})"
        )
    return "; ".join(messages)


STAGE = Stage(
    name="corpus",
    version=VERSION,
    config=CorpusConfig,
    run=run,
    unhashed_files=(CARD_PAGE, CARD),  # the content hash covers the text only, not the card
    worker="cloze.pipeline",
    headline=headline,
    cost_model=COSTS,
    comparison_metrics=("documents", "bytes", "words"),
)
