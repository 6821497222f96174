"""The characters of a page from the web: those of its byte order mark, of whoever sent it, of its own `<meta>`, or what they look like."""

from __future__ import annotations

import codecs
import re

_META = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_META_BYTES = 4096
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_SURROGATES = re.compile("[\ud800-\udfff]")


def decoded(data: bytes, charset: str = "", *, html: bool) -> str:
    """The text of these bytes; those that its encoding does not allow become U+FFFD.

    Args:
        data: of the page.
        charset: that it was sent with; empty: none.
        html: whether it may name its own.
    """
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding, map_encoding_to_html5

    mark = next((name for sign, name in _MARKS if data.startswith(sign)), "")
    meta = _META.search(data[:_META_BYTES]) if html else None
    named = [mark, charset, meta[1].decode() if meta else ""]
    for label in filter(None, named):
        encoding = map_encoding_to_html5(label, fallback_utf8=False)
        if encoding is None or (encoding.startswith("utf-16") and label != mark):  # a page whose <meta> can be read is none
            continue
        try:
            return _without_mark(data.decode(encoding))
        except (UnicodeDecodeError, LookupError):
            continue
    try:
        return _without_mark(data.decode("utf-8"))
    except UnicodeDecodeError:
        found: str = bytes_to_str(
            data, detect_encoding(data, html5_compatible=True) or "windows-1252", errors="replace", strip_bom=True
        )
        return _SURROGATES.sub("\ufffd", found)


def _without_mark(text: str) -> str:
    return _SURROGATES.sub("\ufffd", text.removeprefix("\ufeff"))
