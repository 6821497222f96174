"""Sources of a config, their slices, and the groups of slices that are read together.

Small files share an intermediate file, because each one costs files, fsyncs and an entry in later
steps. The groups depend on the sources only, so that an interrupted build finds its files again.
"""

from __future__ import annotations

import datetime
import itertools
import json
import math
import posixpath
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Annotated, Any, NamedTuple

from pydantic import Field, field_validator, model_validator

from cloze.core import hub_names, storage
from cloze.core.artifacts import fingerprints
from cloze.core.config import InputPath, Values
from cloze.core.errors import did_you_mean
from cloze.core.options import known
from cloze.pipeline.corpus.provenance import (
    NOTHING_KNOWN,
    Origin,
    card_licence,
    licence_name,
    merge_origins,
)
from cloze.pipeline.corpus.readers import READERS
from cloze.pipeline.corpus.readers.base import Slice, count_endings, describe_endings
from cloze.pipeline.corpus.readers.records import FIELDS
from cloze.pipeline.runners.sizes import run_bytes

# Limits of a group of small sources, so that many small files still give work to many workers.
GROUP_BYTES, GROUP_SLICES = 1 << 20, 1 << 10
STORE_GROUP_BYTES = 8 << 20  # for intermediate files in a store, which charges for each request


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
        return sum(planned.slice.size for planned in self.slices)

    @property
    def part(self) -> str:
        """Return the name of the intermediate file: a hash of what is read."""
        if len(self.slices) == 1:
            return self.slices[0].part
        names = (
            (f"{number:04d}/{planned.slice.name}", planned.part)
            for number, planned in enumerate(self.slices)
        )
        return f"{fingerprints.combine_hashes(names)[:16]}-{len(self.slices)}"

    def unit(self) -> dict[str, Any]:
        """Return the unit for `ReadSliceGroup`."""
        return {"name": self.part, "slices": [planned.slice.as_json() for planned in self.slices]}


