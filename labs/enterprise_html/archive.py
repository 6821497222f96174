"""Archives (zip, tar) read by slice, and metadata of the articles in them.

A zip has its directory at the end, and each member is compressed separately: a slice reads only its
members, and damage costs one member. The file must support random access. A tar is read from its
beginning, in bounded memory, by every slice; only the members of the slice are converted.
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, cast

from cloze.core import storage
from cloze.core.errors import cause_of
from cloze.pipeline.corpus.provenance import licence_name
from cloze.pipeline.corpus.readers.base import Slice
from cloze.pipeline.corpus.readers.byte_ranges import SLICE_BYTES
from cloze.pipeline.corpus.readers.encyclopedia import mediawiki_names
from cloze.pipeline.corpus.readers.records import get_nested
from cloze.pipeline.corpus.readers.streams import (
    FREE_BYTES,
    MAXIMUM_RATIO,
    ZIP_ERRORS,
    ByteSource,
    CorruptStreamError,
    unpacked,
)

MOST_SLICES = 8  # per file; each slice decompresses the file from its beginning
_BLOCK = 1 << 16  # bytes read at once; the maximum lost before damage
IS_TAR = re.compile(rb".{257}ustar[\0 ]", re.DOTALL)


def cut(file_slice: Slice) -> list[Slice]:
    """Divide a large file into a few byte ranges; the documents do not depend on the division."""
    count = min(MOST_SLICES, file_slice.size // SLICE_BYTES)
    borders = [file_slice.size * number // count for number in range(count)]
    return file_slice.split([*borders, file_slice.size + 1])  # with the end of the file


class UnpackedStream:
    """Decompressed bytes of a file, with the position in the compressed file."""

    def __init__(self, file_slice: Slice) -> None:
        self._handle = storage.open_input(file_slice.path)
        self._source: ByteSource = unpacked(file_slice.path, self._handle)
        self._begin, self._end = file_slice.span or (0, file_slice.size + 1)

    def read(self, size: int, /) -> bytes:
        return self._source.read(size)

    @property
    def side(self) -> int:
        """Return -1 if the last read was before the slice, 0 if in it, 1 if after it."""
        position = self._handle.tell()
        return -1 if position < self._begin else int(position >= self._end)

    def file(self) -> tuple[IO[bytes], int, int]:
        """Return the compressed file and the borders of the slice, for random access.

        Afterwards `side` is always 0.
        """
        borders = self._begin, self._end
        self._begin, self._end = 0, sys.maxsize
        return self._handle, *borders

    def close(self) -> None:
        self._source.close()


class _Member:
    """A file in an archive; a read raises CorruptStreamError once, and then returns nothing."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read, self.has_failed = read, False

    def read(self, size: int, /) -> bytes:
        if self.has_failed:
            return b""
        try:
            return self._read(min(size, _BLOCK))
        except CorruptStreamError:
            self.has_failed = True
            raise

    def close(self) -> None:
        """Do nothing: the archive closes its files."""


def zip_members(handle: IO[bytes], begin: int, end: int) -> Iterator[tuple[str, int, ByteSource]]:
    """Yield (name, bytes, content) of each file that begins in a byte range of a zip archive.

    Raises:
        CorruptStreamError: the directory cannot be read; raised only for the first range.
    """
    try:
        archive = zipfile.ZipFile(handle)
    except ZIP_ERRORS as error:
        if begin:
            return
        message = f"the archive's directory, at its end, cannot be read ({cause_of(error)})"
        raise CorruptStreamError("damaged", message, 0) from error
    with archive:
        for entry in sorted(archive.infolist(), key=lambda entry: entry.header_offset):
            if begin <= entry.header_offset < end and not entry.is_dir():
                yield entry.filename, entry.file_size, _Member(_zip_reader(archive, entry))


