"""HTTP responses in web archives: their head and their decoded body.

Crawlers store a body as it was sent or decoded, and keep its header in either case. So a header is
only a hint: the bytes of the body decide whether it is compressed or in chunks.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Mapping

from cloze.pipeline.corpus.readers.streams import FORMATS, CorruptStreamError, Streams

LONGEST_HEAD = 1 << 18  # bytes of header fields
_STATUS = re.compile(rb"\s{0,8}HTTP/\d(?:\.\d)?[ \t]+(\d{3})\b[^\n]{0,1000}(?:\n|\Z)")
_FIELD = re.compile(rb"[A-Za-z][\w-]{0,60}[ \t]*:")
_FIELDS = re.compile(rb"((?:[^\r\n<][^\n]*(?:\n|\Z))*)(?:\r?\n)?")
_FOLD = re.compile(rb"\n[ \t]+")
_MOST_LAYERS = 3  # compressions of one body
_PIECE = 1 << 16


def parse_response(
    data: bytes, is_page: Callable[[bytes], object], limit: int
) -> tuple[int, Mapping[str, str], bytes]:
    """Return (status, header fields by lower-case name, decoded body) of a response.

    Args:
        data: content of the record.
        is_page: test of whether bytes begin as an HTML page.
        limit: the body ends after `limit + 1` decoded bytes.

    Returns:
        Status 200 for a page without a status line, and 0 for what is no response.
    """
    status, begin, fields = 0, 0, dict[str, str]()
    while match := _STATUS.match(data, begin):  # 100 Continue and redirects precede the last one
        status = int(match[1])
        fields, begin = read_fields(data, match.end())
    if not status and is_page(data):
        status = 200
    elif not status and _FIELD.match(data):
        fields, begin = read_fields(data, 0)
        status = 200 if "content-type" in fields else 0
    return status, fields, decode_body(data[begin:], fields, limit) if status else b""


def read_fields(data: bytes | bytearray, begin: int) -> tuple[dict[str, str], int]:
    """Return header fields by lower-case name, and the first byte after them and their blank line.

    Lines end with LF or CRLF. A line that begins as markup ends the fields, too.
    """
    match = _FIELDS.match(data, begin, begin + LONGEST_HEAD)
    assert match is not None  # it may be empty
    fields = {}
    for line in _FOLD.sub(b" ", match[1]).split(b"\n"):
        name, colon, value = line.partition(b":")
        if colon:
            fields[name.strip().lower().decode("latin-1")] = value.strip().decode(errors="replace")
    return fields, match.end()


def decode_body(body: bytes, fields: Mapping[str, str], limit: int) -> bytes:
    """Return a body without chunks and compression; a damaged body up to the damage.

    Args:
        body: as stored.
        fields: header fields by lower-case name.
        limit: at most `limit + 1` decoded bytes are returned.
    """
    body = _join_chunks(body, stated="chunked" in fields.get("transfer-encoding", "").lower())
    codings = fields.get("content-encoding", "").lower()
    for _ in range(_MOST_LAYERS):
        decoded = _unpack(body, codings, limit)
        if decoded is None:
            break
        body = decoded
    return body


_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]{0,1000})?\r?\n")


def _join_chunks(body: bytes, *, stated: bool) -> bytes:
    """Return the body without the sizes of its chunks; unchanged if it has none.

    What follows a wrong size stays. Without the header, every size must be right.
    """
    pieces: list[bytes] = []
    position = 0
    while match := _CHUNK.match(body, position):
        size = int(match[1], 16)
        begin, position = match.end(), match.end() + size
        if not size:
            return b"".join(pieces) if pieces or stated else body
        pieces.append(body[begin:position])
        if position >= len(body):  # cut off by the crawler
            return b"".join(pieces) if stated else body
        line_end = re.compile(rb"\r?\n").match(body, position)
        if line_end is None:
            pieces.pop()
            position = begin
            break
        position = line_end.end()
    return b"".join((*pieces, body[position:])) if stated and pieces else body


def _unpack(body: bytes, codings: str, limit: int) -> bytes | None:
    """Return the body with one compression less; None if it has none."""
    for ending in (".gz", ".zst"):
        if FORMATS[ending].magic.match(body):
            return _unpack_streams(body, ending, limit)
    if not body or body.lstrip()[:1] == b"<":
        return None
    if "deflate" in codings:  # with zlib's head, or, against RFC 9110, without
        for bits in (15, -15):
            try:
                return zlib.decompressobj(bits).decompress(body, limit + 1) or None
            except zlib.error:
                continue
    if "br" in re.split(r"[\s,]+", codings):
        import brotli

        try:
            return brotli.Decompressor().process(body, output_buffer_limit=limit + 1) or None
        except brotli.error:
            return None
    return None


def _unpack_streams(body: bytes, ending: str, limit: int) -> bytes | None:
    source, pieces, size = Streams(io.BytesIO(body), FORMATS[ending]), list[bytes](), 0
    try:
        while size <= limit and (piece := source.read(_PIECE)):
            pieces.append(piece)
            size += len(piece)
    except CorruptStreamError:
        pass  # what precedes the damage is text
    return b"".join(pieces)[: limit + 1] or None