def group_slices(slices: Iterable[PlannedSlice], *, in_store: bool = False) -> list[SliceGroup]:
    """Group consecutive small slices of the same kind and sources.

    In a store the last quarter of the text is in small groups, which fill the workers' last round.

    Args:
        in_store: the intermediate files are in an object store.
    """
    slices = list(slices)
    least_bytes = STORE_GROUP_BYTES if in_store else GROUP_BYTES
    total = left = sum(planned.slice.size for planned in slices)
    most_bytes = run_bytes(total, least_bytes)
    most_slices = max(GROUP_SLICES, math.isqrt(len(slices)))
    groups: list[list[PlannedSlice]] = []
    size = 0
    for planned in slices:
        size += planned.slice.size
        if in_store and left < total // 8:
            most_bytes = max(least_bytes, run_bytes(total) // 2)
        left -= planned.slice.size
        last_group = groups[-1] if groups else []
        fits = bool(last_group) and size <= most_bytes and len(last_group) < most_slices
        origin = planned.slice.kind, planned.sources
        if fits and origin == (last_group[0].slice.kind, last_group[0].sources):
            last_group.append(planned)
        else:
            groups.append([planned])
            size = planned.slice.size
    return [SliceGroup(tuple(group)) for group in groups]


class Source(Values):
    """A source of text."""

    kind: Annotated[str, known(READERS, "unknown source kind")]
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
        kind = str(values.get("kind"))
        if kind == hub_names.KIND:
            return False
        return kind not in READERS or not READERS.find(kind).takes_names

    @model_validator(mode="before")
    @classmethod
    def _named_on_the_hub(cls, values: Any) -> Any:
        return hub_names.hub_source(values) if isinstance(values, Mapping) else values

    @field_validator("date", mode="before")
    @classmethod
    def _day(cls, date: Any) -> Any:
        # YAML reads 2024 as int and 2024-05-01 as date
        return str(date) if isinstance(date, (int, datetime.date)) else date

    @field_validator("licence")
    @classmethod
    def _licence(cls, licence: str) -> str:
        return licence_name(licence)

    @field_validator("name", "url")
    @classmethod
    def _check_single_line(cls, text: str) -> str:
        return " ".join(text.split())

    @field_validator("fields")
    @classmethod
    def _known_fields(cls, fields: dict[str, str]) -> dict[str, str]:
        for name in fields:
            if name not in FIELDS:
                raise ValueError(f"unknown field {name!r}; {did_you_mean(name, FIELDS)}")
        return fields

    @cached_property
    def card(self) -> tuple[str, str]:
        """Name of the source's data set and the licence of its card, unless the config has one."""
        may_have = READERS.find(self.kind).has_columns or "://" in self.path
        return card_licence(self.path) if may_have and not self.licence else ("", "")

    @property
    def origin(self) -> Origin:
        """Return the provenance given in the config, with the card's licence if it has none."""
        licence = self.licence or self.card[1]
        return Origin(name=self.name, url=self.url, date=self.date, licence=licence)

    def __hash__(self) -> int:
        return hash((self.kind, self.path, tuple(sorted(self.fields.items())), self.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSlice:
    """A slice of a source with its files."""

    source: Source
    slice: Slice
    files: tuple[tuple[str, str], ...]  # (name, sha256) of the files that the documents come from

    @property
    def is_file(self) -> bool:
        """Return True if the slice is a file or a range of one, False for several (a package)."""
        return len(self.files) == 1 and self.files[0][0] == self.slice.name


class SourceListing(NamedTuple):
    """Files of all sources."""

    slices: tuple[ListedSlice, ...]  # what is read
    matching: dict[str, int]  # number of files that are read, by kind
    # by kind, the files below its sources that no source reads, by ending
    passed_over: dict[str, Counter[str]]
    cards: dict[str, str]  # the licence that a data set states, or ""

    def counters(self) -> dict[str, int]:
        """Return `passed_over/KIND/ENDING` for the manifest."""
        return {
            f"passed_over/{kind}/{ending}": count
            for kind, counts in self.passed_over.items()
            for ending, count in counts.items()
            if count
        }

    def describe(self) -> list[str]:
        """Return a sentence for each kind with files that are passed over, and for each card."""
        none = "no licence (field `licence` of the source records one)"
        return [
            f"{name} states {f'the licence {licence}' if licence else none}"
            for name, licence in self.cards.items()
            if name
        ] + [
            f"{self.matching[kind]:,} of {self.matching[kind] + counts.total():,} files match "
            f"{kind}; {counts.total():,} others passed over ({describe_endings(counts)})"
            for kind, counts in self.passed_over.items()
            if counts.total()
        ]


def list_sources(sources: Iterable[Source]) -> SourceListing:
    """List all slices of all sources; hash each file once.

    Raises:
        DataError: a source has no files of its kind.
    """
    listed: list[tuple[Source, Slice, list[tuple[str, str]]]] = []
    others: dict[str, dict[str, str]] = {}  # by kind: names by path
    for source in dict.fromkeys(sources):
        reader, columns = READERS.find(source.kind), tuple(sorted(source.fields.items()))
        slices, passed_over = reader.list_slices(source.path)
        others.setdefault(source.kind, {}).update((path, name) for name, path in passed_over)
        for file_slice in slices:
            piece = replace(file_slice, fields=columns) if columns else file_slice
            listed.append((source, piece, reader.files(file_slice)))
    paths_by_kind: dict[str, set[str]] = {}
    for source, _, files in listed:
        paths_by_kind.setdefault(source.kind, set()).update(path for _, path in files)
    paths = set[str]().union(*paths_by_kind.values())
    readable = {path for path in paths if storage.is_file(path)}
    hashes = fingerprints.file_fingerprints(readable)
    hashes |= {
        path: fingerprints.combine_hashes([("no file", posixpath.basename(path))])
        for path in paths - readable
    }
    return SourceListing(
        tuple(
            ListedSlice(
                source=source,
                slice=file_slice,
                files=tuple((name, hashes[path]) for name, path in files),
            )
            for source, file_slice, files in listed
        ),
        {kind: len(read) for kind, read in paths_by_kind.items()},
        {
            kind: count_endings(name for path, name in names.items() if path not in paths)
            for kind, names in others.items()
        },
        dict(source.card for source, *_ in listed),
    )


def source_fingerprints(listed: Iterable[ListedSlice]) -> dict[str, str]:
    """Return `source/KIND`: one hash over the names and bytes of the files of each kind.

    The hash does not depend on the order or the directory of the files.
    """
    files_by_kind: dict[str, set[tuple[str, str]]] = {}
    for one in listed:
        scope = "" if one.is_file else f"{one.slice.name}:"
        if one.slice.fields:
            scope = f"{json.dumps(dict(one.slice.fields), sort_keys=True)}:{scope}"
        if one.source.origin != NOTHING_KNOWN:
            scope = f"{json.dumps(asdict(one.source.origin), sort_keys=True)}:{scope}"
        names = ((scope + name, sha256) for name, sha256 in one.files)
        files_by_kind.setdefault(one.slice.kind, set()).update(names)
    combine = fingerprints.combine_hashes
    return {f"source/{kind}": combine(files) for kind, files in files_by_kind.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSlice:
    """A slice to read, and the sources that contain it."""

    slice: Slice
    sha256: str  # of the file, or combined over the files
    sources: tuple[Source, ...]

    @property
    def part(self) -> str:
        """Return the name of the intermediate file: hashes of what is read, and its range."""
        parts, origin = [self.sha256[:16]], asdict(self.slice.origin)
        for facts in (self.slice.fields, origin.items() if any(origin.values()) else ()):
            parts += [fingerprints.combine_hashes(facts)[:8]] if facts else []
        return "-".join([*parts, *map(str, self.slice.span or ())])


_Content = tuple[str, tuple[tuple[str, str], ...]]  # sha256 of the content, and the columns to read
_File = tuple[str, str, str, tuple[tuple[str, str], ...]]  # kind, name, sha256, columns


def plan_reading(listed: Iterable[ListedSlice]) -> tuple[list[PlannedSlice], int]:
    """Return the slices of all sources, each content once, and the number of repeated files.

    Slices are sorted by kind, name and position in the file. Different files of one name get `@`
    and the first 8 digits of their sha256. If sources list one file with different slices, the
    finest division is read; the origins that they give are merged.
    """
    slices_by_file = _by_file(listed)
    names = Counter((kind, name) for kind, name, _, _ in slices_by_file)
    planned: dict[_Content, list[PlannedSlice]] = {}
    repeated = 0
    for (kind, name, sha256, fields), slices_by_source in sorted(
        slices_by_file.items(), key=lambda item: item[0]
    ):
        known = planned.get((sha256, fields))
        if known is not None:
            repeated += 1
            all_sources = tuple(dict.fromkeys((*known[0].sources, *slices_by_source)))
            planned[sha256, fields] = [replace(piece, sources=all_sources) for piece in known]
            continue
        mark = fingerprints.combine_hashes([("file", sha256), *fields]) if fields else sha256
        unique_name = name if names[kind, name] == 1 else f"{name}@{mark[:8]}"
        finest = max(slices_by_source.values(), key=len)
        planned[sha256, fields] = [
            PlannedSlice(
                slice=replace(piece, name=unique_name),
                sha256=sha256,
                sources=tuple(slices_by_source),
            )
            for piece in sorted(finest, key=lambda piece: piece.span or (0, 0))
        ]
    pieces = []
    for piece in itertools.chain(*planned.values()):
        origin = merge_origins(source.origin for source in piece.sources)
        pieces.append(replace(piece, slice=replace(piece.slice, origin=origin)))
    return pieces, repeated


def _by_file(listed: Iterable[ListedSlice]) -> Mapping[_File, Mapping[Source, list[Slice]]]:
    """Return the slices of each file, by the sources that name it."""
    slices_by_file: dict[_File, dict[Source, list[Slice]]] = {}
    for one in listed:
        (_, sha256), *others = one.files
        if others:
            sha256 = fingerprints.combine_hashes(one.files)
        key = one.slice.kind, one.slice.name, sha256, one.slice.fields
        slices = slices_by_file.setdefault(key, {}).setdefault(one.source, [])
        if all(one.slice.span != known.span for known in slices):  # a source may name a file twice
            slices.append(one.slice)
    return slices_by_file
