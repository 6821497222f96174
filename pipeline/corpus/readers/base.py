"""What every reader shares: splits, settings, the tally of what was read and dropped, and opening files.

A source becomes splits before anything runs; each split is then read by itself, by any worker, as a stream of
documents. Reading depends on the split's bytes and the settings alone.
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from pipeline.core import storage
from pipeline.core.errors import DataError
from pipeline.corpus.document import Document

# No text that anybody wrote is longer; what claims to be is a bomb, a log or a concatenation, and is dropped unread.
MAXIMUM_DOCUMENT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A part of a source that is read at one go.

    Attributes:
        kind: the reader's name.
        name: the file's name relative to the source; with `kind` it opens the ids of the documents.
        path: where it lies now; takes no part in anything that is written.
        size: bytes, for balance and progress.
        part: (first byte, end) of the file where a split is a part of one; None: all of it. What is read is the same however a
            file is cut.
        fields: how the columns of structured sources are named: `text`, `id`, `title` to the source's own names.
    """

    kind: str
    name: str
    path: str
    size: int
    part: tuple[int, int] | None = None
    fields: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the config says about reading.

    Attributes:
        stop: whether a damaged file ends the stage; else it is counted, listed, and the rest is read.
        dropped_sections: headings, in lower case, of the encyclopedia's sections that are no text.
        kept_sections: where any are given, of the articles only these sections are read; the text before the first heading is
            named by the empty string.
        disambiguation_templates: names of templates, beside the known ones, by which a wiki marks its disambiguation pages.
        blank_line_documents: whether in a plain text (source `text`) a blank line ends a document; else a file is one.
        maximum_document_bytes: what is longer is dropped as `too_long`, without ever being held whole.
    """

    stop: bool = True
    dropped_sections: frozenset[str] = frozenset()
    kept_sections: frozenset[str] = frozenset()
    disambiguation_templates: frozenset[str] = frozenset()
    blank_line_documents: bool = False
    maximum_document_bytes: int = MAXIMUM_DOCUMENT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """Something that could not be read: a line of `rejected.jsonl`."""

    file: str  # kind/name of the split, and the name inside it where it is an archive or a package
    offset: int  # bytes from the start of the (unpacked) file; 0 where nothing better is known
    reason: str
    sentence: str


@dataclass(slots=True)
class Tally:
    """What reading one split counted.

    Every raw document passes through `read`, and then is either yielded or `drop`ped, so that what was read is always
    the sum of what was kept and what was dropped.
    """

    split: Split
    stop: bool = True
    counters: Counter[str] = field(default_factory=Counter)
    rejected: list[Rejected] = field(default_factory=list)

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
        name = posixpath.join(self.split.kind, self.split.name, inner) if inner else f"{self.split.kind}/{self.split.name}"
        self.rejected.append(Rejected(file=name, offset=offset, reason=reason, sentence=sentence))

    def damaged(self, reason: str, sentence: str, *, offset: int = 0, inner: str = "") -> None:
        """The file is not what it claims to be: `DataError`, or by the settings a quarantine. The caller ends reading it."""
        if self.stop:
            raise DataError(
                f"{self.split.path}: {sentence}; get the file again, or set corpus.on_error to quarantine to go on without it"
            )
        self.quarantine(reason, sentence, offset=offset, inner=inner)


class Reader(Protocol):
    """A format of source."""

    def splits(self, path: str) -> list[Split]:
        """What the source at `path` consists of. `DataError` if there is nothing of this format."""

    def files(self, split: Split) -> list[tuple[str, str]]:
        """(relative name, path) of every file whose bytes the split's documents come from."""

    def read(self, split: Split, settings: Settings, tally: Tally) -> Iterator[Document]:
        """The split's documents as they stand in the source: markup gone, paragraphs found, nothing cleaned yet."""


class FileReader:
    """Base of readers whose source is a file, every file below a directory that has one of the names, or a pattern.

    In a pattern (`dumps/*.bz2`, `s3://bucket/books/**/*.txt`) `**` stands for any directories, none included.

    Attributes:
        kind: the reader's name.
        patterns: of the names, in lower case; a file that is named itself, or by a pattern, may have any name.
    """

    kind = ""
    patterns: tuple[str, ...] = ()

    def splits(self, path: str) -> list[Split]:
        if not storage.exists(path) and storage.is_pattern(path):
            return self._matches(path)
        if not storage.exists(path):
            raise DataError(f"{path} does not exist; check the path of source {self.kind}")
        if not storage.is_dir(path):
            return self.parts(self._split(posixpath.basename(path.rstrip("/")), path))
        names = [name for name in storage.list_files(path) if self._wanted(name)]
        if not names:
            raise DataError(
                f"{path} holds no file of source {self.kind} ({', '.join(self.patterns)}); point to a directory that does"
            )
        return self._all((name, storage.join(path, name)) for name in names)

    def _matches(self, pattern: str) -> list[Split]:
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

    def _all(self, files: Iterable[tuple[str, str]]) -> list[Split]:
        return [part for name, path in files for part in self.parts(self._split(name, path))]

    def parts(self, split: Split) -> list[Split]:
        """A file in the parts that different workers may read; by default, whole. The documents and their ids do not change."""
        return [split]

    def _split(self, name: str, path: str) -> Split:
        return Split(kind=self.kind, name=storage.readable(name), path=path, size=int(storage.stat(path)["size"] or 0))

    def _wanted(self, name: str) -> bool:
        parts = name.lower().split("/")
        return not any(part.startswith((".", "_")) for part in parts) and any(
            fnmatch.fnmatch(parts[-1], p) for p in self.patterns
        )

    def files(self, split: Split) -> list[tuple[str, str]]:
        return [(split.name, split.path)]
