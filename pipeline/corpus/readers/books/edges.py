"""What stands around the text of a book: credits, notes, lists of contents, catalogues."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cloze.core.words import MAY_BE_UNSPACED, count_words, width
from cloze.pipeline.corpus.document import OTHER_SCRIPTS
from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.readers.books.headings import (
    NUMBER_ONLY,
    alternatives,
    is_heading,
    key,
    words,
)
from cloze.pipeline.corpus.readers.plain_text import join_lines
from cloze.pipeline.corpus.readers.prose import ends_as_sentence, has_end

_CREDIT = re.compile(alternatives("credits"), re.IGNORECASE)
_BANNER = re.compile(alternatives("banners"), re.IGNORECASE)
_LONGEST_BANNER = 1500  # characters
_NOTE = re.compile(
    rf"[\[(*_+| ]*(?:{alternatives('notes')})|{alternatives('marks of italics')}", re.IGNORECASE
)
_CONTENTS = re.compile(
    rf"{alternatives('english contents')}|(?:{alternatives('contents')})[.:：]?", re.IGNORECASE
)
_THE_END = re.compile(rf"[\W_]*(?:{alternatives('ends')})[\W_]*", re.IGNORECASE)
_EDITION = re.compile(alternatives("editions"), re.IGNORECASE)
_SPEECH = re.compile('[ \t\u3000_]*(?:[-–—]|["“„«»‹「『‘])')
_COLUMNS = frozenset("page pages seite seiten bladz blz pag side sida strana стр".split())
_DIGIT = re.compile(r"\d")
_PAGE = re.compile(r"\d\W*$")
_ENTRY = re.compile(r"(?:[,.…·]|  ) *\d+\W*$")
# A price at the end of an entry, as in lists of a publisher's books.
_PRICE = re.compile(
    rf"(?:\b(?:{alternatives('prices')})\b.{{0,40}}\d|[$£€¥] ?\d[\d.,]*|\b\d+s\. ?(?:\d+d\.?)?"
    r"|\d[\d.,]* ?(?:fr|mark|kr|руб|коп|円|元)\.?)[\w .,;]{0,12}\W*$",
    re.IGNORECASE,
)
_OTHER_END = re.compile(rf"[{OTHER_SCRIPTS}]\W*$")  # no title page has such a mark
_FEWEST_PRICES, _FARTHEST_PRICE = 4, 6  # entries; blocks between two
_LONGEST_PRICED = 300  # characters
_LONG = 200  # columns of a paragraph that is no title page, whatever it ends in
_EDGE = 12  # blocks at either end that may be credits or notes


@dataclass(frozen=True)
class Block:
    """A paragraph, heading or stanza."""

    lines: tuple[str, ...]
    gap: int  # blank lines before the block

    @functools.cached_property
    def text(self) -> str:
        text = " ".join(self.lines)
        if not text.isascii() and MAY_BE_UNSPACED.search(text):
            text = join_lines(self.lines)
        return " ".join(text.split())

    @property
    def is_prose(self) -> bool:
        """Return True if the block is long and ends like a sentence, unlike title pages."""
        length = width(self.text)
        return length >= _LONG and is_closed(self.text) and length / len(self.lines) > 40

    @property
    def is_sentence(self) -> bool:
        """Return True if most words begin in lower case, and the block is long or has an end."""
        length = width(self.text)
        if self.is_spoken:
            return length >= 40 or not _has_case(self.text)
        return length >= _LONG and _has_case(self.text) and _is_lower(self.text)

    @functools.cached_property
    def is_spoken(self) -> bool:
        """Return True if the block may be a short sentence, or something that somebody says."""
        text = self.text
        if not ends_as_sentence(text.rstrip("_")):
            return False
        if _OTHER_END.search(text[-8:]) or (_SPEECH.match(text) and is_closed(text)):
            return True
        if _has_case(text):
            return _is_lower(text)
        return (is_closed(text) and count_words(text) >= 4) or width(text) >= 60


def is_closed(text: str) -> bool:
    """Return True if the text ends in an end mark, perhaps in italics."""
    return has_end(text.rstrip("_"))


def _has_case(text: str) -> bool:
    """Return True if most words begin with a letter that has two cases."""
    words = text.split()
    return sum(word[0].lower() != word[0].upper() for word in words) * 2 >= len(words)


def _is_lower(text: str) -> bool:
    """Return True if most words begin in lower case."""
    words = text.split()
    return sum(word[0].islower() for word in words) * 2 >= len(words)


def is_capitals(text: str) -> bool:
    """Return True if the text is in capitals; a capital among ideographs does not count."""
    return text.isupper() and _has_case(text)


def strip_edges(blocks: list[Block], tally: ReadCounters) -> list[Block]:
    """Remove credits, transcriber's notes, catalogues and `THE END`, and lists of contents."""
    blocks = _without_catalogue(blocks, tally)
    remaining: list[Block] = []
    in_note = False  # a transcriber's note with its own title
    titles: set[str] = set()  # of notes at the start; those at the end have them again
    for position, block in enumerate(blocks):
        text = block.text
        near_start, near_end = position < _EDGE, position >= len(blocks) - _EDGE
        if in_note and (near_end or (near_start and block.gap < 2 and not is_heading(text))):
            tally.drop_lines("transcriber_note", len(block.lines))
            continue
        in_note = False
        if (near_start or near_end or position * 20 >= len(blocks) * 19) and (
            _NOTE.match(text) or text in titles
        ):
            is_explained = "_" in text and near_start  # the marks of italics
            if is_explained and remaining and len(remaining[-1].text) < 30:
                tally.drop_lines("transcriber_note", len(remaining[-1].lines))
                titles.add(remaining.pop().text)
            in_note = (len(text) < 60 or is_explained) and "]" not in text
            tally.drop_lines("transcriber_note", len(block.lines))
        elif (near_start or near_end) and len(text) < _LONGEST_BANNER and _BANNER.search(text):
            tally.drop_lines("licence", len(block.lines))
        elif near_end and _EDITION.match(text):
            tally.drop_lines("licence", sum(len(after.lines) for after in blocks[position:]))
            break
        elif (near_start and _CREDIT.match(text)) or (
            (near_start or near_end) and _THE_END.fullmatch(text)
        ):
            tally.drop_lines("credit", len(block.lines))
        elif not re.search(r"[^\W_]", text):
            tally.drop_lines("ornament", len(block.lines))
        else:
            remaining.append(block)
    return _without_contents(remaining, tally)


