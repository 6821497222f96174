"""Corpus stage: the sources of a config, and the slices that they come to.

A source's identity is the content of its files, and for structured ones the columns that are read: neither the place where a
file lies, nor the order, nor how a file is cut for its readers. What the config says of where it is from stands in the documents, and counts.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from pipeline.core import fingerprints
from pipeline.core.config import InputPath
from pipeline.core.errors import did_you_mean
from pipeline.corpus.provenance import NOTHING_KNOWN, Origin, joined, licence_name
from pipeline.corpus.readers import READERS, find_reader
from pipeline.corpus.readers.base import Slice
from pipeline.corpus.readers.tables.records import FIELDS


class Source(BaseModel):
    """Where text comes from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    """The name of a reader: `wikipedia`, `books`, `jsonl`, …"""

    path: InputPath = Field(min_length=1)
    """A file, a directory or a pattern; for `docstrings`, a comma-separated list of packages."""

    fields: dict[str, str] = Field(default_factory=dict)
    """What the columns of a structured source are called that hold `text`, `id`, `title`, `url` and `licence`."""

    licence: str = ""
    """Of its text: an SPDX name (CC-BY-SA-4.0) or any other; by default what the source says, where it does."""

    name: str = ""
    """What it is called; by default what the source says, such as `enwiki`."""

    url: str = ""
    """Where it was got."""

    date: str = Field(default="", pattern=r"^(\d{4}(-\d\d){0,2})?$")
    """Of the snapshot: a year, a month or a day, such as 2024-05-01; by default what a dump's name says."""

    @classmethod
    def names_files(cls, values: Mapping[str, Any]) -> bool:
        """Whether `path` names files, and not something else such as packages (see `pipeline.core.config.resolve_paths`)."""
        kind = values.get("kind")
        return kind not in READERS or not find_reader(str(kind)).takes_names

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind not in READERS:
            raise ValueError(f"unknown source kind; {did_you_mean(kind, READERS)}")
        return kind

    @field_validator("date", mode="before")
    @classmethod
    def _day(cls, date: Any) -> Any:
        return str(date) if isinstance(date, (int, datetime.date)) else date  # as YAML reads 2024 and 2024-05-01

    @field_validator("licence")
    @classmethod
    def _licence(cls, licence: str) -> str:
        return licence_name(licence)

    @field_validator("name", "url")
    @classmethod
    def _one_line(cls, text: str) -> str:
        return " ".join(text.split())

    @field_validator("fields")
    @classmethod
    def _known_fields(cls, fields: dict[str, str]) -> dict[str, str]:
        for name in fields:
            if name not in FIELDS:
                raise ValueError(f"unknown field {name!r}; {did_you_mean(name, FIELDS)}")
        return fields

    @property
    def origin(self) -> Origin:
        """What the config says of where it is from."""
        return Origin(name=self.name, url=self.url, date=self.date, licence=self.licence)

    def __hash__(self) -> int:
        return hash((self.kind, self.path, tuple(sorted(self.fields.items())), self.origin))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSlice:
    """A slice of a source, as it was found.

    Attributes:
        source: the source.
        slice: what a reader reads.
        files: (name, sha256) of the files that its documents come from.
    """

    source: Source
    slice: Slice
    files: tuple[tuple[str, str], ...]

    @property
    def is_file(self) -> bool:
        """Whether it is a file or of one, and not of several, such as a package."""
        return len(self.files) == 1 and self.files[0][0] == self.slice.name


def list_sources(sources: Iterable[Source]) -> tuple[ListedSlice, ...]:
    """All slices of all sources, each file hashed once; `DataError` where a source holds nothing of its kind."""
    found: list[tuple[Source, Slice, list[tuple[str, str]]]] = []
    for source in dict.fromkeys(sources):
        reader, columns = find_reader(source.kind), tuple(sorted(source.fields.items()))
        for file_slice in reader.slices(source.path):
            found.append((source, replace(file_slice, fields=columns) if columns else file_slice, reader.files(file_slice)))
    hashes = fingerprints.file_fingerprints({path for _, _, files in found for _, path in files})
    return tuple(
        ListedSlice(source=source, slice=file_slice, files=tuple((name, hashes[path]) for name, path in files))
        for source, file_slice, files in found
    )


