"""Base of all readers: slices of sources, counters and file search.

A source is divided into slices before reading; any worker can read a slice as a stream of
documents. The documents depend only on the bytes of the slice and the options.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from cloze.core import storage
from cloze.core.errors import DataError, bounded
from cloze.core.hub_names import describe_siblings
from cloze.core.humanize import most_first
from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.options import MAXIMUM_UNREADABLE_SHARE, CorpusOptions
from cloze.pipeline.corpus.provenance import NOTHING_KNOWN, Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Unit of reading: a file, a range of its bytes, or a package."""

    kind: str  # name of the reader
    name: str  # file name relative to the source; document ids begin with `kind/name`
    path: str  # current path; never written to any output
    size: int  # bytes, for load balancing and progress
    # (first byte, end) of a range of the file; None: the whole file. The documents do not depend on
    # the division.
    span: tuple[int, int] | None = None
    # (field, column) pairs for structured sources, such as `text`, `id`, `title`
    fields: tuple[tuple[str, str], ...] = ()
    origin: Origin = NOTHING_KNOWN  # provenance given in the config

    def split(self, borders: Sequence[int]) -> list[Slice]:
        """Return a slice for each range between two borders; the slice itself for one range."""
        if len(borders) < 3:
            return [self]
        return [
            replace(self, span=(begin, end), size=min(end, self.size) - begin)
            for begin, end in zip(borders[:-1], borders[1:], strict=True)
        ]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Slice:
        """Return the slice from the result of `as_json`, whose tuples may have become lists."""
        span = tuple(value["span"]) if value["span"] else None
        fields = tuple((name, column) for name, column in value["fields"])
        return cls(**{**value, "span": span, "fields": fields, "origin": Origin(**value["origin"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableItem:
    """Record of something that could not be read: a line of `unreadable.jsonl`."""

    file: str  # kind/name of the slice, and the name inside an archive or package
    offset: int  # bytes from the start of the decompressed file; 0 if unknown
    reason: str
    sentence: str


def counted(counters: Mapping[str, int], prefix: str) -> dict[str, int]:
    """Return the counters that start with `prefix`, with the prefix removed, by name."""
    return {
        name.removeprefix(prefix): count
        for name, count in sorted(counters.items())
        if name.startswith(prefix)
    }


MOST_UNREADABLE = 1000  # entries per slice; more are only counted


@dataclass(slots=True)
class ReadCounters:
    """Counters of reading one slice.

    Every raw document passes through `read` and is then either yielded or dropped with `drop`:
    documents read = documents kept + documents dropped.
    """

    slice: Slice
    stop: bool = True  # if True, raise an error on damage or if more than `allowed` is unreadable
    # share of pages and lines of a file that may be unreadable (0 to 1)
    allowed: float = MAXIMUM_UNREADABLE_SHARE
    counters: Counter[str] = field(default_factory=Counter)  # counts by name
    # records of what could not be read, at most MOST_UNREADABLE
    unreadable: list[UnreadableItem] = field(default_factory=list)
    _refused: int = 0
    origin: Origin = field(init=False)  # provenance of the documents that are yielded next

    def __post_init__(self) -> None:
        self.origin = self.slice.origin

    def set_origin(self, origin: Origin) -> None:
        """Set the provenance stated by the source; the config takes precedence."""
        self.origin = self.slice.origin.filled(origin)

    def read(self, size: int) -> None:
        """Count one raw document of `size` bytes."""
        self.counters["read/documents"] += 1
        self.counters["read/bytes"] += size

    def read_texts(self, texts: Iterable[str]) -> int:
        """Count one raw document of these texts; return its bytes in UTF-8."""
        size = sum(
            len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
            for text in texts
        )
        self.read(size)
        return size

    def drop(self, reason: str) -> None:
        """Count the last document as dropped."""
        self.counters[f"dropped/{reason}"] += 1

    def drop_too_long(self, size: int, place: str, *, offset: int, inner: str = "") -> None:
        """Count a document of `size` bytes as dropped, and record where it is."""
        self.read(size)
        self.drop("too_long")
        sentence = f"{place} has {size:,} bytes and was left out"
        self.quarantine("long_line", sentence, offset=offset, inner=inner)

    def drop_lines(self, reason: str, count: int = 1) -> None:
        """Count dropped lines, paragraphs or sentences of a document."""
        if count:
            self.counters[f"dropped_lines/{reason}"] += count

    def quarantine(self, reason: str, sentence: str, *, offset: int = 0, inner: str = "") -> None:
        """Count something unreadable; record it if it is among the first.

        Raises:
            DataError: with `stop`, if too large a share of the file is unreadable.
        """
        sentence = bounded(sentence)
        self.counters[f"quarantined/{reason}"] += 1
        self._refused += 1
        if self._refused <= MOST_UNREADABLE:
            name = "/".join(filter(None, (self.slice.kind, self.slice.name, inner)))
            self.unreadable.append(
                UnreadableItem(file=name, offset=offset, reason=reason, sentence=sentence)
            )
        if self.stop and self._refused % MOST_UNREADABLE == 0:
            self._check_share()

    def _check_share(self) -> None:
        total = self._refused + self.counters["read/documents"]
        if self._refused > self.allowed * total:
            raise DataError(
                f"{self.slice.path}: {self._refused:,} of its first {total:,} pages and lines "
                f"could not be read (the first: {self.unreadable[0].sentence}), more than "
                f"corpus.max_unreadable_share ({self.allowed:g}) allows; check that the file is of "
                f"source {self.slice.kind}, raise the limit, or set corpus.on_error to quarantine"
            )

    def report(self) -> list[UnreadableItem]:
        """Return what could not be read; a last entry counts those not recorded."""
        remaining = self._refused - len(self.unreadable)
        if not remaining:
            return self.unreadable
        last_item = UnreadableItem(
            file=f"{self.slice.kind}/{self.slice.name}",
            offset=self.unreadable[-1].offset,
            reason="more",
            sentence=f"{remaining:,} more pages or lines of this file could not be read",
        )
        return [*self.unreadable, last_item]

    def record_damage(
        self,
        reason: str,
        sentence: str,
        *,
        offset: int = 0,
        inner: str = "",
        remedy: str = "get the file again",
    ) -> None:
        """Record that the file is damaged or of another format. The caller stops reading it.

        Raises:
            DataError: unless `corpus.on_error` is `quarantine`.
        """
        sentence = bounded(sentence)
        if self.stop:
            raise DataError(
                f"{self.slice.path}: {sentence}; {remedy}, or set corpus.on_error to quarantine to "
                f"continue without it"
            )
        self.quarantine(reason, sentence, offset=offset, inner=inner)


_PACKED = ("", ".gz", ".bz2", ".xz", ".zst")
"""Endings of uncompressed and compressed files."""


def file_patterns(*endings: str) -> tuple[str, ...]:
    """Return name patterns of files with these endings, compressed or not."""
    return tuple(f"*{ending}{packed}" for ending in endings for packed in _PACKED)


Files: TypeAlias = list[tuple[str, str]]  # name relative to the source, and path
Documents: TypeAlias = Iterator[Document]


class FileReader:
    """Base of readers of one format: a file, the matching files of a directory, or a pattern.

    In a pattern (`dumps/*.bz2`, `s3://bucket/books/**/*.txt`) `**` matches any number of
    directories, including none.
    """

    kind = ""  # name of the reader
    # lower-case name patterns for files in directories; files given directly or by a pattern may
    # have any name
    patterns: tuple[str, ...] = ()
    options: type[CorpusOptions] = CorpusOptions  # class of the options used by `read`
    has_columns = False  # documents are records, so a source may map `fields` to columns
    takes_names = False  # the path of a source may be a list of names, such as packages
    # places characters of `document.INTERNAL`; calls `escape_markup` on its input, which has none
    places_internal = False
    # bytes of clean text per byte of file, by ending; default: as of other sources
    clean_shares: tuple[tuple[str, float], ...] = ()

    def slices(self, path: str) -> list[Slice]:
        """Return the slices of the source at `path`.

        Raises:
            DataError: nothing of this format there.
        """
        return self.list_slices(path)[0]

    def list_slices(self, path: str) -> tuple[list[Slice], Files]:
        """Return the slices of the source at `path`, and the files below it that are passed over.

        Raises:
            DataError: nothing of this format there.
        """
        names = storage.list_files(path)  # in a store one request
        is_pattern = not names and not storage.exists(path) and storage.is_pattern(path)
        if is_pattern:
            files = list(_glob(path))
        elif any(names) or storage.is_dir(path):
            files = [(name, storage.join(path, name), False) for name in names]
        elif names:  # "": the file itself
            return self._cut_all([(posixpath.basename(path.rstrip("/")), path)]), []
        else:
            near = describe_siblings(path)
            raise DataError(f"{path} does not exist{near}; check the path of source {self.kind}")
        matching = {
            (name, path)
            for name, path, is_named in files
            if (not _is_hidden(name) if is_named else self._is_readable(name))
        }
        others = [
            (name if storage.is_file(path) else f"{name}/", path)  # a link to a folder, a pipe
            for name, path in sorted({(name, path) for name, path, _ in files} - matching)
        ]
        if not matching:
            found = describe_endings(count_endings(name for name, _ in others))
            wanted = f"file of source {self.kind}"
            raise DataError(
                f"{path} matches no {wanted}; check the pattern, and quote it in a shell"
                if is_pattern
                else f"{path} contains no {wanted} ({', '.join(self.patterns)})"
                f"{found and f', but {found}'}; set the path to a directory with such files"
            )
        return self._cut_all(sorted(matching)), others

    def _cut_all(self, files: Files) -> list[Slice]:
        return [piece for name, path in files for piece in self.cut(self._slice(name, path))]

    def cut(self, file_slice: Slice) -> list[Slice]:
        """Divide a file into slices for several workers; the default is one slice.

        The division must not change the documents and their ids.
        """
        return [file_slice]

    def read(self, file_slice: Slice, options: Any, tally: ReadCounters) -> Iterator[Document]:
        """Yield the documents of the slice: without markup, in paragraphs, not cleaned."""
        raise NotImplementedError

    def _slice(self, name: str, path: str) -> Slice:
        size = int(storage.stat(path)["size"] or 0) if storage.is_file(path) else 0
        return Slice(kind=self.kind, name=storage.printable_name(name), path=path, size=size)

    def _is_readable(self, name: str) -> bool:
        """Return True if a file of a directory is read: not hidden, and of a matching name."""
        base_name = posixpath.basename(name.lower())
        return not _is_hidden(name) and any(
            fnmatch.fnmatch(base_name, pattern) for pattern in self.patterns
        )

    def files(self, file_slice: Slice) -> list[tuple[str, str]]:
        """Return (relative name, path) of every file that the documents of the slice come from."""
        return [(file_slice.name, file_slice.path)]


def _glob(pattern: str) -> Iterator[tuple[str, str, bool]]:
    """Yield name, path and True of files that match, and False of those in matching directories.

    Names are relative to the directory before the first wildcard.
    """
    directory, names = storage.glob(pattern)
    for name in names:
        path = storage.join(directory, name) if directory else name
        if storage.is_dir(path):
            for inner in storage.list_files(path):
                yield f"{name}/{inner}", storage.join(path, inner), False
        else:
            yield name, path, True


IN_ARCHIVES = "in archives"  # end of the counter of members that a reader passes over
_OTHERS = "others"
_MOST_ENDINGS = 10
_LONGEST_ENDING = 12  # characters


def count_endings(names: Iterable[str]) -> Counter[str]:
    """Count files by ending, or as `hidden`, `no ending` or `link`; beyond ten, as `others`.

    A name that ends in `/` is a link back to a folder above, which is not followed, or a pipe.
    """
    counts: Counter[str] = Counter()
    for name in names:
        base_name, ending = posixpath.splitext(name.lower())
        if ending in _PACKED:
            ending = posixpath.splitext(base_name)[1] + ending
        is_ending = 1 < len(ending) <= _LONGEST_ENDING and ending.isprintable()
        kind = "link" if name.endswith("/") else ending if is_ending else "no ending"
        counts["hidden" if _is_hidden(name) else kind] += 1
    first = list(most_first(counts).items())[:_MOST_ENDINGS]
    return Counter({**dict(first), _OTHERS: counts.total() - sum(count for _, count in first)})


def describe_endings(counts: Mapping[str, int]) -> str:
    """Return `ending count` of each entry, largest count first, the sum of others last."""
    order = sorted(most_first(counts).items(), key=lambda pair: pair[0] == _OTHERS)
    return ", ".join(f"{ending} {count:,}" for ending, count in order if count)


def _is_hidden(name: str) -> bool:
    return any(component.startswith((".", "_")) for component in name.split("/"))


# Detection of file types by the first bytes, for readers that would accept anything as text.

HEAD_BYTES = 4096
_, *_ROWS = Path(__file__).with_name("file_types.txt").read_text(encoding="utf-8").splitlines()
# description, source that reads it (empty: none), remedy, pattern of the first bytes
_TYPES = [
    (description, source, remedy, re.compile(pattern.encode(), re.DOTALL))
    for description, source, remedy, pattern in (row.split("\t") for row in _ROWS)
]


def find_type(head: bytes) -> tuple[str, str, str]:
    """Return (type, source that reads it, remedy) of a file from its first bytes; empty: unknown.

    The remedy says what a source that does not read the type advises.
    """
    for description, source, remedy, pattern in _TYPES:
        if pattern.match(head[:HEAD_BYTES]):
            advice = f"name it as source {source}" if source else "take its text out first"
            return description, source, remedy or advice
    return "", "", ""


def has_expected_type(head: bytes, tally: ReadCounters) -> bool:
    """Return True if the slice's reader may read a file with this head; else record the damage.

    Raises:
        DataError: the file is of another type, and `corpus.on_error` is not `quarantine`.
    """
    kind = tally.slice.kind
    description, source, remedy = find_type(head)
    if not description or source == kind:
        return True
    is_plain = kind in ("text", "books")
    reason, nothing = ("not_text", "no text") if is_plain else (f"not_{kind}", "nothing")
    sentence = f"the file is {description}, {nothing} for source {kind}"
    tally.record_damage(reason, sentence, remedy=remedy)
    return False
