"""Stage "corpus": raw text in, documents as sentences out, in Arrow shards sorted by a hash of their ids.

Sources (dumps, books, web pages, …) are read by the readers in pipeline/corpus/readers, cleaned and filtered by the steps in
pipeline/corpus/steps, rid of text of given tasks, and of exact and near copies across all sources. What is dropped is counted by reason;
what cannot be read is named in `rejected.jsonl`; `card.html` and `card.json` say what the corpus holds. The shards are the
same bytes for any number of workers and any order of sources and files.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from pipeline.core import fingerprints, storage
from pipeline.core.config import InputPath
from pipeline.core.errors import DataError
from pipeline.core.humanize import si
from pipeline.core.stage import Build, Outcome, Stage
from pipeline.corpus.readers.base import MAXIMUM_DOCUMENT_BYTES, Settings
from pipeline.corpus.sources import Part, Source, expand, source_fingerprints
from pipeline.corpus.text_config import TextConfig

if TYPE_CHECKING:
    from pipeline.corpus.dedup.signatures import MinHash
    from pipeline.corpus.extract import ReadSplit, Tasks

VERSION = 2

REJECTED = "rejected.jsonl"
CARD_PAGE, CARD = "card.html", "card.json"
PAIRS = 6  # of copies of each kind in the card


class CorpusConfig(TextConfig):
    """What becomes of the sources. A zero turns a filter off; the options of cleaning and filters are those of `TextConfig`.

    Attributes:
        sources: what is read, in any order.
        heldout_fraction: share of the documents held out, chosen by their keys alone.
        shard_bytes: UTF-8 bytes of text in a shard, about; a shard is the unit of work of later stages.
        on_error: what a truncated or damaged file does: stop the stage, or be quarantined with what follows the damage.
        max_rejected_share: above this share of what could not be read the stage stops: quarantined files, pages and lines, of these
            and all documents read. 1: never.
        keep_rejected: whether what is dropped is written to `rejected/`, with the reason and the step.
        dedup: which copies are dropped: near ones too, found by MinHash; exact ones; or none.
        dedup_bands, dedup_rows, dedup_ngram: of MinHash: bands, rows a band, and words an n-gram (datatrove: 14, 8, 5).
        dedup_similarity: the estimated Jaccard similarity of a near copy to the document that stays for it, at least; 0: whoever shares a
            band is a copy, and so is a copy's copy (connected components, as in datatrove).
        decontaminate: task files, or directories of them, whose text documents must not hold.
        decontaminate_words: words in a row that a task and a document must share (GPT-3: 13).
        decontaminate_minimum_words: a task's text shorter than that many n-grams counts as a whole from so many words on (GPT-3: 8).
        decontaminate_unit: what is dropped: the document, or its paragraphs that hold such words.
        dropped_sections: headings of an encyclopedia's sections that are no running text, in any case; None: those that are
            known in the text's language.
        kept_sections: where any are given, of an encyclopedia's articles only these are read; "" is the text before the first.
        disambiguation_templates: names of a wiki's own templates that mark disambiguation pages.
        blank_line_documents: whether in plain text (source `text`) a blank line ends a document; else a file is one.
        maximum_document_bytes: longer raw documents are dropped as `too_long` before they are held.
    """

    sources: tuple[Source, ...] = Field(min_length=1)
    heldout_fraction: float = Field(default=0.02, ge=0, lt=1)
    shard_bytes: int = Field(default=4 << 20, ge=1 << 10, le=1 << 30)
    on_error: Literal["stop", "quarantine"] = "stop"
    max_rejected_share: float = Field(default=1.0, ge=0, le=1)
    keep_rejected: bool = False
    dedup: Literal["minhash", "exact", "none"] = "minhash"
    dedup_bands: int = Field(default=14, ge=1, le=100)
    dedup_rows: int = Field(default=8, ge=1, le=100)
    dedup_ngram: int = Field(default=5, ge=1, le=100)
    dedup_similarity: float = Field(default=0.6, ge=0, le=1)
    decontaminate: tuple[InputPath, ...] = ()
    decontaminate_words: int = Field(default=13, ge=1, le=100)
    decontaminate_minimum_words: int = Field(default=8, ge=1, le=100)
    decontaminate_unit: Literal["document", "paragraph"] = "document"
    dropped_sections: tuple[str, ...] | None = None
    kept_sections: tuple[str, ...] = ()
    disambiguation_templates: tuple[str, ...] = ()
    blank_line_documents: bool = False
    maximum_document_bytes: int = Field(default=MAXIMUM_DOCUMENT_BYTES, ge=1 << 10)

    @field_validator("decontaminate", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    def external_fingerprints(self) -> dict[str, str]:
        """`source/KIND` and `decontaminate`: one hash over names and bytes of all files, whatever their order and place."""
        found = source_fingerprints(self.sources)
        if self.decontaminate:
            hashes = fingerprints.file_hashes(path for _, path in self.task_files())
            found["decontaminate"] = fingerprints.combine({(name, hashes[path]) for name, path in self.task_files()})
        return found

    def task_files(self) -> list[tuple[str, str]]:
        """(name, path) of the files that text is looked for of, by name, then by content."""
        from pipeline.corpus.dedup.task_files import task_files

        named = {file for path in self.decontaminate for file in task_files(path)}
        hashes = fingerprints.file_hashes(path for _, path in named)
        return list({(name, hashes[path]): (name, path) for name, path in sorted(named)}.values())

    def text(self) -> dict[str, Any]:
        """What of it is a `TextConfig`, as plain values."""
        return self.model_dump(mode="json", include=set(TextConfig.model_fields))

    def settings(self) -> dict[str, Any]:
        """What readers are told, as plain values."""
        from pipeline.corpus.readers.wikipedia.wiki_words import appended_sections

        values = {field.name: getattr(self, field.name) for field in fields(Settings) if field.name in type(self).model_fields}
        if self.dropped_sections is None:
            languages = self.languages if self.language == "auto" else (self.language,)
            values["dropped_sections"] = appended_sections(*languages)
        return {"stop": self.on_error == "stop", **values}

    def minhash(self) -> MinHash | None:
        """The parameters of the search for near copies, if there is one."""
        from pipeline.corpus.dedup.signatures import MinHash

        return MinHash(self.dedup_bands, self.dedup_rows, self.dedup_ngram) if self.dedup == "minhash" else None


def run(config: CorpusConfig, build: Build) -> Outcome:
    """Read all sources and write the corpus.

    Raises:
        DataError: a source is missing, damaged, or holds nothing to read; too much cannot be read; or nothing is left.
    """
    from pipeline.corpus.card.collect import collect
    from pipeline.corpus.card.page import render
    from pipeline.corpus.dedup.plan import plan
    from pipeline.corpus.write import WriteRejected, WriteShard
    from pipeline.engines.fan_out import fan_out

    parts, repeated = expand(config.sources)
    if repeated:
        build.counters["dropped_files/duplicate_file"] += repeated
    results = _read(config, build, parts)
    _write_rejected(build, results)
    check_readable(config, results)
    _check(config, parts, results)

    directory = storage.join(build.scratch, "parts")
    paths = tuple(storage.join(directory, part.name) for part in parts)
    plan_file, copies_file = (storage.join(build.scratch, name) for name in ("plan.arrow", "copies.arrow"))
    placed = plan(
        [f"{path}.refs.arrow" for path in paths],
        shard_bytes=config.shard_bytes,
        plan_file=plan_file,
        copies_file=copies_file if config.keep_rejected else None,
        minhash=config.minhash(),
        exact=config.dedup != "none",
        threshold=config.dedup_similarity,
        examples=PAIRS,
        report=lambda done: build.report.progress(done, len(parts), "parts", {"step": "plan"}),
    )
    documents = int(placed.documents.sum())
    units = [(f"{number:05d}", {"number": number}) for number in range(placed.shards)]
    write = WriteShard(parts=paths, plan=plan_file, directory=build.path, shards=placed.shards, documents=documents)
    written = fan_out(build, "write", units, write, unit_name="shards")
    if config.keep_rejected:
        rejects = WriteRejected(parts=paths, copies=copies_file, directory=build.path, shards=placed.shards)
        rows = fan_out(build, "rejected", units, rejects, unit_name="shards")
        build.counters["rejected/rows"] += sum(answer["rows"] for answer in rows)

    for reason, count in placed.dropped.items():
        build.counters[f"dropped/{reason}"] += count
    build.counters["kept/documents"] += documents
    build.counters["kept/bytes"] += int(placed.bytes.sum())
    card = collect(config, parts, results, placed, written, dict(build.counters), paths)
    storage.write_bytes(build.file(CARD), (json.dumps(card, indent=1, ensure_ascii=False) + "\n").encode())
    storage.write_bytes(build.file(CARD_PAGE), render(card).encode())
    return Outcome(rows=documents, summary=_summary(build, card))


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
        "heldout_documents": totals["heldout_documents"],
        "shards": totals["shards"],
        "quarantined": counted(build.counters, "quarantined/"),
    }


def reading(config: CorpusConfig, directory: str, tasks: Tasks | None) -> ReadSplit:
    """The function that reads one split into `directory`."""
    from pipeline.corpus.extract import ReadSplit

    return ReadSplit(
        parts=directory,
        text=config.text(),
        settings=config.settings(),
        heldout_fraction=config.heldout_fraction,
        minhash=config.minhash(),
        verified=config.dedup_similarity > 0,
        tasks=tasks,
        keep_rejected=config.keep_rejected,
    )


def task_index(config: CorpusConfig, path: str) -> Tasks | None:
    """The n-grams of the task files, written to `path` for the workers; None where there are no task files."""
    from pipeline.corpus.dedup.decontaminate import TaskIndex
    from pipeline.corpus.dedup.task_files import task_texts
    from pipeline.corpus.extract import Tasks

    if not config.decontaminate:
        return None
    texts = ((name, text) for name, file in config.task_files() for text in task_texts(file))
    index = TaskIndex.build(texts, config.decontaminate_words, config.decontaminate_minimum_words)
    if not len(index):
        raise DataError(
            f"corpus.decontaminate ({', '.join(config.decontaminate)}) holds no text of {config.decontaminate_minimum_words} words or more;"
            " name other files, or lower corpus.decontaminate_minimum_words"
        )
    index.save(path)
    return Tasks(
        path=path,
        fingerprint=config.external_fingerprints()["decontaminate"],
        unit=config.decontaminate_unit,
        minimum_characters=config.minimum_characters,
    )


def _read(config: CorpusConfig, build: Build, parts: list[Part]) -> list[dict[str, Any]]:
    """What each part's reading gave."""
    from pipeline.engines.fan_out import fan_out

    directory = storage.join(build.scratch, "parts")
    storage.make_dirs(directory)
    read = reading(config, directory, task_index(config, storage.join(build.scratch, "tasks.arrow")))
    units = [(part.name, {"name": part.name, "split": asdict(part.split)}) for part in parts]
    weights = [float(part.split.size) for part in parts]
    results = fan_out(build, "read", units, read, unit_name="bytes", weights=weights)
    for result in results:
        build.counters.update(result["counters"])
    return results


