"""Where the words of a plain text are, roughly as CoNLL's corpora have them, so that a tagger sees what it was trained on.

A word is what stands between spaces, without the punctuation at its ends, which is words of its own: `(Baghdad).` is four. Inside it
punctuation stays (`AC-DC`, `3,000.5`, `1996-08-22`), and so does the stop of what has stops inside (`U.N.`). An English `'s` or `n't` is a word
(`Chelsea's`), a name's `@` or `#` is none (`@paulwalk`), and each character of a script without spaces is one (Chinese, Japanese).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

Span = tuple[int, int]  # from this character to before that one

BETWEEN = re.compile(r"\S+")
# ideographs, kana and their extensions: written without spaces
ALONE = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]")
CLITIC = re.compile(r"(?:n['’]t|['’](?:s|re|ve|ll|d|m))$", re.IGNORECASE)
SIGNS = "@#"


def words_of(text: str) -> list[Span]:
    """The words of a text, in their order."""
    return [word for found in BETWEEN.finditer(text) for word in _cut(text, found.start(), found.end())]


def between_spaces(text: str) -> list[Span]:
    """The words of a text whose words are set off by spaces already."""
    return [found.span() for found in BETWEEN.finditer(text)]


def _cut(text: str, start: int, end: int) -> Iterator[Span]:
    """The words of a stretch without spaces."""
    here = start
    for found in ALONE.finditer(text, start, end):
        yield from _peeled(text, here, found.start())
        yield found.span()
        here = found.end()
    yield from _peeled(text, here, end)


def _peeled(text: str, start: int, end: int) -> Iterator[Span]:
    """The words of a stretch without spaces and ideographs: what is left of it, and the punctuation at its ends."""
    after: list[Span] = []
    while (
        start < end and _is_mark(text[start]) and not (text[start] in SIGNS and start + 1 < end and text[start + 1].isalnum())
    ):
        if CLITIC.fullmatch(text, start, end):
            break
        yield start, start + 1
        start += 1
    while start < end and _is_mark(text[end - 1]) and not _abbreviates(text[start:end]):
        after.append((end - 1, end))
        end -= 1
    clitic = CLITIC.search(text, start, end)
    if clitic and clitic.start() > start:
        yield start, clitic.start()
        start = clitic.start()
    if start < end:
        yield start, end
    yield from reversed(after)


def _abbreviates(word: str) -> bool:
    """Whether the mark at its end is the stop of an abbreviation, for there is another one inside."""
    return word.endswith(".") and word[-2:-1].isalnum() and "." in word[:-1]


def _is_mark(letter: str) -> bool:
    return unicodedata.category(letter)[0] in "PS"
