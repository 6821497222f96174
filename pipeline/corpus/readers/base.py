"""What every reader shares: slices of sources, the tally of what was read and dropped, and finding files.

A source becomes slices before anything runs; each slice is then read by itself, by any worker, as a stream of
documents. What is read depends on the slice's bytes and the options alone.
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from pipeline.core import storage
from pipeline.core.errors import DataError
from pipeline.corpus.document import Document
from pipeline.corpus.options import CorpusOptions
from pipeline.corpus.provenance import NOTHING_KNOWN, Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The part of a source that is read at one go: a file, a range of its bytes, or a package.

    Attributes:
        kind: the reader's name.
        name: the file's name relative to the source; with `kind` it opens the ids of the documents.
        path: where it lies now; takes no part in anything that is written.
        size: bytes, for balance and progress.
        span: (first byte, end) where a slice is a part of its file; None: the whole file. The documents are the same however a
            file is cut.
        fields: how the columns of structured sources are named: `text`, `id`, `title`, … to the source's own names.
        origin: what the config says of where it is from.
    """

    kind: str
    name: str
    path: str
    size: int
    span: tuple[int, int] | None = None
    fields: tuple[tuple[str, str], ...] = ()
    origin: Origin = NOTHING_KNOWN

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Slice:
        """What `as_json` gave, its tuples become lists on the way."""
        span, fields, origin = value["span"], value["fields"], value["origin"]
        told = {"span": tuple(span) if span else None, "fields": tuple((name, column) for name, column in fields)}
        return cls(**{**value, **told, "origin": Origin(**origin)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """Something that could not be read: a line of `unreadable.jsonl`."""

    file: str  # kind/name of the slice, and the name inside it where it is an archive or a package
    offset: int  # bytes from the start of the (unpacked) file; 0 where nothing better is known
    reason: str
    sentence: str


@dataclass(slots=True)
class Tally:
    """What reading one slice counted.

    Every raw document passes through `read`, and then is either yielded or `drop`ped, so that what was read is always
    the sum of what was kept and what was dropped.

    Attributes:
        origin: where the documents that are yielded now are from.
    """

    slice: Slice
    stop: bool = True
    counters: Counter[str] = field(default_factory=Counter)
    unreadable: list[Unreadable] = field(default_factory=list)
    origin: Origin = field(init=False)

    def __post_init__(self) -> None:
        self.origin = self.slice.origin

    def found(self, origin: Origin) -> None:
        """What the source itself says of where it is from; what the config says of it counts more."""
        self.origin = self.slice.origin.filled(origin)

    def read(self, size: int) -> None:
        """One more raw document, of `size` bytes."""
        self.counters["read/documents"] += 1
        self.counters["read/bytes"] += size

    def drop(self, reason: str) -> None:
        """The document read last is dropped."""
        self.counters[f"dropped/{reason}"] += 1

    def drop_lines(self, reason: str, count: int = 1) -> None:
        """Lines, paragraphs or sentences inside a document are dropped."""
        if count:
            self.counters[f"dropped_lines/{reason}"] += count

    def quarantine(self, reason: str, sentence: str, *, offset: int = 0, inner: str = "") -> None:
        """Something could not be read; note it and go on."""
        self.counters[f"quarantined/{reason}"] += 1
        name = posixpath.join(self.slice.kind, self.slice.name, inner) if inner else f"{self.slice.kind}/{self.slice.name}"
        self.unreadable.append(Unreadable(file=name, offset=offset, reason=reason, sentence=sentence))

    def damaged(
        self, reason: str, sentence: str, *, offset: int = 0, inner: str = "", remedy: str = "get the file again"
    ) -> None:
        """The file is not what it claims to be: `DataError`, or by the options a quarantine. The caller ends reading it."""
        if self.stop:
            raise DataError(
                f"{self.slice.path}: {sentence}; {remedy}, or set corpus.on_error to quarantine to go on without it"
            )
        self.quarantine(reason, sentence, offset=offset, inner=inner)


class Reader(Protocol):
    """A format of source.

    Attributes:
        options: the class of options that `read` looks at.
        has_columns: whether its documents are records, so that a source may name the `fields` they are taken from.
        takes_names: whether a source's path may be a list of names and no path in storage, such as a list of packages.
    """

    options: type[CorpusOptions]
    has_columns: bool
    takes_names: bool

    def slices(self, path: str) -> list[Slice]:
        """What the source at `path` consists of. `DataError` if there is nothing of this format."""

    def files(self, file_slice: Slice) -> list[tuple[str, str]]:
        """(relative name, path) of every file whose bytes the slice's documents come from."""

    def read(self, file_slice: Slice, options: Any, tally: Tally) -> Iterator[Document]:
        """The slice's documents as they stand in the source: markup gone, paragraphs found, nothing cleaned yet."""


class FileReader:
    """Base of readers whose source is a file, every file below a directory that has one of the names, or a pattern.

    In a pattern (`dumps/*.bz2`, `s3://bucket/books/**/*.txt`) `**` stands for any directories, none included.

    Attributes:
        kind: the reader's name.
        patterns: of the names, in lower case; a file that is named itself, or by a pattern, may have any name.
    """

    kind = ""
    patterns: tuple[str, ...] = ()
    options: type[CorpusOptions] = CorpusOptions
    has_columns = False
    takes_names = False

    def slices(self, path: str) -> list[Slice]:
        if not storage.exists(path) and storage.is_pattern(path):
            return self._matches(path)
        if not storage.exists(path):
            raise DataError(f"{path} does not exist; check the path of source {self.kind}")
        if not storage.is_dir(path):
            return self.cut(self._slice(posixpath.basename(path.rstrip("/")), path))
        names = [name for name in storage.list_files(path) if self._wanted(name)]
        if not names:
            raise DataError(
                f"{path} holds no file of source {self.kind} ({', '.join(self.patterns)}); point to a directory that does"
            )
        return self._all((name, storage.join(path, name)) for name in names)

    def _matches(self, pattern: str) -> list[Slice]:
        """The files that a pattern names, and those of the reader's format below the directories that it names.

        Their names are relative to the directory before the pattern's first wildcard, as if it had been given.
        """
        base, found = storage.glob(pattern)
        named: dict[str, str] = {}
        for name in found:
            path = storage.join(base, name) if base else name
            if storage.is_dir(path):
                inner = (f"{name}/{below}" for below in storage.list_files(path))
                named.update({below: storage.join(base, below) if base else below for below in inner if self._wanted(below)})
            elif not any(part.startswith((".", "_")) for part in name.split("/")):
                named[name] = path
        if not named:
            raise DataError(f"{pattern} matches no file of source {self.kind}; check the pattern, and quote it in a shell")
        return self._all(sorted(named.items()))

    def _all(self, files: Iterable[tuple[str, str]]) -> list[Slice]:
        return [part for name, path in files for part in self.cut(self._slice(name, path))]

    def cut(self, file_slice: Slice) -> list[Slice]:
        """A file in slices that different workers may read; by default, whole. The documents and their ids do not change."""
        return [file_slice]

    def _slice(self, name: str, path: str) -> Slice:
        return Slice(kind=self.kind, name=storage.readable(name), path=path, size=int(storage.stat(path)["size"] or 0))

    def _wanted(self, name: str) -> bool:
        parts = name.lower().split("/")
        return not any(part.startswith((".", "_")) for part in parts) and any(
            fnmatch.fnmatch(parts[-1], p) for p in self.patterns
        )

    def files(self, file_slice: Slice) -> list[tuple[str, str]]:
        return [(file_slice.name, file_slice.path)]