def counted(counters: Counter[str] | dict[str, int], prefix: str) -> dict[str, int]:
    """The counters under `prefix`, without it."""
    return {name.removeprefix(prefix): count for name, count in sorted(counters.items()) if name.startswith(prefix)}


def check_readable(config: CorpusConfig, results: list[dict[str, Any]]) -> None:
    """Raise `DataError` where more could not be read than the config allows."""
    counters = sum((Counter(result["counters"]) for result in results), Counter[str]())
    bad = counted(counters, "quarantined/")
    refused, documents = sum(bad.values()), counters["read/documents"]
    share = refused / max(1, refused + documents)
    if share > config.max_rejected_share:
        told = ", ".join(f"{reason} {count:,}" for reason, count in sorted(bad.items(), key=lambda pair: (-pair[1], pair[0])))
        first = next(entry for result in results for entry in result["rejected"])
        raise DataError(
            f"{refused:,} of {refused + documents:,} files, pages and lines could not be read ({told}; the first: {first['file']}:"
            f" {first['sentence']}), more than corpus.max_rejected_share ({config.max_rejected_share:g}) allows; mend the sources"
            f" ({REJECTED} in the output names each), or raise the limit"
        )


def _check(config: CorpusConfig, parts: list[Part], results: list[dict[str, Any]]) -> None:
    """Every source must have given something to read, and something must be left of all of them."""
    for source in config.sources:
        own = [result for part, result in zip(parts, results, strict=True) if source in part.sources]
        if not any(result["counters"].get("read/documents") for result in own):
            rejected = [entry for result in own for entry in result["rejected"]]
            why = f" ({rejected[0]['file']}: {rejected[0]['sentence']})" if rejected else ""
            raise DataError(
                f"source {source.kind} at {source.path} holds no document{why}; check the path, or leave the source out"
            )
    if not any(result["documents"] for result in results):
        counters = sum((Counter(result["counters"]) for result in results), Counter[str]())
        reasons = counted(counters, "dropped/")
        told = ", ".join(
            f"{reason} {count:,}" for reason, count in sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
        )
        first = config.sources[0]
        raise DataError(
            f"of the {counters['read/documents']:,} documents of {first.path}{' and other sources' if len(config.sources) > 1 else ''}"
            f" none is left ({told}); give more text, or loosen the filters of the corpus config"
        )


def _write_rejected(build: Build, results: list[dict[str, Any]]) -> None:
    lines = [entry for result in results for entry in result["rejected"]]
    if lines:
        lines.sort(key=lambda entry: (entry["file"], entry["offset"], entry["reason"]))
        text = "".join(json.dumps(entry, ensure_ascii=False, sort_keys=True) + "\n" for entry in lines)
        storage.write_bytes(build.file(REJECTED), text.encode("utf-8", "surrogatepass"))


def headline(summary: Mapping[str, Any]) -> str:
    """Documents, bytes of text, and how many documents were dropped."""
    dropped = sum(summary.get("dropped", {}).values())
    return f"{summary['documents']:,} documents, {si(summary['bytes'])}B, {dropped:,} dropped"


STAGE = Stage(
    name="corpus",
    version=VERSION,
    config=CorpusConfig,
    run=run,
    volatile=(CARD_PAGE, CARD),  # the card says how the corpus came to be; the content hash is of the text alone
    worker="pipeline",
    headline=headline,
)
