"""Corpus stage: the sources of a config, and the splits that they come to.

A source's identity is the content of its files, and for structured ones the columns that are read: neither the place where a
file lies, nor the order, nor how a file is cut for its readers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from pipeline.core import fingerprints
from pipeline.core.config import InputPath
from pipeline.core.errors import did_you_mean
from pipeline.corpus.readers import READERS, find_reader
from pipeline.corpus.readers.base import Split

STRUCTURED = ("jsonl", "parquet", "arrow")  # sources whose columns have names
FIELDS = ("text", "id", "title")


class Source(BaseModel):
    """Where text comes from.

    Attributes:
        kind: a reader's name.
        path: a file, a directory or a pattern; for `docstrings`, a comma-separated list of packages.
        fields: of structured sources: what the columns are called that hold `text`, `id` and `title`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    path: InputPath = Field(min_length=1)
    fields: dict[str, str] = Field(default_factory=dict)

    @classmethod
    def names_files(cls, values: Mapping[str, Any]) -> bool:
        """Whether `path` is one: of `docstrings` it is a list of packages (see `pipeline.core.config.resolve_paths`)."""
        return values.get("kind") != "docstrings"

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind not in READERS:
            raise ValueError(f"unknown source kind; {did_you_mean(kind, READERS)}")
        return kind

    @field_validator("fields")
    @classmethod
    def _known_fields(cls, fields: dict[str, str]) -> dict[str, str]:
        for name in fields:
            if name not in FIELDS:
                raise ValueError(f"unknown field {name!r}; {did_you_mean(name, FIELDS)}")
        return fields

    def __hash__(self) -> int:
        return hash((self.kind, self.path, tuple(sorted(self.fields.items()))))

    def splits(self) -> list[Split]:
        """What is read at one go each; `DataError` if there is nothing of this kind."""
        named = tuple(sorted(self.fields.items()))
        return [replace(split, fields=named) if named else split for split in find_reader(self.kind).splits(self.path)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A split that is read, and the sources that it stands for."""

    split: Split
    sha256: str  # of the file, or over the files
    sources: tuple[Source, ...]

    @property
    def name(self) -> str:
        """Of the part's files; says what is read, so that an interrupted build never takes another part for it."""
        cut = f"-{self.split.part[0]}-{self.split.part[1]}" if self.split.part else ""
        fields = f"-{fingerprints.combine(self.split.fields)[:8]}" if self.split.fields else ""
        return f"{self.sha256[:16]}{fields}{cut}"


def source_fingerprints(sources: Iterable[Source]) -> dict[str, str]:
    """`source/KIND`: one hash over names and bytes of all files of that kind, whatever their order and place."""
    named: dict[str, set[tuple[str, str]]] = {}
    for source in sources:
        for split in source.splits():
            files = find_reader(source.kind).files(split)
            hashes = fingerprints.file_hashes(path for _, path in files)
            scope = f"{split.name}:" if len(files) != 1 or files[0][0] != split.name else ""
            if split.fields:
                scope = f"{json.dumps(dict(split.fields), sort_keys=True)}:{scope}"
            named.setdefault(source.kind, set()).update((scope + name, hashes[path]) for name, path in files)
    return {f"source/{kind}": fingerprints.combine(files) for kind, files in named.items()}


def expand(sources: Iterable[Source]) -> tuple[list[Part], int]:
    """The splits of all sources, each content once; and how many files were there again.

    They come in the order of their kinds, names and places in the file. Two different files of one name are told apart by `@` and
    the beginning of their sha256. Of a file that is there again, once whole and once cut, the finer cut is read.
    """
    found: dict[tuple[str, str, str, tuple[tuple[str, str], ...]], list[tuple[Source, list[Split]]]] = {}
    for source in dict.fromkeys(sources):
        cuts: dict[tuple[str, str, str, tuple[tuple[str, str], ...]], list[Split]] = {}
        for split in source.splits():
            files = find_reader(source.kind).files(split)
            hashes = fingerprints.file_hashes(path for _, path in files)
            whole = (
                fingerprints.combine((name, hashes[path]) for name, path in files) if len(files) != 1 else hashes[files[0][1]]
            )
            own = cuts.setdefault((split.kind, split.name, whole, split.fields), [])
            if all(split.part != known.part for known in own):  # a file that the source names twice
                own.append(split)
        for key, splits in cuts.items():
            found.setdefault(key, []).append((source, splits))

    names = Counter((kind, name) for kind, name, _, _ in found)
    parts: dict[tuple[str, tuple[tuple[str, str], ...]], list[Part]] = {}
    repeated = 0
    for (kind, name, sha256, fields), given in sorted(found.items()):
        from_sources = tuple(source for source, _ in given)
        first = parts.get((sha256, fields))
        if first is not None:
            repeated += 1
            both = tuple(dict.fromkeys((*first[0].sources, *from_sources)))
            parts[sha256, fields] = [replace(part, sources=both) for part in first]
            continue
        mark = fingerprints.combine([("file", sha256), *fields]) if fields else sha256
        told = name if names[kind, name] == 1 else f"{name}@{mark[:8]}"
        splits = max((splits for _, splits in given), key=len)
        parts[sha256, fields] = [
            Part(split=replace(split, name=told), sha256=sha256, sources=from_sources)
            for split in sorted(splits, key=lambda split: split.part or (0, 0))
        ]
    return [part for cut in parts.values() for part in cut], repeated
