"""Sources of a config, their slices, and the groups of slices that are read together.

Small files share an intermediate file, because each one costs files, fsyncs and an entry in later
steps. The groups depend on the sources only, so that an interrupted build finds its files again.
"""

from __future__ import annotations

import datetime
import json
import posixpath
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from cloze.core import storage
from cloze.core.artifacts import fingerprints
from cloze.core.config import InputPath
from cloze.core.errors import did_you_mean
from cloze.pipeline.corpus.provenance import NOTHING_KNOWN, Origin, licence_name, merge_origins
from cloze.pipeline.corpus.readers import READERS, find_reader
from cloze.pipeline.corpus.readers.base import Slice
from cloze.pipeline.corpus.readers.records import FIELDS

BUNDLE_BYTES = (
    1 << 20
)  # limit for small sources, so that many small files still give work to many workers
BUNDLE_SLICES = 1 << 10
LARGE_BYTES, BUNDLES = (
    1 << 30,
    1 << 10,
)  # larger sources make about this many groups: every writer opens all files


@dataclass(frozen=True, slots=True)
class SliceGroup:
    """Slices of one kind and the same sources that go to one intermediate file."""

    slices: tuple[PlannedSlice, ...]

    @property
    def kind(self) -> str:
        """Return the kind of the slices."""
        return self.slices[0].slice.kind

    @property
    def sources(self) -> tuple[Source, ...]:
        """Return the sources of the slices."""
        return self.slices[0].sources

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return sum(one.slice.size for one in self.slices)

    @property
    def part(self) -> str:
        """Return the name of the intermediate file: a hash of what is read."""
        if len(self.slices) == 1:
            return self.slices[0].part
        names = (
            (f"{number:04d}/{one.slice.name}", one.part) for number, one in enumerate(self.slices)
        )
        return f"{fingerprints.combine_hashes(names)[:16]}-{len(self.slices)}"

    def unit(self) -> dict[str, Any]:
        """Return the unit for `ReadSliceGroup`."""
        return {"name": self.part, "slices": [one.slice.as_json() for one in self.slices]}