def _zip_reader(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Callable[[int], bytes]:
    """Return a function that reads a member, which is opened by the first read."""
    handle: IO[bytes] | None = None

    def read(size: int) -> bytes:
        nonlocal handle
        reason, sentence = "damaged", ""
        try:
            handle = handle or archive.open(entry)
            data = handle.read(size)
            if handle.tell() <= max(FREE_BYTES, MAXIMUM_RATIO * entry.compress_size):
                return data
            reason = "bomb"
            sentence = f"unpacks to more than {MAXIMUM_RATIO} times its size; no text does"
        except ZIP_ERRORS as error:
            sentence = f"cannot be unpacked ({cause_of(error)})"
        message = f"the archive's file {entry.filename} {sentence}"
        raise CorruptStreamError(reason, message, entry.header_offset)

    return read


def tar_members(source: ByteSource) -> Iterator[tuple[str, int, ByteSource]]:
    """Yield (name, bytes, content) of each file; read the content before the next iteration.

    Raises:
        CorruptStreamError: the archive cannot be read further.
    """
    try:
        with tarfile.open(fileobj=cast(IO[bytes], source), mode="r|", bufsize=_BLOCK) as archive:
            while (entry := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # tarfile would keep them all
                handle = archive.extractfile(entry) if entry.isfile() else None
                if handle is not None:
                    member = _Member(_tar_reader(handle, entry.name))
                    yield entry.name, entry.size, member
                    if member.has_failed:
                        return
    except tarfile.TarError as error:
        raise CorruptStreamError(
            "damaged", f"the archive cannot be read ({cause_of(error)})", 0
        ) from error


def _tar_reader(handle: Any, name: str) -> Callable[[int], bytes]:
    def read(size: int) -> bytes:
        try:
            # `read` would raise before it returns the bytes that precede the damage.
            return cast(bytes, handle.read1(size))
        except tarfile.TarError as error:
            message = f"the archive ends inside its file {name}"
            raise CorruptStreamError("truncated", message, 0) from error

    return read


# Metadata of pages: Wikimedia Enterprise records and HTML pages, and reasons to drop a page.

_SITE = re.compile(
    r"\s+[-–—|]\s+(?:Wikip|Вікіпедія|Википедия|ويكيبيديا|ویکی|위키백과|维基百科|維基百科|ウィキペディア).*\Z",
    re.IGNORECASE,
)
_LANGUAGE = "//html/@lang|//body/@lang|//meta[@http-equiv='content-language']/@content"
_MEANINGS = (
    "//*[@id='disambigbox' or @id='disambig' or contains(concat(' ', @class, ' '), ' dmbox ')]|//"
    "meta[@property='mw:PageProp/disambiguation']"
)

_MAY_MEAN = re.compile("""dmbox|mw:PageProp/disambiguation|id=["']?disambig""")


class NotAnArticleError(Exception):
    """A record lacks a field of an article, or its type is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Article:
    """A page and its metadata; unknown fields are empty."""

    id: str = ""  # id of the page; empty for HTML files
    title: str = ""  # title of the page
    html: str
    wikitext: str = ""  # source text of the page
    namespace: int = 0  # namespace key, 0 for articles
    language: str = ""  # ISO 639 code
    wiki: str = ""  # database name, such as `enwiki`
    url: str = ""  # address of the page
    licence: str = ""  # SPDX name; alternatives are joined by OR
    templates: tuple[str, ...] = ()  # names of templates used, without their namespace


def of_record(record: Mapping[str, Any]) -> Article:
    """Return the article of a Wikimedia Enterprise record.

    Raises:
        NotAnArticleError: no HTML, or no name.
    """

    def text_of(name: str) -> str:
        return str(get_nested(record, name) or "")

    html = get_nested(record, "article_body.html")
    name, number = record.get("name"), record.get("identifier")
    if not isinstance(html, str):
        raise NotAnArticleError("has no HTML in its field article_body.html")
    if not isinstance(name, str) or not isinstance(number, (int, str)):
        raise NotAnArticleError("has no name and identifier")
    namespace = get_nested(record, "namespace.identifier")
    wikitext = get_nested(record, "article_body.wikitext")
    templates = record.get("templates")
    return Article(
        id=str(number),
        title=name,
        html=html,
        wikitext=wikitext if isinstance(wikitext, str) else "",
        namespace=namespace if isinstance(namespace, int) else 0,
        language=mediawiki_names.language_code(text_of("in_language.identifier")),
        wiki=text_of("is_part_of.identifier"),
        url=text_of("url"),
        licence=_licence(record.get("license")),
        templates=tuple(
            str(template.get("name", "")).partition(":")[2]
            for template in templates or ()
            if isinstance(template, dict)
        ),
    )


def _licence(licences: Any) -> str:
    """Return the names of a list of licences, joined by OR."""
    names = [
        str(licence.get("identifier") or licence.get("url") or "")
        for licence in licences or ()
        if isinstance(licence, dict)
    ]
    return " OR ".join(dict.fromkeys(licence_name(name) for name in names if name))


def of_page(text: str, root: Any) -> Article:
    """Return the article of an HTML page."""
    heading = root.xpath("//*[@id='firstHeading']")
    title = "".join(heading[0].itertext()) if heading else root.findtext(".//title") or ""
    languages = [mediawiki_names.language_code(value.strip()) for value in root.xpath(_LANGUAGE)]
    return Article(
        title=" ".join(_SITE.sub("", title).split()),
        html=text,
        language=next(filter(None, languages), ""),
        namespace=_namespace(root),
    )


def _namespace(root: Any) -> int:
    """Return the namespace key, from `<meta>` (Parsoid) or the class of the body (skins)."""
    for value in root.xpath("//meta[@property='mw:pageNamespace']/@content"):
        if value.strip().lstrip("-").isdigit():
            return int(value)
    body = root.find("body")
    classes = "" if body is None else body.get("class", "")
    match = re.search(r"(?:^|\s)ns-(\d{1,4})(?=\s|$)", classes)
    return int(match[1]) if match else 0


def reason(article: Article, root: Any, more: frozenset[str], is_read: bool) -> str | None:
    """Return why a page is not an article; None if it is one.

    Args:
        root: lxml element, the root of its HTML.
        more: lower-case names of additional templates that mark disambiguation pages.
        is_read: bool, True if the page's namespace is read.
    """
    text = article.html  # searching its tree takes as long as parsing it
    redirect = "mw:PageProp/redirect" in text and root.xpath(
        "boolean(//link[@rel='mw:PageProp/redirect'])"
    )
    if redirect or mediawiki_names.is_redirect(article.wikitext):
        return "redirect"
    if not is_read:
        return "namespace"
    template_markup = "".join(f"{{{{{name}}}}}" for name in article.templates)
    if (
        mediawiki_names.names_meanings(article.title)
        or mediawiki_names.lists_meanings(article.wikitext or template_markup, more)
        or (_MAY_MEAN.search(text) and root.xpath(f"boolean({_MEANINGS})"))
    ):
        return "disambiguation"
    return None
