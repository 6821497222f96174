"""What a file is by its first bytes, for readers that would take anything for text: books and plain text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipeline.corpus.readers.base import Tally
from pipeline.corpus.readers.streams import FORMATS

HEAD_BYTES = 4096
_PACKERS = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
_SPACE = rb"(?:\xef\xbb\xbf)?\s*"

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
        "",
        re.compile(_SPACE + rb"(?:<\?xml[^>]{0,200}\?>\s*)?(?:<!--.{0,500}?-->\s*)?<(?:!doctype\s+html|html)\b", re.I | re.S),
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
    "an HTML page": "no source reads pages alone; take its text out, or keep pages in a WARC file for source warc",
}


def is_text(head: bytes, tally: Tally) -> bool:
    """Whether a file that begins with these bytes may be text; False, with the tally told, where it is something else.

    Raises:
        DataError: it is something else, and the options say to stop.
    """
    for what, source, begins in _KINDS:
        if not begins.match(head[:HEAD_BYTES]):
            continue
        if what.startswith("packed"):
            remedy = "give it the ending of its format, such as .gz"
        else:
            remedy = f"name it as source {source}" if source else _ADVICE.get(what, "take its text out first")
        tally.damaged("not_text", f"the file is {what}, no text for source {tally.slice.kind}", remedy=remedy)
        return False
    return True
