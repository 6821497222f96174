"""The layout of a book in plain text: what belongs to it, where its paragraphs and its chapters begin.

Three layouts are common, and told apart by the lengths of lines: hard-wrapped lines with blank lines between
paragraphs (Project Gutenberg), hard-wrapped lines without blank lines, and one line a paragraph.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from pipeline.corpus.readers.base import Tally
from pipeline.corpus.readers.books import gutenberg

_CREDIT = re.compile(
    r"(?:this )?(?:e-?(?:text|book)|html|updated|digital|electronic)\b.{0,40}\b(?:prepared|produced|created|transcribed|editions?|version)\b|"
    r"(?:produced|prepared|transcribed|scanned|proofread|digitized) (?:by|from)\b|credits: |project gutenberg",
    re.IGNORECASE,
)
_BANNER = re.compile(
    r"proje[ck]t[ -]gutenberg|plain vanilla electronic|should be (?:named|labell?ed)|corrected editions of (?:our|this)|\bvolunteers and donations|"
    r"distributed proofread|pgdp\.net|gutenberg\.(?:org|net|ca)|gallica\.bnf|archive\.org/details|anniversary of project",
    re.IGNORECASE,
)
_LONGEST_BANNER = 1500  # characters
_NOTE = re.compile(r"[\[(*_+| ]*transcriber(?:['’]?s['’]?)?(?: |-)?(?:note|comment|remark|endnote)", re.IGNORECASE)
_CONTENTS = re.compile(
    r"_?(?:table of )?contents(?: of .*)?[.:_]?|(?:list of )?(?:illustrations|plates|maps|figures)[.:]?|index[.:]?",
    re.IGNORECASE,
)
_THE_END = re.compile(r"[\W_]*(?:the end|finis|fin|end of (?:the )?(?:book|volume|part).{0,20})[\W_]*", re.IGNORECASE)

_ROMAN = r"(?=[ivxlcm])m{0,3}(?:cm|cd|d?c{0,3})(?:xc|xl|l?x{0,3})(?:ix|iv|v?i{0,3})"
_ORDINAL = (
    r"(?:first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth|thirteenth|fourteenth|fifteenth|sixteenth|"
    r"seventeenth|eighteenth|nineteenth|twentieth|last)"
)
_UNIT = r"(?:one|two|three|four|five|six|seven|eight|nine)"
_CARDINAL = (
    rf"(?:(?:twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)(?:[- ]{_UNIT})?|{_UNIT}|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|"
    r"seventeen|eighteen|nineteen)"
)
_PART = r"(?:chapter|book|letter|part|volume|vol|canto|act|scene|section|stave|chap|phase|epoch|period|narrative|lecture|sermon|essay)"
_HEADING = re.compile(
    rf"_?(?:{_PART}\.? +(?:the +)?(?:{_ROMAN}|\d{{1,3}}|{_CARDINAL}|{_ORDINAL})\b(?:[.:,\]_ )—–-]*$|[.:,]?[ —–-]+.{{1,70}}$|\.?:.{{1,70}}$)|"
    rf"(?:the )?{_ORDINAL} {_PART}[.:_]*$|"
    r"(?:author['’]s |editor['’]s |translator['’]s )?(?:preface|foreword|prologue|epilogue|introduction|introductory|afterword|appendix|conclusion|"
    r"advertisement|dedication|postscript)(?: to .{1,50})?[.:_]*$)",
    re.IGNORECASE,
)
_NUMBER_ONLY = re.compile(rf"(?:{_ROMAN})\.?|\d{{1,2}}\.?", re.IGNORECASE)
_NUMBER_TITLE = re.compile(rf"(?:(?:{_ROMAN})|\d{{1,2}})[.:]? *[—–-]* *(.{{2,60}})", re.IGNORECASE)

_APPARATUS = re.compile(
    r"\[(?:Illustration|Pg|Page|Image|Sidenote|Blank Page|Decoration|Music|Greek)\b[^\]]*\]|\{\d+\}|\[\d{1,3}\]|\[[*†‡]\]",
    re.IGNORECASE,
)
_FOOTNOTE = re.compile(r"\[(?:Footnote|Note)\b|\[\d{1,3}\] ", re.IGNORECASE)
_EMPHASIS = re.compile(r"(?<!\w)_([^_\n]+(?:\n[^_\n]+)?)_(?!\w)|(?<!\w)=([^=\n]{1,80})=(?!\w)|(?<=\d)_([a-z]{1,2})_")
_TAG = re.compile(r"</?(?:i|b|u|em|strong|sup|sub|small|br|center|p)\s*/?>", re.IGNORECASE)
_SPACED_COMMA = re.compile(r"(?<=[^\W_]) +([,;])(?=\s)")
_LETTER = re.compile(r"[^\W\d_]")
# Of English books, whose paragraphs also end in a colon or a dash before verse and letters.
_PROSE_END = re.compile(r"[.!?:;,—-][\"'”’)\]_]*$")
_CLOSED = re.compile(r"[.!?][\"'”’)\]_]*$")

_LONG_LINES = 120  # characters; where a tenth of the lines is longer, each is a paragraph
_LONGEST_FRONT = 40  # blocks that may be title page, dedication and the like
_EDGE = 12  # blocks at either end of the book that may be credits or notes


@dataclass(slots=True)
class Book:
    """A book: its title, and its sections as (heading, paragraphs), headings and paragraphs each on one line."""

    title: str = ""
    sections: list[tuple[str, list[str]]] = field(default_factory=list)


@dataclass(frozen=True)
class _Block:
    """Lines between blank ones."""

    lines: tuple[str, ...]
    gap: int  # blank lines before it

    @functools.cached_property
    def text(self) -> str:
        return " ".join(" ".join(self.lines).split())

    @property
    def is_prose(self) -> bool:
        """Long enough and closed like a sentence: no title page, no contents."""
        text = self.text
        return len(text) >= 200 and bool(_CLOSED.search(text)) and len(text) / len(self.lines) > 40

    @property
    def is_sentence(self) -> bool:
        """Closed like a sentence, and its words mostly in small letters, as they are on no title page."""
        text = self.text
        words = text.split()
        return (
            len(text) >= 40 and bool(_CLOSED.search(text)) and sum(word[0].islower() for word in words) * 10 >= len(words) * 6
        )


def read(text: str, tally: Tally) -> Book:
    """The book in `text`, without its frame. What is left out is counted as `dropped_lines`."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n\n").replace("\xa0", " ")
    book = Book()
    title = gutenberg.title(text)
    text = gutenberg.strip_frame(text, tally)
    if "[" in text or "{" in text:
        text = _APPARATUS.sub("", text)
    blocks = _blocks(text)
    if not title and blocks and len(blocks[0].text) <= 80:
        book.title = blocks[0].text.rstrip(" ;:.")
    elif title:
        book.title = title
    blocks = _strip_edges(blocks, tally)
    book.sections = _sections(blocks, tally)
    return book


