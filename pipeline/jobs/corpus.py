"""Stage "corpus": raw text in, documents as sentences out, in Arrow shards sorted by a hash of their ids.

Sources (dumps, books, docstrings, …) are read by the readers in pipeline/corpora, cleaned and filtered by the
functions in pipeline/text, and rid of exact and near copies across all sources. What is dropped is counted by reason;
what cannot be read is named in `rejected.jsonl`. The shards are the same bytes for any number of workers and any order of
sources and files.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from pipeline import hashing, storage
from pipeline.corpora import READERS, find_reader
from pipeline.corpora.reader import Split
from pipeline.errors import DataError, did_you_mean
from pipeline.stage import Build, Outcome, Stage, StageConfig

VERSION = 1

REJECTED = "rejected.jsonl"

# What an encyclopedia's article appends to its text.
APPENDED_SECTIONS = (
    "see also", "references", "external links", "external link", "further reading", "notes", "bibliography", "sources", "footnotes",
    "citations", "notes and references", "references and notes", "works cited", "gallery", "discography", "filmography",
    "publications", "selected publications", "selected bibliography", "literature", "notes and citations", "endnotes", "general references",
)  # fmt: skip


class Source(BaseModel):
    """Where text comes from: a reader's name, and a path (for `docstrings`, a comma-separated list of packages)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    path: str = Field(min_length=1)

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind not in READERS:
            raise ValueError(f"unknown source kind; {did_you_mean(kind, READERS)}")
        return kind