def source_fingerprints(listed: Iterable[ListedSlice]) -> dict[str, str]:
    """`source/KIND`: one hash over names and bytes of all files of that kind, whatever their order and place."""
    named: dict[str, set[tuple[str, str]]] = {}
    for one in listed:
        scope = "" if one.is_file else f"{one.slice.name}:"
        if one.slice.fields:
            scope = f"{json.dumps(dict(one.slice.fields), sort_keys=True)}:{scope}"
        if one.source.origin != NOTHING_KNOWN:
            scope = f"{json.dumps(asdict(one.source.origin), sort_keys=True)}:{scope}"
        named.setdefault(one.slice.kind, set()).update((scope + name, sha256) for name, sha256 in one.files)
    return {f"source/{kind}": fingerprints.combine(files) for kind, files in named.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSlice:
    """A slice that is read, and the sources that it stands for."""

    slice: Slice
    sha256: str  # of the file, or over the files
    sources: tuple[Source, ...]

    @property
    def part(self) -> str:
        """The name of its part; says what is read, so that an interrupted build never takes another part for it."""
        cut = f"-{self.slice.span[0]}-{self.slice.span[1]}" if self.slice.span else ""
        fields = f"-{fingerprints.combine(self.slice.fields)[:8]}" if self.slice.fields else ""
        origin = asdict(self.slice.origin)
        told = f"-{fingerprints.combine(origin.items())[:8]}" if any(origin.values()) else ""
        return f"{self.sha256[:16]}{fields}{told}{cut}"


_Content = tuple[str, tuple[tuple[str, str], ...]]  # sha256 of the whole, and the columns that are read
_File = tuple[str, str, str, tuple[tuple[str, str], ...]]  # kind, name, sha256, columns


def plan_reading(listed: Iterable[ListedSlice]) -> tuple[list[PlannedSlice], int]:
    """The slices of all sources, each content once; and how many files were there again.

    They come in the order of their kinds, names and places in the file. Two different files of one name are told apart by `@` and
    the beginning of their sha256. Of a file that is there again, once whole and once cut, the finer cut is read; what several sources
    say of it is joined.
    """
    found = _by_file(listed)
    names = Counter((kind, name) for kind, name, _, _ in found)
    planned: dict[_Content, list[PlannedSlice]] = {}
    repeated = 0
    for (kind, name, sha256, fields), given in sorted(found.items(), key=lambda item: item[0]):
        first = planned.get((sha256, fields))
        if first is not None:
            repeated += 1
            both = tuple(dict.fromkeys((*first[0].sources, *given)))
            planned[sha256, fields] = [replace(one, sources=both) for one in first]
            continue
        mark = fingerprints.combine([("file", sha256), *fields]) if fields else sha256
        told = name if names[kind, name] == 1 else f"{name}@{mark[:8]}"
        finest = max(given.values(), key=len)
        planned[sha256, fields] = [
            PlannedSlice(slice=replace(one, name=told), sha256=sha256, sources=tuple(given))
            for one in sorted(finest, key=lambda one: one.span or (0, 0))
        ]
    return [
        replace(one, slice=replace(one.slice, origin=joined(source.origin for source in one.sources)))
        for cut in planned.values()
        for one in cut
    ], repeated


def _by_file(listed: Iterable[ListedSlice]) -> Mapping[_File, Mapping[Source, list[Slice]]]:
    """The slices of each file, by the sources that name it."""
    found: dict[_File, dict[Source, list[Slice]]] = {}
    for one in listed:
        whole = one.files[0][1] if len(one.files) == 1 else fingerprints.combine(one.files)
        key = one.slice.kind, one.slice.name, whole, one.slice.fields
        own = found.setdefault(key, {}).setdefault(one.source, [])
        if all(one.slice.span != known.span for known in own):  # a file that the source names twice
            own.append(one.slice)
    return found