def group_slices(slices: Iterable[PlannedSlice]) -> list[SliceGroup]:
    """Group consecutive small slices of the same kind and sources."""
    slices = list(slices)
    total = sum(one.slice.size for one in slices)
    most_bytes = total // BUNDLES if total > LARGE_BYTES else BUNDLE_BYTES
    most_slices = max(BUNDLE_SLICES, len(slices) // BUNDLES)
    found: list[list[PlannedSlice]] = []
    size = 0
    for one in slices:
        size += one.slice.size
        last = found[-1] if found else []
        fits = size <= most_bytes and len(last) < most_slices
        if last and fits and (one.slice.kind, one.sources) == (last[0].slice.kind, last[0].sources):
            last.append(one)
        else:
            found.append([one])
            size = one.slice.size
    return [SliceGroup(tuple(together)) for together in found]


class Source(BaseModel):
    """A source of text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    """Name of a reader: wikipedia, books, jsonl, …"""

    path: InputPath = Field(min_length=1)
    """File, directory or glob; for docstrings, a comma-separated list of packages."""

    fields: dict[str, str] = Field(default_factory=dict)
    """Columns of a structured source that hold text, id, title, url and licence."""

    licence: str = ""
    """Licence of the text: an SPDX name such as CC-BY-SA-4.0, or another one. Default: the licence
    that the source states."""

    name: str = ""
    """Name of the source. Default: the name that the source states, such as enwiki."""

    url: str = ""
    """URL that the source was downloaded from."""

    date: str = Field(default="", pattern=r"^(\d{4}(-\d\d){0,2})?$")
    """Date of the snapshot: a year, month or day, such as 2024-05-01. Default: the date in a dump's
    name."""

    @classmethod
    def names_files(cls, values: Mapping[str, Any]) -> bool:
        """Return True if `path` names files, not packages (`cloze.core.config.resolve_paths`)."""
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
        return (
            str(date) if isinstance(date, (int, datetime.date)) else date
        )  # YAML reads 2024 as int and 2024-05-01 as date

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
        """Return the provenance given in the config."""
        return Origin(name=self.name, url=self.url, date=self.date, licence=self.licence)

    def __hash__(self) -> int:
        return hash((self.kind, self.path, tuple(sorted(self.fields.items())), self.origin))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSlice:
    """A slice of a source with its files.

    Attributes:
        source: the source.
        slice: the unit of reading.
        files: (name, sha256) of the files that the documents come from.
    """

    source: Source
    slice: Slice
    files: tuple[tuple[str, str], ...]

    @property
    def is_file(self) -> bool:
        """Return True if the slice is a file or a range of one, False for several (a package)."""
        return len(self.files) == 1 and self.files[0][0] == self.slice.name


def list_sources(sources: Iterable[Source]) -> tuple[ListedSlice, ...]:
    """List all slices of all sources; hash each file once.

    Raises:
        DataError: a source has no files of its kind.
    """
    found: list[tuple[Source, Slice, list[tuple[str, str]]]] = []
    for source in dict.fromkeys(sources):
        reader, columns = find_reader(source.kind), tuple(sorted(source.fields.items()))
        for file_slice in reader.slices(source.path):
            found.append(
                (
                    source,
                    replace(file_slice, fields=columns) if columns else file_slice,
                    reader.files(file_slice),
                )
            )
    paths = {path for _, _, files in found for _, path in files}
    readable = {path for path in paths if storage.is_file(path)}
    hashes = fingerprints.file_fingerprints(readable)
    hashes |= {
        path: fingerprints.combine_hashes([("no file", posixpath.basename(path))])
        for path in paths - readable
    }
    return tuple(
        ListedSlice(
            source=source,
            slice=file_slice,
            files=tuple((name, hashes[path]) for name, path in files),
        )
        for source, file_slice, files in found
    )


def source_fingerprints(listed: Iterable[ListedSlice]) -> dict[str, str]:
    """Return `source/KIND`: one hash over the names and bytes of the files of each kind.

    The hash does not depend on the order or the directory of the files.
    """
    named: dict[str, set[tuple[str, str]]] = {}
    for one in listed:
        scope = "" if one.is_file else f"{one.slice.name}:"
        if one.slice.fields:
            scope = f"{json.dumps(dict(one.slice.fields), sort_keys=True)}:{scope}"
        if one.source.origin != NOTHING_KNOWN:
            scope = f"{json.dumps(asdict(one.source.origin), sort_keys=True)}:{scope}"
        named.setdefault(one.slice.kind, set()).update(
            (scope + name, sha256) for name, sha256 in one.files
        )
    return {f"source/{kind}": fingerprints.combine_hashes(files) for kind, files in named.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSlice:
    """A slice to read, and the sources that contain it."""

    slice: Slice
    sha256: str  # of the file, or combined over the files
    sources: tuple[Source, ...]

    @property
    def part(self) -> str:
        """Return the name of the intermediate file: hashes of what is read, and its range."""
        cut = f"-{self.slice.span[0]}-{self.slice.span[1]}" if self.slice.span else ""
        fields = (
            f"-{fingerprints.combine_hashes(self.slice.fields)[:8]}" if self.slice.fields else ""
        )
        origin = asdict(self.slice.origin)
        provenance = (
            f"-{fingerprints.combine_hashes(origin.items())[:8]}" if any(origin.values()) else ""
        )
        return f"{self.sha256[:16]}{fields}{provenance}{cut}"


_Content = tuple[str, tuple[tuple[str, str], ...]]  # sha256 of the content, and the columns to read
_File = tuple[str, str, str, tuple[tuple[str, str], ...]]  # kind, name, sha256, columns


def plan_reading(listed: Iterable[ListedSlice]) -> tuple[list[PlannedSlice], int]:
    """Return the slices of all sources, each content once, and the number of repeated files.

    Slices are sorted by kind, name and position in the file. Different files of one name get `@`
    and the first 8 digits of their sha256. If sources list one file with different slices, the
    finest division is read; the origins that they give are merged.
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
        mark = fingerprints.combine_hashes([("file", sha256), *fields]) if fields else sha256
        unique_name = name if names[kind, name] == 1 else f"{name}@{mark[:8]}"
        finest = max(given.values(), key=len)
        planned[sha256, fields] = [
            PlannedSlice(slice=replace(one, name=unique_name), sha256=sha256, sources=tuple(given))
            for one in sorted(finest, key=lambda one: one.span or (0, 0))
        ]
    return [
        replace(
            one,
            slice=replace(one.slice, origin=merge_origins(source.origin for source in one.sources)),
        )
        for cut in planned.values()
        for one in cut
    ], repeated


def _by_file(listed: Iterable[ListedSlice]) -> Mapping[_File, Mapping[Source, list[Slice]]]:
    """Return the slices of each file, by the sources that name it."""
    found: dict[_File, dict[Source, list[Slice]]] = {}
    for one in listed:
        whole = one.files[0][1] if len(one.files) == 1 else fingerprints.combine_hashes(one.files)
        key = one.slice.kind, one.slice.name, whole, one.slice.fields
        own = found.setdefault(key, {}).setdefault(one.source, [])
        if all(one.slice.span != known.span for known in own):  # a source may name a file twice
            own.append(one.slice)
    return found