def _blocks(text: str) -> list[_Block]:
    """The text in blocks of lines: paragraphs, headings, stanzas, in the layout that it has."""
    lines = [line.rstrip() for line in text.split("\n")]
    lengths = sorted(len(line) for line in lines if line)
    if not lengths:
        return []
    if lengths[len(lengths) * 9 // 10] > _LONG_LINES:
        return list(_line_blocks(lines))
    blocks = list(_blank_line_blocks(lines))
    if len(blocks) * 25 < len(lengths):  # hardly a blank line
        width = lengths[len(lengths) * 99 // 100]
        blocks = [part for block in blocks for part in _unwrapped(block, width)]
    return blocks


def _line_blocks(lines: list[str]) -> Iterator[_Block]:
    gap = 0
    for line in lines:
        if line.strip():
            yield _Block((line,), gap)
            gap = 0
        else:
            gap += 1


def _blank_line_blocks(lines: list[str]) -> Iterator[_Block]:
    open_lines: list[str] = []
    gap = before = 0
    for line in [*lines, ""]:
        if line.strip():
            if not open_lines:
                before, gap = gap, 0
            open_lines.append(line)
            continue
        if open_lines:
            yield _Block(tuple(open_lines), before)
            open_lines = []
        gap += 1


def _unwrapped(block: _Block, width: int) -> Iterator[_Block]:
    """Paragraphs that follow each other without a blank line: one ends where the next word would still have fitted."""
    open_lines: list[str] = []
    gap = block.gap
    for line in block.lines:
        previous = open_lines[-1] if open_lines else ""
        ended = bool(previous) and _CLOSED.search(previous) and len(previous) + 1 + len(line.split()[0]) < width - 1
        if open_lines and (ended or _is_heading(line.strip()) or _is_heading(previous.strip())):
            yield _Block(tuple(open_lines), gap)
            open_lines, gap = [], 0
        open_lines.append(line)
    if open_lines:
        yield _Block(tuple(open_lines), gap)


def _strip_edges(blocks: list[_Block], tally: Tally) -> list[_Block]:
    """Without credits, transcriber's notes and `THE END` at either end, and without lists of contents."""
    kept: list[_Block] = []
    noted = False  # inside a transcriber's note that has a title of its own
    for position, block in enumerate(blocks):
        text = block.text
        head, tail = position < _EDGE, position >= len(blocks) - _EDGE
        if noted and (tail or (head and block.gap < 2 and not _is_heading(text))):
            tally.drop_lines("transcriber_note", len(block.lines))
            continue
        noted = False
        if (head or tail or position * 20 >= len(blocks) * 19) and _NOTE.match(text):
            noted = len(text) < 60 and "]" not in text
            tally.drop_lines("transcriber_note", len(block.lines))
        elif (head or tail) and len(text) < _LONGEST_BANNER and _BANNER.search(text):
            tally.drop_lines("licence", len(block.lines))
        elif (head and _CREDIT.match(text)) or ((head or tail) and _THE_END.fullmatch(text)):
            tally.drop_lines("credit", len(block.lines))
        elif not re.search(r"[^\W_]", text):
            tally.drop_lines("ornament", len(block.lines))
        else:
            kept.append(block)
    return _without_contents(kept, tally)


def _without_contents(blocks: list[_Block], tally: Tally) -> list[_Block]:
    """Drop each list of contents: from its title to the first prose, or to the first heading that was in the list."""
    kept: list[_Block] = []
    listed: list[str] | None = None
    for position, block in enumerate(blocks):
        if (
            listed is None
            and position * 2 < len(blocks) + 40
            and (_CONTENTS.fullmatch(block.text) or _CONTENTS.fullmatch(block.lines[0].strip()))
        ):
            listed = [_key(line) for line in block.lines[1:]]
            tally.drop_lines("contents", len(block.lines))
        elif listed is not None and (block.is_prose or _in_list(_key(block.lines[0]), listed)):
            listed = None
            kept.append(block)
        elif listed is not None:
            listed += [_key(line) for line in block.lines]
            tally.drop_lines("contents", len(block.lines))
        else:
            kept.append(block)
    return kept


def _in_list(heading: str, listed: list[str]) -> bool:
    """Whether a heading stands in the list already, whole, or as the beginning of an entry."""
    return len(heading) >= 4 and any(entry == heading or entry.startswith(heading + " ") for entry in listed)


def _key(line: str) -> str:
    """A heading for comparison: words in lower case, without the page number at the end."""
    return re.sub(r"[\W_]+", " ", re.sub(r"[ .]+\d+\s*$", "", line.lower())).strip()


def _is_heading(text: str) -> bool:
    return len(text) <= 100 and bool(_HEADING.match(text))


def _sections(blocks: list[_Block], tally: Tally) -> list[tuple[str, list[str]]]:
    """Cut at headings; headings themselves are no text, and what stands before the first prose or chapter is none."""
    spaced = sum(block.gap >= 2 for block in blocks) >= 3
    sections: list[tuple[str, list[str]]] = [("", [])]
    begun = fresh = False  # past the title page; right after a heading, where its subtitle may stand
    for position, block in enumerate(blocks):
        text = block.text
        chapter = _opens_chapter(block, text)
        begun = begun or chapter or block.is_sentence or position >= _LONGEST_FRONT
        if chapter or (_is_capital_heading(block, text) and spaced):
            tally.drop_lines("heading", len(block.lines))
            if fresh or not sections[-1][1]:
                sections[-1] = (f"{sections[-1][0]} {text}".strip() if fresh and begun else text, [])
            else:
                sections.append((text, []))
            fresh = True
        elif not begun:
            tally.drop_lines("front_matter", len(block.lines))
        elif fresh and len(block.lines) <= 2 and len(text) <= 90 and (not _PROSE_END.search(text) or text.isupper()):
            tally.drop_lines("heading", len(block.lines))
        elif _FOOTNOTE.match(text):
            tally.drop_lines("footnote", len(block.lines))
            fresh = False
        elif not _LETTER.search(text):
            tally.drop_lines("ornament", len(block.lines))
        else:
            sections[-1][1].append(_plain(text))
            fresh = False
    if not any(paragraphs for _, paragraphs in sections):  # nothing but a title page: then that is the text
        return [("", [_plain(block.text) for block in blocks])] if blocks else []
    return sections


def _plain(text: str) -> str:
    """A paragraph without the signs that stand for italics, and without blanks before commas."""
    if "_" in text or "=" in text:
        text = _EMPHASIS.sub(lambda match: match[1] or match[2] or match[3], text)
    if "<" in text:
        text = _TAG.sub("", text)
    return _SPACED_COMMA.sub(r"\1", text) if " ," in text or " ;" in text else text


def _opens_chapter(block: _Block, text: str) -> bool:
    """Whether the block is the heading of a chapter by its words or its number."""
    if len(block.lines) > 3 or len(text) > 120:
        return False
    first = block.lines[0].strip()
    if _is_heading(text) or (len(block.lines) > 1 and _is_heading(first) and not _CLOSED.search(text)):
        return True
    if _NUMBER_ONLY.fullmatch(first):
        if len(block.lines) == 1:
            return first[0].isupper() or (first[0].isdigit() and (first.endswith(".") or block.gap >= 1))
        return first[0].isupper() and not _PROSE_END.search(text)
    numbered = _NUMBER_TITLE.fullmatch(text)
    return bool(numbered and numbered[1].isupper()) and len(block.lines) <= 2


def _is_capital_heading(block: _Block, text: str) -> bool:
    """Whether the block is capitals alone, with more than the usual space before it."""
    return len(block.lines) <= 2 and block.gap >= 2 and 4 <= len(text) <= 80 and text.isupper() and text[0] not in '"“'
