"""Encodings of plain text: Unicode by its marks and zero bytes, others where detection is sure.

chardet ranks the encodings by models of letters for each language. Its guess counts only if
py3langid finds the same language in the decoded text: both differ on a language that chardet lacks.
Windows-1252 needs no model, but a language that it can write, and hardly a symbol inside a word:
`ma¤ana` is a text of MS-DOS. A text whose signs beyond ASCII are no letters fits it, too.
"""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple

from cloze.core.words import UNSPACED

# Encodings in which files of text are met, by chardet's names. The others are of mainframes, of one
# vendor, or differ from these in letters that are rarer than their mistakes.
_ENCODINGS = (
    "big5hkscs cp1250 cp1251 cp1252 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258 cp437 cp737 cp775 "
    "cp850 cp852 cp857 cp862 cp866 cp874 cp932 cp949 euc_jis_2004 gb18030 hz iso2022_jp_2 "
    "iso8859-13 iso8859-15 iso8859-2 iso8859-3 iso8859-4 iso8859-5 iso8859-6 iso8859-7 iso8859-8 "
    "iso8859-9 johab koi8-r koi8-u mac-cyrillic mac-latin2 mac-roman ptcp154 shift_jis_2004 tis-620"
).split()
_WESTERN = "windows-1252"
# Languages of which Windows-1252 lacks letters.
_NOT_WESTERN = frozenset(
    "ar az be bg bs cs cy el eo et fa he hi hr hu hy ja ka kk ko ky lt lv mk mn mt pl ps ro ru sk "
    "sl sr th tr ug uk ur vi zh".split()
)
_ICELANDIC = frozenset("ðþÐÞ")  # where Turkish has ğ and ş
# Languages that the two models of language confuse.
_ALIKE = ({"hr", "sr", "bs", "sl"}, {"cs", "sk"}, {"no", "da", "nb", "nn"}, {"ru", "bg", "mk"})
_SURE = 0.25  # chardet's confidence; on whole files its mistakes have less
_SAMPLE = 100_000  # bytes of lines with letters that are not ASCII
# Inside words Windows-1252 has no such symbol, but MS-DOS and the Macintosh have letters there.
_SYMBOL_INSIDE = re.compile("[^\\W\\d_][¡-©«¬®-³¶¹»-¿×÷€‚ƒ„†-‰‹•˜™›][^\\W\\d_]")
_MOST_SYMBOLS, _MISPRINTS = 0.05, 5000  # share of the letters beyond ASCII; or one in characters
_MOST_HIGH = 0.4  # share of letters beyond ASCII in Windows-1252; Western languages: below a fifth
_FEWEST_HIGH = 20  # letters beyond ASCII that outweigh another guess
# White space, marks of direction and joiners, and the mark that ends a CP/M text.
_HARMLESS = dict.fromkeys(
    (*range(9, 14), 0x1A, *range(0x1C, 0x20), 0xA0, 0xAD, 0x3000, *range(0x200C, 0x2010))
)
# ISO 8859 has no characters where Windows has quotation marks; texts mix both.
_C1 = {code: bytes([code]).decode("cp1252", "ignore") or None for code in range(0x80, 0xA0)}


class Guess(NamedTuple):
    """Encoding of a text: its name if it is sure, else empty, and the likely ones."""

    encoding: str
    candidates: tuple[str, ...]


def shifted(data: bytes) -> str:
    """Return the name of the encoding if ASCII bytes are ISO-2022-JP or HZ; else an empty text."""
    for shift, encoding in ((b"\x1b$", "iso2022_jp_2"), (b"~{", "hz")):
        if shift in data:
            text = decode(data[:_SAMPLE], encoding, final=False)
            if text and _language(text) in UNSPACED:
                return encoding
    return ""


def high_lines(data: bytes) -> bytes:
    """Return the lines with bytes beyond ASCII."""
    return b"".join(line for line in data.splitlines(keepends=True) if not line.isascii())


def detect(data: bytes) -> Guess:
    """Return the encoding of a text that is neither ASCII nor Unicode."""
    import chardet

    sample = (high_lines(data) + data)[:_SAMPLE]
    ranked = chardet.detect_all(sample, include_encodings=_ENCODINGS, ignore_threshold=True)
    names = [str(guess["encoding"]).lower() for guess in ranked[:5]]
    texts = {name: decode(sample, name, final=False) for name in names}
    likely = [encoding for encoding, text in texts.items() if text]
    western = decode(sample, _WESTERN, final=False)
    top = texts[likely[0]] if likely else ""
    if top and likely[0] == "iso8859-15" and "¤" not in western:  # it has no euro sign
        top = western
    if top and top != western:
        guess = ranked[names.index(likely[0])]
        if guess["confidence"] >= _SURE and _agree(guess["language"], _language(top)):
            return Guess(likely[0], ())
    language, is_plain = _language(western), _ICELANDIC.isdisjoint(western)
    is_other = language not in ("is", "fo") if not is_plain else language in _NOT_WESTERN
    is_symbols = not any(letter > "\x7f" and letter.isalpha() for letter in western)
    fewest = 0 if is_symbols or (top == western and is_plain) else _FEWEST_HIGH
    if western and _reads_well(western, fewest) and not (is_other and fewest):
        return Guess(_WESTERN, ())
    return Guess("", tuple(likely[:3]))


def decode(data: bytes, encoding: str, *, final: bool = True) -> str:
    """Return the printable text, or "" if it is none; if not `final`, its end may be cut."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(data, final).translate(_C1)
    except (LookupError, UnicodeDecodeError):
        return ""
    return text if text.translate(_HARMLESS).isprintable() else ""


def _language(text: str) -> str:
    import py3langid

    return str(py3langid.classify(text[:_SAMPLE])[0])


def _agree(language: str | None, found: str) -> bool:
    return language == found or found in UNSPACED or any({language, found} <= set for set in _ALIKE)


def _reads_well(text: str, fewest: int) -> bool:
    """Return True if hardly a symbol is inside words, and not too many letters are beyond ASCII."""
    letters = sum(map(str.isalpha, text))
    high = sum(character > "\x7f" and character.isalpha() for character in text)
    symbols = len(_SYMBOL_INSIDE.findall(text))
    return fewest <= high <= letters * _MOST_HIGH and symbols <= max(
        high * _MOST_SYMBOLS, len(text) / _MISPRINTS
    )


# UTF-8, UTF-16 and UTF-32 by their byte order mark, and UTF-16 by its zero bytes.

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
    """Return (encoding or "", byte order mark) of a text by the SAMPLE_BYTES at its beginning."""
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
    even, odd = data[::2], data[1::2]
    for encoding, high, low in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        if (
            b"\0" in high
            and b"\0" not in low
            and high.count(0) >= _FEWEST_ZEROS * len(high)
            and _is_text_in(data, encoding)
        ):
            return encoding, b""
    return "", b""


def _is_text_in(data: bytes, encoding: str) -> bool:
    """Return True if the bytes decode to printable characters and white space."""
    decoder = codecs.getincrementaldecoder(encoding)()  # the last character may be incomplete
    try:
        text = decoder.decode(data)
    except UnicodeDecodeError:
        return False
    unprintable = sum(not (character.isprintable() or character.isspace()) for character in text)
    return len(text) >= 8 and unprintable <= _MOST_UNPRINTABLE * len(text)
