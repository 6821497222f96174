"""Books in plain text: front and back matter, paragraphs and chapters.

Line lengths show the layout: one line per paragraph, or wrapped lines with blank lines between
paragraphs (Project Gutenberg) or without.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from cloze.core.words import word_pattern
from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.readers.books import gutenberg

_CREDIT = re.compile(
    r"(?:this )?(?:e-?(?:text|book)|html|updated|digital|electronic)\b.{0,40}\b(?:prepared|"
    r"produced|created|transcribed|editions?|version)\b|"
    r"(?:produced|prepared|transcribed|scanned|proofread|digitized) (?:by|from)\b|credits: |"
    r"project gutenberg",
    re.IGNORECASE,
)
_BANNER = re.compile(
    r"proje[ck]t[ -]gutenberg|plain vanilla electronic|should be (?:named|labell?ed)|corrected "
    r"editions of (?:our|this)|\bvolunteers and donations|"
    r"distributed proofread|pgdp\.net|gutenberg\.(?:org|net|ca)|gallica\.bnf|archive\.org/details|"
    r"anniversary of project",
    re.IGNORECASE,
)
_LONGEST_BANNER = 1500  # characters
_NOTE = re.compile(
    r"[\[(*_+| ]*transcriber(?:['’]?s['’]?)?(?: |-)?(?:note|comment|remark|endnote)", re.IGNORECASE
)
_CONTENTS = re.compile(
    r"_?(?:table of )?contents(?: of .*)?[.:_]?|(?:list of )?(?:illustrations|plates|maps|"
    r"figures)[.:]?|index[.:]?",
    re.IGNORECASE,
)
_THE_END = re.compile(
    r"[\W_]*(?:the end|finis|fin|end of (?:the )?(?:book|volume|part).{0,20})[\W_]*", re.IGNORECASE
)

_ROMAN = r"(?=[ivxlcm])m{0,3}(?:cm|cd|d?c{0,3})(?:xc|xl|l?x{0,3})(?:ix|iv|v?i{0,3})"
_ORDINAL = (
    r"(?:first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth|"
    r"thirteenth|fourteenth|fifteenth|sixteenth|"
    r"seventeenth|eighteenth|nineteenth|twentieth|last)"
)
_UNIT = r"(?:one|two|three|four|five|six|seven|eight|nine)"
_CARDINAL = (
    rf"(?:(?:twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)(?:[- ]{_UNIT})?|{_UNIT}|ten|"
    rf"eleven|twelve|thirteen|fourteen|fifteen|sixteen|"
    r"seventeen|eighteen|nineteen)"
)
_PART = (
    r"(?:chapter|book|letter|part|volume|vol|canto|act|scene|section|stave|chap|phase|epoch|period|"
    r"narrative|lecture|sermon|essay)"
)
_HEADING = re.compile(
    rf"_?(?:{_PART}\.? +(?:the +)?(?:{_ROMAN}|\d{{1,3}}|{_CARDINAL}|{_ORDINAL})\b(?:[.:,\]_ "
    rf")—–-]*$|[.:,]?[ —–-]+.{{1,70}}$|\.?:.{{1,70}}$)|"
    rf"(?:the )?{_ORDINAL} {_PART}[.:_]*$|"
    r"(?:author['’]s |editor['’]s |translator['’]s )?(?:preface|foreword|prologue|epilogue|"
    r"introduction|introductory|afterword|appendix|conclusion|"
    r"advertisement|dedication|postscript)(?: to .{1,50})?[.:_]*$)",
    re.IGNORECASE,
)
_NUMBER_ONLY = re.compile(rf"(?:{_ROMAN})\.?|\d{{1,2}}\.?", re.IGNORECASE)
_NUMBER_TITLE = re.compile(rf"(?:(?:{_ROMAN})|\d{{1,2}})[.:]? *[—–-]* *(.{{2,60}})", re.IGNORECASE)

_APPARATUS = re.compile(
    r"\[(?:Illustration|Pg|Page|Image|Sidenote|Blank Page|Decoration|Music|Greek)\b[^\]]*\]|"
    r"\{\d+\}|\[\d{1,3}\]|\[[*†‡]\]",
    re.IGNORECASE,
)
_FOOTNOTE = re.compile(r"\[(?:Footnote|Note)\b|\[\d{1,3}\] ", re.IGNORECASE)
_EMPHASIS = re.compile(
    r"(?<!\w)_([^_\n]+(?:\n[^_\n]+)?)_(?!\w)|(?<!\w)=([^=\n]{1,80})=(?!\w)|(?<=\d)_([a-z]{1,2})_"
)
_TAG = re.compile(r"</?(?:i|b|u|em|strong|sup|sub|small|br|center|p)\s*/?>", re.IGNORECASE)
_SPACED_COMMA = re.compile(r"(?<=[^\W_]) +([,;])(?=\s)")
_LETTER = re.compile(r"[^\W\d_]")
# For English books, whose paragraphs also end in a colon or dash before verse and letters.
_PROSE_END = re.compile(r"[.!?:;,—-][\"'”’)\]_]*$")
_CLOSED = re.compile(r"[.!?][\"'”’)\]_]*$")

_LONG_LINES = 120  # characters; if a tenth of the lines is longer, each line is a paragraph
_LONGEST_FRONT = 40  # blocks that may be title page, dedication and other front matter
_EDGE = 12  # blocks at either end that may be credits or notes


Section = tuple[str, list[str]]
"""Heading and paragraphs, one line each."""


def add_heading(sections: list[Section], heading: str) -> None:
    """Begin a section, or extend the heading of the last one if it has no text yet."""
    if sections[-1][1]:
        sections.append((heading, []))
    else:
        sections[-1] = (f"{sections[-1][0]} {heading}".strip(), [])


@dataclass(slots=True)
class Book:
    """A book: title and sections."""

    title: str = ""
    sections: list[Section] = field(default_factory=list)


@dataclass(frozen=True)
class _Block:
    """Lines between blank lines."""

    lines: tuple[str, ...]
    gap: int  # blank lines before the block

    @functools.cached_property
    def text(self) -> str:
        return " ".join(" ".join(self.lines).split())

    @property
    def is_prose(self) -> bool:
        """Return True if the block is long and ends like a sentence, unlike title pages."""
        text = self.text
        return len(text) >= 200 and bool(_CLOSED.search(text)) and len(text) / len(self.lines) > 40

    @property
    def is_sentence(self) -> bool:
        """Return True if the block ends like a sentence and most words begin in lower case."""
        text = self.text
        words = text.split()
        return (
            len(text) >= 40
            and bool(_CLOSED.search(text))
            and sum(word[0].islower() for word in words) * 10 >= len(words) * 6
        )


def read(text: str, tally: ReadCounters) -> Book:
    """Return the book in `text` without front and back matter, counted as `dropped_lines`."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n\n").replace("\xa0", " ")
    title = gutenberg.title(text)
    text = gutenberg.strip_boilerplate(text, tally)
    if "[" in text or "{" in text:
        text = _APPARATUS.sub("", text)
    blocks = _blocks(text)
    if not title and blocks and len(blocks[0].text) <= 80:
        title = blocks[0].text.rstrip(" ;:.")
    return Book(title, _sections(_strip_edges(blocks, tally), tally))


