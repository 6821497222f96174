"""What every reader shares: splits, settings, the tally of what was read and dropped, and opening files.

A source becomes splits before anything runs; each split is then read by itself, by any worker, as a stream of
documents. Reading depends on the split's bytes and the settings alone.
"""

from __future__ import annotations

import fnmatch
import posixpath
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Protocol

from pipeline import storage
from pipeline.errors import DataError
from pipeline.text.document import Document

# No text that anybody wrote is longer; what claims to be is a bomb, a log or a concatenation, and is dropped unread.
MAXIMUM_DOCUMENT_BYTES = 64 << 20

# What reading a truncated or damaged compressed file raises.
DAMAGE = (EOFError, OSError, zlib.error)


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
    """

    stop: bool = True
    dropped_sections: frozenset[str] = frozenset()


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
    """Base of readers whose source is a file, or every file below a directory that has one of the names; one split a file.

    Attributes:
        kind: the reader's name.
        patterns: of the names, in lower case; a file that is named itself may have any name.
    """

    kind = ""
    patterns: tuple[str, ...] = ()

    def splits(self, path: str) -> list[Split]:
        if not storage.exists(path):
            raise DataError(f"{path} does not exist; check the path of source {self.kind}")
        if not storage.is_dir(path):
            return [self._split(posixpath.basename(path.rstrip("/")), path)]
        names = [name for name in storage.list_files(path) if self._wanted(name)]
        if not names:
            raise DataError(
                f"{path} holds no file of source {self.kind} ({', '.join(self.patterns)}); point to a directory that does"
            )
        return [self._split(name, storage.join(path, name)) for name in names]

    def _split(self, name: str, path: str) -> Split:
        return Split(kind=self.kind, name=name, path=path, size=int(storage.stat(path)["size"] or 0))

    def _wanted(self, name: str) -> bool:
        parts = name.lower().split("/")
        return not any(part.startswith((".", "_")) for part in parts) and any(
            fnmatch.fnmatch(parts[-1], p) for p in self.patterns
        )

    def files(self, split: Split) -> list[tuple[str, str]]:
        return [(split.name, split.path)]


def open_unpacked(path: str) -> IO[bytes]:
    """Open a file, unpacked by its name: `.bz2` (any number of streams), `.gz`, `.xz`, or as it is."""
    import bz2
    import gzip
    import lzma
    from typing import cast

    handle = storage.open_input(path)
    if path.endswith(".bz2"):
        return cast(IO[bytes], bz2.BZ2File(handle))
    if path.endswith(".gz"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=handle))
    if path.endswith(".xz"):
        return cast(IO[bytes], lzma.LZMAFile(handle))
    return handle
