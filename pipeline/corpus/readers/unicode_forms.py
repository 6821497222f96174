"""Detection of UTF-8, UTF-16 and UTF-32 by byte order mark, and of UTF-16 by its zero bytes."""

from __future__ import annotations

import codecs

BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
SAMPLE_BYTES = 4096
_ASCII = bytes(range(32, 127))
_MOST_ASCII = 0.8  # share of ASCII bytes in UTF-16 without zero bytes; Chinese has about half
_FEWEST_ZEROS = 0.02  # share of characters below U+0100: blanks and line ends, in any script
_MOST_UNPRINTABLE = 0.02  # share of characters; format characters such as U+200C count


def detect_unicode(data: bytes) -> tuple[str, bytes]:
    """Return (encoding, byte order mark) of a text; the encoding is empty if undetermined.

    Args:
        data: the beginning of the text; SAMPLE_BYTES of it are examined.
    """
    data = data[:SAMPLE_BYTES]
    for mark, encoding in BYTE_ORDER_MARKS:
        if data.startswith(mark):
            content = data[len(mark) :]
            is_other_text = (
                mark in _UTF16_MARKS
                and b"\0" not in content
                and len(content.translate(None, _ASCII)) <= (1 - _MOST_ASCII) * len(content)
            )
            return ("" if is_other_text else encoding), mark
    for encoding, high, low in (
        ("utf-16-le", data[1::2], data[::2]),
        ("utf-16-be", data[::2], data[1::2]),
    ):
        if (
            b"\0" in high
            and b"\0" not in low
            and high.count(0) >= _FEWEST_ZEROS * len(high)
            and _is_text(data, encoding)
        ):
            return encoding, b""
    return "", b""


def _is_text(data: bytes, encoding: str) -> bool:
    """Return True if the bytes decode to printable characters and white space."""
    decoder = codecs.getincrementaldecoder(encoding)()  # the last character may be incomplete
    try:
        text = decoder.decode(data)
    except UnicodeDecodeError:
        return False
    unprintable_count = sum(
        not (character.isprintable() or character.isspace()) for character in text
    )
    return len(text) >= 8 and unprintable_count <= _MOST_UNPRINTABLE * len(text)