class CorpusConfig(StageConfig):
    """What becomes of the sources. A zero turns a filter off.

    Attributes:
        sources: what is read, in any order.
        language: of the text, for the sentence splitter (ISO 639-1).
        heldout_fraction: share of the documents held out, chosen by their keys alone.
        shard_bytes: UTF-8 bytes of text in a shard, about; a shard is the unit of work of later stages.
        on_error: what a truncated or damaged file does: stop the stage, or be quarantined with what follows the damage.
        minimum_characters, minimum_words: documents with less are dropped as `too_short`.
        maximum_characters: documents with more are dropped as `too_long`.
        minimum_letters: share of letters among non-blank characters, below which a document is `not_prose`.
        exact_duplicates, near_duplicates: whether copies are dropped.
        dropped_sections: headings of an encyclopedia's sections that are no running text, in any case.
    """

    sources: tuple[Source, ...] = Field(min_length=1)
    language: str = Field(default="en", pattern="^[a-z]{2,3}$")
    heldout_fraction: float = Field(default=0.02, ge=0, lt=1)
    shard_bytes: int = Field(default=4 << 20, ge=1 << 10)
    on_error: Literal["stop", "quarantine"] = "stop"
    minimum_characters: int = Field(default=200, ge=0)
    minimum_words: int = Field(default=30, ge=0)
    maximum_characters: int = Field(default=5_000_000, ge=0)
    minimum_letters: float = Field(default=0.7, ge=0, le=1)
    exact_duplicates: bool = True
    near_duplicates: bool = True
    dropped_sections: tuple[str, ...] = APPENDED_SECTIONS

    @classmethod
    def path_fields(cls) -> tuple[str, ...]:
        return ("sources",)

    def external_fingerprints(self) -> dict[str, str]:
        """`source/KIND`: one hash over names and bytes of all files of that kind, whatever their order and place."""
        named: dict[str, set[tuple[str, str]]] = {}
        for source in self.sources:
            for split in find_reader(source.kind).splits(source.path):
                files = find_reader(source.kind).files(split)
                hashes = hashing.file_hashes(path for _, path in files)
                scope = f"{split.name}:" if len(files) != 1 or files[0][0] != split.name else ""
                named.setdefault(source.kind, set()).update((scope + name, hashes[path]) for name, path in files)
        return {f"source/{kind}": hashing.combine(files) for kind, files in named.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A split that is read, and the sources that it stands for."""

    split: Split
    sha256: str
    sources: tuple[Source, ...]


def expand(sources: tuple[Source, ...]) -> tuple[list[_Part], int]:
    """The splits of all sources, sorted by name, each content once; and how many files were there again.

    Two different files of one name are told apart by `@` and the beginning of their sha256.
    """
    found: dict[tuple[str, str, str], _Part] = {}
    for source in sources:
        for split in find_reader(source.kind).splits(source.path):
            files = find_reader(source.kind).files(split)
            hashes = hashing.file_hashes(path for _, path in files)
            whole = hashing.combine((name, hashes[path]) for name, path in files) if len(files) != 1 else hashes[files[0][1]]
            key = (split.kind, split.name, whole)
            known = found[key].sources if key in found else ()
            found[key] = _Part(split=split, sha256=whole, sources=tuple(dict.fromkeys((*known, source))))
    names = Counter((kind, name) for kind, name, _ in found)
    parts: dict[str, _Part] = {}
    repeated = 0
    for (kind, name, sha256), part in sorted(found.items()):
        if sha256 in parts:
            repeated += 1
            first = parts[sha256]
            parts[sha256] = _Part(
                split=first.split, sha256=sha256, sources=tuple(dict.fromkeys((*first.sources, *part.sources)))
            )
            continue
        told = name if names[kind, name] == 1 else f"{name}@{sha256[:8]}"
        split = Split(kind=kind, name=told, path=part.split.path, size=part.split.size)
        parts[sha256] = _Part(split=split, sha256=sha256, sources=part.sources)
    return list(parts.values()), repeated


def run(config: CorpusConfig, build: Build) -> Outcome:
    """Read all sources and write the corpus.

    Raises:
        DataError: a source is missing, damaged, or holds nothing to read; or nothing is left of all of them.
    """
    from pipeline.transforms.arrow import read_arrow, write_arrow
    from pipeline.transforms.corpus import PLAN, ReadSplit, WriteShard, plan
    from pipeline.transforms.runner import fan_out

    parts, repeated = expand(config.sources)
    if repeated:
        build.counters["dropped_files/duplicate_file"] += repeated
    directory = storage.join(build.scratch, "parts")
    storage.make_dirs(directory)
    names = [f"{number:06d}-{part.sha256[:8]}" for number, part in enumerate(parts)]
    read = ReadSplit(
        parts=directory,
        language=config.language,
        stop=config.on_error == "stop",
        dropped_sections=tuple(sorted({name.strip().lower() for name in config.dropped_sections})),
        minimum_characters=config.minimum_characters,
        minimum_words=config.minimum_words,
        maximum_characters=config.maximum_characters,
        minimum_letters=config.minimum_letters,
        heldout_fraction=config.heldout_fraction,
        near=config.near_duplicates,
    )
    by_size = sorted(range(len(parts)), key=lambda number: (-parts[number].split.size, number))
    units = [(names[number], {"name": names[number], "split": asdict(parts[number].split)}) for number in by_size]
    weights = [float(parts[number].split.size) for number in by_size]
    results: list[dict[str, Any]] = [{}] * len(parts)
    answers = fan_out(build, "read", units, read, unit_name="bytes", weights=weights)
    for number, answer in zip(by_size, answers, strict=True):
        results[number] = answer
        build.counters.update(answer["counters"])
    _check(config, parts, results)

    paths = [storage.join(directory, name) for name in names]
    shards = max(1, math.ceil(sum(result["bytes"] for result in results) / config.shard_bytes))
    placed = plan(
        [read_arrow(f"{path}.refs.arrow") for path in paths],
        shards,
        exact=config.exact_duplicates,
        near=config.near_duplicates,
    )
    plan_file = storage.join(build.scratch, "plan.arrow")
    write_arrow(plan_file, PLAN, placed.table.combine_chunks().to_batches())
    write = WriteShard(parts=tuple(paths), plan=plan_file, directory=build.path, shards=shards)
    ranges = [{"number": n, "begin": int(placed.begins[n]), "end": int(placed.begins[n + 1])} for n in range(shards)]
    written = fan_out(build, "write", [(f"{unit['number']:05d}", unit) for unit in ranges], write, unit_name="shards")

    for reason, count in placed.dropped.items():
        build.counters[f"dropped/{reason}"] += count
    build.counters["kept/documents"] += placed.table.num_rows
    build.counters["kept/bytes"] += int(placed.bytes.sum())
    _write_rejected(build, results)
    kinds: dict[str, dict[str, int]] = {}
    for part, documents, size in zip(parts, placed.documents.tolist(), placed.bytes.tolist(), strict=True):
        kind = kinds.setdefault(part.split.kind, {"documents": 0, "bytes": 0})
        kind["documents"] += documents
        kind["bytes"] += size
    summary = {
        "documents": placed.table.num_rows,
        "bytes": int(placed.bytes.sum()),
        "dropped": _counted(build, "dropped/"),
        "sources": dict(sorted(kinds.items())),
        "heldout_documents": sum(answer["heldout"] for answer in written),
        "shards": shards,
        "quarantined": _counted(build, "quarantined/"),
    }
    return Outcome(rows=placed.table.num_rows, summary=summary)


def _counted(build: Build, prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): count for name, count in sorted(build.counters.items()) if name.startswith(prefix)}


def _check(config: CorpusConfig, parts: list[_Part], results: list[dict[str, Any]]) -> None:
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
        reasons = {name.removeprefix("dropped/"): count for name, count in counters.items() if name.startswith("dropped/")}
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


STAGE = Stage(name="corpus", version=VERSION, config=CorpusConfig, run=run)
