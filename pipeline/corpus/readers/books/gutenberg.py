"""Removal of the text that Project Gutenberg puts around a book, in its wordings since 1971.

Three kinds of lines delimit a book. Since about 2003: `*** START OF THE PROJECT GUTENBERG EBOOK`
and its `END`. From 1992 on: the "small print", a licence between `***START**THE SMALL PRINT!` and
`*END*THE SMALL PRINT!`, usually before the book and sometimes after it. At all times: a last line
such as `End of the Project Gutenberg Etext of`, in the language of the book. A file may have
several books, each with these lines; a reposted book has new lines around the old ones.
"""

from __future__ import annotations

import re

from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.readers.books.headings import LISTS, alternatives

_FLAGS = re.MULTILINE | re.IGNORECASE
_HEAD = re.compile(alternatives("gutenberg heads"), _FLAGS)
_TAIL = re.compile(alternatives("gutenberg tails"), _FLAGS)
_SMALL_PRINT = re.compile(r".{0,10}START.{0,20}SMALL PRINT", re.IGNORECASE)
# A notice that recurs between the plays of the 1994 Shakespeare.
_NOTICE = re.compile(r"<<\s*THIS ELECTRONIC VERSION OF.{0,2000}?>>", re.DOTALL | re.IGNORECASE)
_TITLE = re.compile(
    r"^(?:Title|Titel|Titre|Título|Titulo|Titolo|Nimeke): *(.+)$|^\W*The Project Gutenberg "
    r"E-?(?:text|book) of (.{2,100}?)(?:,? by .{2,60})?\W*$",
    _FLAGS,
)
_OLD_FRAME = 40_000  # characters; a head this soon after another one belongs to the same frame


def strip_boilerplate(text: str, tally: ReadCounters) -> str:
    """Return the books in `text` without the text around them; dropped lines count as `licence`."""
    heads, tails = _marks(text)
    if not heads and not tails and "<<" not in text:
        return text
    books: list[str] = []
    begin: int | None = 0 if not heads else None
    first_tail = tails[0][0] if tails else len(text)
    if heads and heads[0][0] > first_tail and first_tail > _OLD_FRAME:
        begin = 0  # the book comes first, its frame after it
    for start, end, is_head in sorted(heads + tails):
        if is_head:
            if begin is not None and start - begin > _OLD_FRAME:
                books.append(text[begin:start])  # a frame without end: the next book follows
            begin = end
        elif begin is not None:
            head = next((head for head in heads if head[0] > start), None)
            # A small print soon afterwards ends an older head, unless hardly any text follows it.
            is_old_head = (
                head is not None
                and start - begin < _OLD_FRAME
                and _SMALL_PRINT.match(text, start)
                and len(text) - head[1] > start - begin
            )
            if not is_old_head:
                books.append(text[begin:start])
            begin = None
    if begin is not None:
        books.append(text[begin:])
    remaining = _NOTICE.sub("", "\n\n\n".join(book for book in books if book.strip()))
    tally.drop_lines("licence", count_lines(text) - count_lines(remaining))
    return remaining


def count_lines(text: str) -> int:
    """Return the number of lines that are not blank."""
    return sum(map(bool, map(str.strip, text.split("\n"))))


def _marks(text: str) -> tuple[list[tuple[int, int, bool]], list[tuple[int, int, bool]]]:
    """Return the heads and the tails of frames as (begin, end, is a head)."""
    heads: list[tuple[int, int, bool]] = []
    tails: list[tuple[int, int, bool]] = []
    last_end = -1
    for start in sorted(_lines_with(text)):
        if start <= last_end:
            continue
        last_end = start
        if head_match := _HEAD.match(text, start):
            heads.append((start, head_match.end(), True))
            last_end = head_match.end()
        elif tail_match := _TAIL.match(text, start):
            tails.append((start, tail_match.end(), False))
    return heads, tails


def _lines_with(text: str) -> set[int]:
    """Return the starts of the lines that contain one of the words."""
    starts = set()
    for word in LISTS["gutenberg words"]:
        position = text.find(word)
        while position >= 0:
            starts.add(text.rfind("\n", 0, position) + 1)
            line_end = text.find("\n", position)  # once a line: lines may be long
            position = text.find(word, line_end) if line_end >= 0 else -1
    return starts


def title(text: str) -> str:
    """Return the title in the head of a frame, or ""."""
    match = _TITLE.search(text[:6000])
    return " ".join((match[1] or match[2]).split()) if match else ""
