"""Letters, marks and words of every script, as filters, hashes and counts share them.

A word is a run of letters, digits, their combining marks, and joiners (UAX #29, rules WB4 to WB13).
A vowel sign or an accent never ends a word; Python's `\\w` and `str.isalnum` exclude marks and so
cut हिन्दी into four.

Some scripts put no space between words, and segmenting them needs a dictionary per language. For
these scripts, letters are counted without marks. Two ideographs or kana make a word; three letters
of the scripts of South East Asia and Tibet do. Segmented text has 1.7 letters per word in Chinese,
1.9 in Japanese and 3.5 in Thai (Universal Dependencies 2, PUD treebanks). Khmer has 3.1 and Lao 3.2
(Universal Declaration of Human Rights, segmented by ICU 78). So thirteen words are about as much
text in every script.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_ASSIGNED = 0x1E950  # the only marks above are variation selectors
UNSPACED = frozenset({"zh", "wuu", "yue", "ja", "th", "lo", "km", "my", "bo", "dz"})
"""Languages that put no space between words."""

JOINERS = "\u200c\u200d"
IGNORABLE = frozenset(
    [
        *JOINERS,
        "\u034f",
        *(
            chr(code)
            for first, last in ((0x20D0, 0x20FF), (0xFE00, 0xFE0F), (0xE0100, 0xE01EF))
            for code in range(first, last + 1)
        ),
    ]
)
"""Joiners, variation selectors and marks of symbols: they change only the look of a word."""

TSHEG = "\u0f0b\u0f0c"
"""Separators of the syllables of Tibetan words."""

LETTERS_A_WORD = {"ideographs": 2, "clusters": 3}
_BLOCKS = {
    # Han, kana, Bopomofo and Yi
    "ideographs": (
        (0x3005, 0x3007), (0x3021, 0x3029), (0x3031, 0x3035), (0x3041, 0x3096), (0x309D, 0x309F),
        (0x30A1, 0x30FA),
        (0x30FC, 0x312F), (0x31A0, 0x31BF), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
        (0xA000, 0xA48C),
        (0xF900, 0xFAFF), (0xFF66, 0xFF9D), (0x1B000, 0x1B16F), (0x20000, 0x323AF),
    ),
    # Thai, Lao, Tibetan, Burmese; Khmer; Tai Le, New Tai Lue; Tai Tham; Burmese; Burmese, Tai Viet:
    # UAX #14, class SA, and Tibetan
    "clusters": (
        (0x0E00, 0x109F), (0x1780, 0x17FF), (0x1950, 0x19DF), (0x1A20, 0x1AAF), (0xA9E0, 0xA9FF),
        (0xAA60, 0xAADF),
    ),
}  # fmt: skip


def _ranges(codes: Iterable[int]) -> str:
    """Return ascending code points as the content of a regex character class."""
    intervals: list[list[int]] = []
    for code in codes:
        if intervals and intervals[-1][1] == code - 1:
            intervals[-1][1] = code
        else:
            intervals.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in intervals)


def is_mark(character: str) -> bool:
    """Return whether it is a combining mark: vowel sign, virama, accent, point or tone."""
    return unicodedata.category(character)[0] == "M"


_CODES = [code for first, last in _BLOCKS["clusters"] for code in range(first, last + 1)]
_CLUSTER_CODES = [code for code in _CODES if chr(code).isalpha()]
IDEOGRAPHS = "".join(f"{chr(first)}-{chr(last)}" for first, last in _BLOCKS["ideographs"])
CLUSTERS = _ranges(_CLUSTER_CODES)
_MARKS = (
    _ranges(code for code in _CODES if is_mark(chr(code))) + "\u3099\u309a\ufe00-\ufe0f" + JOINERS
)

UNSPACED_LETTER = re.compile(f"[{IDEOGRAPHS}{CLUSTERS}][{_MARKS}]*")
"""A letter of a script without spaces between words, with its marks."""

_LETTERS_APART = re.compile(f"({UNSPACED_LETTER.pattern})")

_SQUARE = re.compile(f"[{IDEOGRAPHS}\u1100-\u115f\uac00-\ud7a3\uff01-\uff60]+")
MAY_BE_UNSPACED = re.compile("[^\x00-\u0dff\u10a0-\u177f\u1e00-\u2fff\uac00-\uf8ff]")
"""A class that is fast to search for: letters of scripts without spaces, and some others."""

_UNSPACED_WORD = re.compile(
    f"(?:(?:[{IDEOGRAPHS}][{_MARKS}]*){{1,{LETTERS_A_WORD['ideographs']}}}"
    f"|(?:[{CLUSTERS}][{_MARKS}{TSHEG}]*){{1,{LETTERS_A_WORD['clusters']}}})[^\\w\\s]*"
)


def count_words(text: str) -> int:
    """Count words: runs between blanks; without spaces, letters divided by LETTERS_A_WORD."""
    # Most texts end here: one search in C, before the pattern of scripts without spaces.
    if text.isascii() or MAY_BE_UNSPACED.search(text) is None:
        return len(text.split())
    # A blank for each such word, so that what is left are words between blanks.
    rest, count = _UNSPACED_WORD.subn(" ", text)
    return len(rest.split()) + count


def split_words(text: str) -> list[str]:
    """Return the words that `count_words` counts, in order, with their punctuation."""
    if text.isascii() or MAY_BE_UNSPACED.search(text) is None:
        return text.split()
    return _UNSPACED_WORD.sub(r" \g<0> ", text).split()


def letters_apart(text: str) -> str:
    """Return the text with blanks around each letter of a script without spaces."""
    if text.isascii() or MAY_BE_UNSPACED.search(text) is None:
        return text
    return " ".join(_LETTERS_APART.split(text))  # three times as fast as a substitution


@functools.cache
def word_pattern() -> Any:
    """Compile the pattern of a word, or of a run of letters in a script without spaces."""
    import regex

    return regex.compile(rf"[\p{{L}}\p{{M}}\p{{N}}{JOINERS}]+")


@functools.cache
def letters_pattern() -> Any:
    """Compile the pattern of a run of letters, marks and joiners, without digits."""
    import regex

    return regex.compile(rf"[\p{{L}}\p{{M}}{JOINERS}]+")


@functools.cache
def mark_codes() -> tuple[int, ...]:
    """Return the code points of all combining marks and joiners."""
    codes = (*map(ord, JOINERS), *range(0x300, _ASSIGNED), *range(0xE0100, 0xE01F0))
    return tuple(code for code in codes if is_mark(chr(code)) or chr(code) in JOINERS)


@functools.cache
def _no_marks() -> dict[int, None]:
    return dict.fromkeys(mark_codes())


def without_marks(text: str) -> str:
    """Remove combining marks and joiners: one character per visible letter or sign stays."""
    return text if text.isascii() else text.translate(_no_marks())


def width(text: str) -> int:
    """Return the number of characters; Han, kana and Hangul count twice (wide in UAX #11)."""
    return len(text) if text.isascii() else len(text) + sum(map(len, _SQUARE.findall(text)))


def caseless(text: str) -> str:
    """Return the text in composed form (NFC) and case-folded, for comparisons."""
    return unicodedata.normalize("NFC", text).casefold()


@functools.cache
def letters_a_word() -> npt.NDArray[np.uint8]:
    """Return the number of letters per word for each code point: uint8 [0x110000].

    Code points of scripts with spaces between words have 1.
    """
    import numpy as np

    letters = np.ones(0x110000, np.uint8)
    for first, last in _BLOCKS["ideographs"]:
        letters[first : last + 1] = LETTERS_A_WORD["ideographs"]
    letters[_CLUSTER_CODES] = LETTERS_A_WORD["clusters"]
    return letters
