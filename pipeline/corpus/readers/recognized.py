"""What a file is by its first bytes, for readers that would take anything for text: books and plain text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipeline.corpus.readers.base import Tally
from pipeline.corpus.readers.streams import FORMATS

HEAD_BYTES = 4096
_PACKERS = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
_SPACE = rb"(?:\xef\xbb\xbf)?\s*"

_ENTERPRISE = rb"(?:\"(?:abstract|date_created|date_modified|protection|version|main_entity|is_part_of|article_body)\"\s*:)"

# What it is, which source reads it (empty: none), and how it begins.
_KINDS: Sequence[tuple[str, str, re.Pattern[bytes]]] = (
    ("a MediaWiki dump", "wikipedia", re.compile(_SPACE + rb"(?:<\?xml[^>]{0,200}\?>\s*)?<mediawiki\b")),
    (
        "a part of a MediaWiki dump",
        "",
        re.compile(_SPACE + rb"<(?:siteinfo>\s*<sitename>|page>\s*<title>[^<]{1,500}</title>\s*<(?:ns|id|redirect)\b)"),
    ),
    (
        "WikiExtractor's output",
        "wikiextractor",
        re.compile(_SPACE + rb"<doc (?=[^>]{0,500}\burl=)[^>]{0,500}\btitle=[^>]{0,500}>"),
    ),
    ("a WARC file", "warc", re.compile(rb"WARC/\d\.\d\r?\n")),
    (
        "an HTML page",
        "html",
        re.compile(_SPACE + rb"(?:<\?xml[^>]{0,200}\?>\s*)?(?:<!--.{0,500}?-->\s*)?<(?:!doctype\s+html|html)\b", re.I | re.S),
    ),
    (
        "a dump of Wikimedia Enterprise",
        "html",
        re.compile(
            _SPACE + rb"\{\s*\"name\"\s*:\s*\"(?:[^\"\\]|\\.){0,600}\"\s*,\s*\"identifier\"\s*:\s*\d+\s*,[^\n]*?" + _ENTERPRISE
        ),
    ),
    ("a file of JSON objects", "jsonl", re.compile(_SPACE + rb"(?:\[\s*)?\{\s*\"[^\"\n]{1,100}\"\s*:")),
    ("a Parquet file", "parquet", re.compile(rb"PAR1")),
    ("an Arrow file", "arrow", re.compile(rb"ARROW1\0\0")),
    ("a PDF", "", re.compile(rb"%PDF-\d")),
    ("an RTF document", "", re.compile(rb"\{\\rtf1")),
    ("a zip archive", "", re.compile(rb"PK\x03\x04")),
    ("a tar archive", "", re.compile(rb".{257}ustar[\0 ]", re.S)),
    *((f"packed by {name}", "", FORMATS[ending].magic) for ending, name in _PACKERS.items()),
)
_ADVICE = {
    "a part of a MediaWiki dump": "put it back between <mediawiki> and </mediawiki> for source wikipedia",
    "a tar archive": "take its text out first, or, if it holds pages in HTML, name it as source html",
}


def is_text(head: bytes, tally: Tally) -> bool:
    """Whether a file that begins with these bytes may be text; False, with the tally told, where it is something else.

    Raises:
        DataError: it is something else, and the options say to stop.
    """
    return _passes(head, tally, frozenset(), "not_text", "no text")


def is_for(source: str, head: bytes, tally: Tally) -> bool:
    """Whether a file that begins with these bytes may be what `source`, the tally's, reads; else as `is_text`."""
    return _passes(head, tally, frozenset((source,)), f"not_{source}", "nothing")


def kind_of(head: bytes) -> tuple[str, str]:
    """What a file is by its first bytes, and the source that reads it; empty where nobody knows, or nothing does."""
    return next(((what, source) for what, source, begins in _KINDS if begins.match(head[:HEAD_BYTES])), ("", ""))


def _passes(head: bytes, tally: Tally, sources: frozenset[str], reason: str, nothing: str) -> bool:
    what, source = kind_of(head)
    if not what or source in sources:
        return True
    if what.startswith("packed"):
        remedy = "give it the ending of its format, such as .gz"
    else:
        remedy = _ADVICE.get(what) or (f"name it as source {source}" if source else "take its text out first")
    tally.damaged(reason, f"the file is {what}, {nothing} for source {tally.slice.kind}", remedy=remedy)
    return False