def _blocks(text: str) -> list[_Block]:
    """Divide the text into paragraphs, headings and stanzas, according to its layout."""
    lines = [line.rstrip() for line in text.split("\n")]
    lengths = sorted(len(line) for line in lines if line)
    if not lengths:
        return []
    if lengths[len(lengths) * 9 // 10] > _LONG_LINES:
        return list(_split_blocks(lines, line_per_paragraph=True))
    blocks = list(_split_blocks(lines, line_per_paragraph=False))
    if len(blocks) * 25 < len(lengths):  # hardly a blank line
        width = lengths[len(lengths) * 99 // 100]
        blocks = [paragraph for block in blocks for paragraph in _unwrapped(block, width)]
    return blocks


def _split_blocks(lines: list[str], *, line_per_paragraph: bool) -> Iterator[_Block]:
    """Yield the lines between blank lines as one block, or each as a block."""
    open_lines: list[str] = []
    gap = block_gap = 0
    for line in [*lines, ""]:
        is_blank = not line.strip()
        if open_lines and (is_blank or line_per_paragraph):
            yield _Block(tuple(open_lines), block_gap)
            open_lines = []
        if is_blank:
            gap += 1
            continue
        if not open_lines:
            block_gap, gap = gap, 0
        open_lines.append(line)


def _unwrapped(block: _Block, width: int) -> Iterator[_Block]:
    """Yield the paragraphs of a block without blank lines.

    A line ends its paragraph if it ends a sentence and had space for the next word.
    """
    open_lines: list[str] = []
    gap = block.gap
    for line in block.lines:
        previous = open_lines[-1] if open_lines else ""
        ends_paragraph = (
            bool(previous)
            and _CLOSED.search(previous)
            and len(previous) + 1 + len(line.split()[0]) < width - 1
        )
        if open_lines and (
            ends_paragraph or _is_heading(line.strip()) or _is_heading(previous.strip())
        ):
            yield _Block(tuple(open_lines), gap)
            open_lines, gap = [], 0
        open_lines.append(line)
    if open_lines:
        yield _Block(tuple(open_lines), gap)


def _strip_edges(blocks: list[_Block], tally: ReadCounters) -> list[_Block]:
    """Remove credits, transcriber's notes and `THE END` at both ends, and lists of contents."""
    remaining: list[_Block] = []
    in_note = False  # a transcriber's note with its own title
    for position, block in enumerate(blocks):
        text = block.text
        near_start, near_end = position < _EDGE, position >= len(blocks) - _EDGE
        if in_note and (near_end or (near_start and block.gap < 2 and not _is_heading(text))):
            tally.drop_lines("transcriber_note", len(block.lines))
            continue
        in_note = False
        if (near_start or near_end or position * 20 >= len(blocks) * 19) and _NOTE.match(text):
            in_note = len(text) < 60 and "]" not in text
            tally.drop_lines("transcriber_note", len(block.lines))
        elif (near_start or near_end) and len(text) < _LONGEST_BANNER and _BANNER.search(text):
            tally.drop_lines("licence", len(block.lines))
        elif (near_start and _CREDIT.match(text)) or (
            (near_start or near_end) and _THE_END.fullmatch(text)
        ):
            tally.drop_lines("credit", len(block.lines))
        elif not re.search(r"[^\W_]", text):
            tally.drop_lines("ornament", len(block.lines))
        else:
            remaining.append(block)
    return _without_contents(remaining, tally)


def _without_contents(blocks: list[_Block], tally: ReadCounters) -> list[_Block]:
    """Drop each list of contents, up to the first prose or the first heading from the list."""
    remaining: list[_Block] = []
    entries: list[str] | None = None
    for position, block in enumerate(blocks):
        if (
            entries is None
            and position * 2 < len(blocks) + 40
            and (_CONTENTS.fullmatch(block.text) or _CONTENTS.fullmatch(block.lines[0].strip()))
        ):
            entries = [_key(line) for line in block.lines[1:]]
            tally.drop_lines("contents", len(block.lines))
        elif entries is not None and (block.is_prose or _in_list(_key(block.lines[0]), entries)):
            entries = None
            remaining.append(block)
        elif entries is not None:
            entries += [_key(line) for line in block.lines]
            tally.drop_lines("contents", len(block.lines))
        else:
            remaining.append(block)
    return remaining


def _in_list(heading: str, listed: list[str]) -> bool:
    """Return True if the heading is in the list, whole or as the beginning of an entry."""
    return len(heading) >= 4 and any(
        entry == heading or entry.startswith(heading + " ") for entry in listed
    )


def _key(line: str) -> str:
    """Return a heading for comparison: words in lower case, without the page number."""
    return " ".join(word_pattern().findall(re.sub(r"[ .]+\d+\s*$", "", line.lower())))


def _is_heading(text: str) -> bool:
    return len(text) <= 100 and bool(_HEADING.match(text))


def _sections(blocks: list[_Block], tally: ReadCounters) -> list[Section]:
    """Divide the blocks at headings; drop headings and what precedes the first prose or chapter."""
    spaced = sum(block.gap >= 2 for block in blocks) >= 3
    sections: list[Section] = [("", [])]
    in_text = False  # past the title page
    after_heading = False  # a subtitle may follow
    for position, block in enumerate(blocks):
        text = block.text
        is_chapter = _opens_chapter(block, text)
        in_text = in_text or is_chapter or block.is_sentence or position >= _LONGEST_FRONT
        if is_chapter or (_is_capital_heading(block, text) and spaced):
            tally.drop_lines("heading", len(block.lines))
            if after_heading and in_text:
                sections[-1] = (f"{sections[-1][0]} {text}".strip(), [])
            elif after_heading or not sections[-1][1]:
                sections[-1] = (text, [])
            else:
                sections.append((text, []))
            after_heading = True
        elif not in_text:
            tally.drop_lines("front_matter", len(block.lines))
        elif (
            after_heading
            and len(block.lines) <= 2
            and len(text) <= 90
            and (not _PROSE_END.search(text) or text.isupper())
        ):
            tally.drop_lines("heading", len(block.lines))
        elif _FOOTNOTE.match(text):
            tally.drop_lines("footnote", len(block.lines))
            after_heading = False
        elif not _LETTER.search(text):
            tally.drop_lines("ornament", len(block.lines))
        else:
            sections[-1][1].append(_plain(text))
            after_heading = False
    if not any(paragraphs for _, paragraphs in sections):  # only a title page: keep it as the text
        return [("", [_plain(block.text) for block in blocks])] if blocks else []
    return sections


def _plain(text: str) -> str:
    """Return a paragraph without markup for italics and without blanks before commas."""
    if "_" in text or "=" in text:
        text = _EMPHASIS.sub(lambda match: match[1] or match[2] or match[3], text)
    if "<" in text:
        text = _TAG.sub("", text)
    return _SPACED_COMMA.sub(r"\1", text) if " ," in text or " ;" in text else text


def _opens_chapter(block: _Block, text: str) -> bool:
    """Return True if the block is a chapter heading by its words or number."""
    if len(block.lines) > 3 or len(text) > 120:
        return False
    first_line = block.lines[0].strip()
    if _is_heading(text) or (
        len(block.lines) > 1 and _is_heading(first_line) and not _CLOSED.search(text)
    ):
        return True
    if _NUMBER_ONLY.fullmatch(first_line):
        if len(block.lines) == 1:
            return first_line[0].isupper() or (
                first_line[0].isdigit() and (first_line.endswith(".") or block.gap >= 1)
            )
        return first_line[0].isupper() and not _PROSE_END.search(text)
    match = _NUMBER_TITLE.fullmatch(text)
    return bool(match and match[1].isupper()) and len(block.lines) <= 2


def _is_capital_heading(block: _Block, text: str) -> bool:
    """Return True if the block is all capitals after at least two blank lines."""
    return (
        len(block.lines) <= 2
        and block.gap >= 2
        and 4 <= len(text) <= 80
        and text.isupper()
        and text[0] not in '"“'
    )