def _is_priced(block: Block) -> bool:
    """Return True if the block is short and one of its lines ends in a price."""
    return (
        len(block.text) < _LONGEST_PRICED
        and any(_PRICE.search(line[-80:]) for line in block.lines if _DIGIT.search(line[-30:]))
        and not (block.is_spoken or _SPEECH.match(block.text))
    )


def _without_catalogue(blocks: list[Block], tally: ReadCounters) -> list[Block]:
    """Drop the publisher's list of books with prices at the end."""
    half = len(blocks) // 2
    if not any(map(_is_priced, blocks[-2 * _EDGE :])):
        return blocks
    priced = [position for position in range(half, len(blocks)) if _is_priced(blocks[position])]
    gaps = [right - left > _FARTHEST_PRICE for left, right in itertools.pairwise(priced)]
    priced = priced[len(gaps) - gaps[::-1].index(True) if True in gaps else 0 :]
    if len(priced) < _FEWEST_PRICES:
        return blocks
    begin = priced[0]
    while begin > half and not blocks[begin - 1].is_spoken and priced[0] - begin < _FARTHEST_PRICE:
        begin -= 1
    tally.drop_lines("catalogue", sum(len(block.lines) for block in blocks[begin:]))
    return blocks[:begin]


def _without_contents(blocks: list[Block], tally: ReadCounters) -> list[Block]:
    """Drop each list of contents."""
    remaining: list[Block] = []
    position = 0
    while position < len(blocks):
        block = blocks[position]
        end = position + 1
        if position * 2 < len(blocks) + 40 and (
            _CONTENTS.fullmatch(block.text) or _CONTENTS.fullmatch(block.lines[0].strip())
        ):
            end = _contents_end(blocks, position)
            tally.drop_lines("contents", sum(len(entry.lines) for entry in blocks[position:end]))
        else:
            remaining.append(block)
        position = end
    return remaining


def _contents_end(blocks: Sequence[Block], begin: int) -> int:
    """Return the first block after the contents: a heading that it lists.

    If prose comes before one, or none comes: the first block that is no entry.
    """
    # A last number may be a page or the chapter's own; without it, all chapters are alike.
    listed = _entries(blocks[begin].lines[1:])
    other: int | None = None
    for position, block in enumerate(blocks[begin + 1 :], begin + 1):
        heading = words(block.lines[0])
        may_recur = heading not in _COLUMNS and not _ENTRY.search(block.lines[0])
        if len(heading) >= 4 and may_recur and _is_listed(heading, listed):
            return position
        if NUMBER_ONLY.fullmatch(block.lines[0].strip()) and _is_listed(heading, listed):
            return other or position
        is_text = block.is_spoken or _SPEECH.match(block.text)
        if other is None and is_text and not _PAGE.search(block.text[-8:]):
            other = position
        if block.is_prose:
            return other or position
        listed += _entries(block.lines)
    return other or len(blocks)


def _entries(lines: Iterable[str]) -> list[str]:
    """Return entries without and with the last number: of a page, or of a chapter."""
    return [entry for line in lines for entry in (key(line), words(line))]


def _is_listed(heading: str, listed: list[str]) -> bool:
    """Return True if the heading is in the list, whole or as the beginning of an entry."""
    return any(entry == heading or entry.startswith(heading + " ") for entry in listed)
