"""Books in plain text: front and back matter, paragraphs and chapters.

Line lengths show the layout: one line per paragraph, or wrapped lines with blank lines between
paragraphs (Project Gutenberg) or without.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from cloze.core.words import UNSPACED_LETTER, width
from cloze.pipeline.corpus.document import is_unmarked
from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.readers.books import aozora, gutenberg
from cloze.pipeline.corpus.readers.books.edges import Block, is_capitals, is_closed, strip_edges
from cloze.pipeline.corpus.readers.books.headings import (
    NUMBER_ONLY,
    NUMBER_TITLE,
    alternatives,
    is_heading,
)
from cloze.pipeline.corpus.readers.plain_text import FIRST_UNIT, are_wrapped

_APPARATUS = re.compile(
    rf"\[(?:{alternatives('apparatus')})\b[^\]]{{0,3000}}\]|\{{\d+\}}|\[\d{{1,3}}\]|\[[*†‡]\]",
    re.IGNORECASE,
)
_FOOTNOTE = re.compile(r"\[(?:Footnote|Note)\b|\[\d{1,3}\] ", re.IGNORECASE)
_EMPHASIS = re.compile(
    r"(?<!\w)_([^_\n]+(?:\n[^_\n]+)?)_(?!\w)|(?<!\w)=([^=\n]{1,80})=(?!\w)|(?<=\d)_([a-z]{1,2})_"
)
_TAG = re.compile(r"</?(?:i|b|u|em|strong|sup|sub|small|br|center|p)\s*/?>", re.IGNORECASE)
_SPACED_COMMA = re.compile(r"(?<=[^\W_]) +([,;])(?=\s)")
_LETTER = re.compile(r"[^\W\d_]")
# English paragraphs also end in a colon or dash before verse and letters.
_OPEN_END = re.compile("[:;,—–‐：，、；،؛-][\"'”’)\\]_]*$")

_LONG_LINES = 120  # characters; if a tenth of the lines is longer, each line is a paragraph
_MOSTLY = 0.7  # share of lines that end in an end mark if each line is a paragraph
_FEWEST_INDENTED = 0.02  # share of lines if paragraphs are indented; fewer are misprints
_HARDLY = 0.05  # share of such lines in scripts without end marks
_LONGEST_FRONT = 40  # blocks that may be title page, dedication and other front matter
_LONGEST_HEADING = 200  # characters
_LONGEST_SUBTITLE = 90  # characters
_LONGEST_UNMARKED = 30  # columns of a subtitle in a script without end marks
_SAMPLE_LINES = 200
_LINE_ENDS = "\r\v\x1c\x1d\x1e\x85\u2028\u2029"


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


def read(text: str, tally: ReadCounters) -> Book:
    """Return the book in `text` without front and back matter, counted as `dropped_lines`."""
    text = text.replace("\r\n", "\n").replace("\f", "\n\n").replace("\xa0", " ")
    for line_end in _LINE_ENDS:
        if line_end in text:
            text = text.replace(line_end, "\n")
    title = gutenberg.title(text)
    text = aozora.strip_notes(gutenberg.strip_boilerplate(text, tally), tally)
    if "[" in text or "{" in text:
        remaining = _APPARATUS.sub("", text)
        if remaining != text:
            line_count = gutenberg.count_lines(text) - gutenberg.count_lines(remaining)
            tally.drop_lines("apparatus", line_count)
        text = remaining
    blocks = _blocks(text)
    if not title and blocks and len(blocks[0].text) <= 80 and not is_closed(blocks[0].text):
        title = blocks[0].text.rstrip(" ;:.")
    return Book(title, _sections(strip_edges(blocks, tally), tally))


def _blocks(text: str) -> list[Block]:
    """Divide the text into paragraphs, headings and stanzas, according to its layout."""
    lines = [line.rstrip() for line in text.split("\n")]
    filled = [line for line in lines if line]
    if not filled:
        return []
    lengths = sorted(map(len, filled))
    blocks = list(_split_blocks(lines, line_per_paragraph=False))
    sample = "".join(filled[:_SAMPLE_LINES])
    is_unspaced = len(UNSPACED_LETTER.findall(sample)) * 2 > sum(map(str.isalpha, sample))
    has_long_lines = lengths[len(lengths) * 9 // 10] > _LONG_LINES
    is_divided = len(blocks) > max(1, len(filled) // 25) and not _are_indented(blocks, len(filled))
    if is_divided and not is_unspaced and not has_long_lines:
        return blocks
    # hardly a blank line, or a script whose authors indent instead
    closed_share = sum(map(is_closed, filled)) / len(filled)
    is_listed = is_unspaced and not are_wrapped(lines)
    if has_long_lines or (is_listed and closed_share < _HARDLY):
        return list(_split_blocks(lines, line_per_paragraph=True))
    columns = sorted(map(width, filled))
    indents = Counter(len(line) - len(line.lstrip()) for line in filled)
    indent = min(
        (indent for indent, count in indents.items() if count * 4 >= len(filled)), default=0
    )
    deeper_count = sum(count for deeper, count in indents.items() if deeper > indent)
    layout = _Layout(
        columns[len(columns) * 99 // 100],
        indent if deeper_count >= _FEWEST_INDENTED * len(filled) else max(indents),
        is_listed or closed_share >= _MOSTLY,
    )
    return [paragraph for block in blocks for paragraph in layout.paragraphs(block)]


def _are_indented(blocks: list[Block], line_count: int) -> bool:
    """Return True if paragraphs also begin inside blocks, by their indentation."""
    inner_count = sum(
        line[0].isspace() and not previous[0].isspace() and is_closed(previous)
        for block in blocks
        for previous, line in itertools.pairwise(block.lines)
    )
    return inner_count >= _HARDLY * line_count


def _split_blocks(lines: list[str], *, line_per_paragraph: bool) -> Iterator[Block]:
    """Yield the lines between blank lines as one block, or each as a block."""
    open_lines: list[str] = []
    gap = block_gap = 0
    for line in [*lines, ""]:
        is_blank = not line.strip()
        if open_lines and (is_blank or line_per_paragraph):
            yield Block(tuple(open_lines), block_gap)
            open_lines = []
        if is_blank:
            gap += 1
            continue
        if not open_lines:
            block_gap, gap = gap, 0
        open_lines.append(line)


@dataclass(frozen=True)
class _Layout:
    """Layout of a text without blank lines between paragraphs."""

    columns: int  # width of a full line
    indent: int  # characters before most lines; a paragraph begins at a line with more
    are_closed: bool  # most lines end in an end mark, so each of these ends a paragraph

    def paragraphs(self, block: Block) -> Iterator[Block]:
        """Yield the paragraphs of a block."""
        open_lines: list[str] = []
        gap = block.gap
        for line in block.lines:
            if open_lines and (
                self._begins(line, open_lines[-1])
                or (len(open_lines) == 1 and is_heading(open_lines[0].strip()))
            ):
                yield Block(tuple(open_lines), gap)
                open_lines, gap = [], 0
            open_lines.append(line)
        yield Block(tuple(open_lines), gap)

    def _begins(self, line: str, previous: str) -> bool:
        """Return True if a paragraph begins: the line before ended a sentence and had space."""
        if is_heading(line.strip()):
            return True
        is_open = not is_closed(previous)
        if len(line) - len(line.lstrip()) > self.indent:
            return not is_open or not line.lstrip()[0].islower()
        if is_open:
            return width(previous) <= self.columns // 2 and UNSPACED_LETTER.search(line) is not None
        unit = FIRST_UNIT.search(line)
        return self.are_closed or (
            unit is not None and width(previous) + 1 + width(unit[0]) < self.columns - 1
        )


def _sections(blocks: list[Block], tally: ReadCounters) -> list[Section]:
    """Divide the blocks at headings; drop headings and what precedes the first prose or chapter."""
    spaced = sum(block.gap >= 2 for block in blocks) >= 3
    begin = _front_end(blocks)
    dropped: Counter[str] = Counter()
    sections: list[Section] = [("", [])]
    after_heading = False  # a subtitle may follow
    for position, block in enumerate(blocks):
        text = block.text
        if _opens_chapter(block, text) or (_is_capital_heading(block, text) and spaced):
            dropped["heading"] += len(block.lines)
            if after_heading and position >= begin:
                sections[-1] = (_joined(sections[-1][0], text), [])
            elif after_heading or not sections[-1][1]:
                sections[-1] = (text, [])
            else:
                sections.append((text, []))
            after_heading = True
        elif position < begin:
            dropped["front_matter"] += len(block.lines)
        elif after_heading and _is_subtitle(block, text):
            dropped["heading"] += len(block.lines)
            sections[-1] = (_joined(sections[-1][0], text), [])
        elif _FOOTNOTE.match(text):
            dropped["footnote"] += len(block.lines)
            after_heading = False
        elif not _LETTER.search(text):
            dropped["ornament"] += len(block.lines)
        else:
            sections[-1][1].append(_plain(text))
            after_heading = False
    if not any(paragraphs for _, paragraphs in sections):  # only a title page: keep it as the text
        return [("", [_plain(block.text) for block in blocks])] if blocks else []
    for reason, count in dropped.items():
        tally.drop_lines(reason, count)
    return sections


def _joined(heading: str, text: str) -> str:
    """Return a heading with its subtitle, unless it is long: a list of numbers is none."""
    return heading if len(heading) > _LONGEST_HEADING else f"{heading} {text}".strip()


def _front_end(blocks: list[Block]) -> int:
    """Return the first block that is no front matter: 0 if neither prose nor a heading is near."""
    for position, block in enumerate(blocks[:_LONGEST_FRONT]):
        if _opens_chapter(block, block.text):
            return position
        if block.is_sentence:
            while position and blocks[position - 1].is_spoken:  # short sentences before it
                position -= 1
            return position
    return 0


def _is_subtitle(block: Block, text: str) -> bool:
    """Return True if the block after a heading is short and no sentence."""
    if is_unmarked(text) and width(text) > _LONGEST_UNMARKED:
        return False
    is_short = len(block.lines) <= 2 and len(text) <= _LONGEST_SUBTITLE
    return is_short and (is_capitals(text) or not (is_closed(text) or _OPEN_END.search(text)))


def _plain(text: str) -> str:
    """Return a paragraph without markup for italics and without blanks before commas."""
    if "_" in text or "=" in text:
        text = _EMPHASIS.sub(lambda match: match[1] or match[2] or match[3], text)
    if "<" in text:
        text = _TAG.sub("", text)
    return _SPACED_COMMA.sub(r"\1", text) if " ," in text or " ;" in text else text


def _opens_chapter(block: Block, text: str) -> bool:
    """Return True if the block is a chapter heading by its words or number."""
    if len(block.lines) > 3 or len(text) > 120:
        return False
    first_line = block.lines[0].strip()
    if is_heading(text) or (
        len(block.lines) > 1 and is_heading(first_line) and not is_closed(text)
    ):
        return True
    if NUMBER_ONLY.fullmatch(first_line):
        if len(block.lines) == 1:
            return first_line[0].isupper() or (
                first_line[0].isdigit() and (first_line.endswith(".") or block.gap >= 1)
            )
        return first_line[0].isupper() and not (is_closed(text) or _OPEN_END.search(text))
    match = NUMBER_TITLE.fullmatch(text)
    return bool(match and match[1].isupper()) and len(block.lines) <= 2


def _is_capital_heading(block: Block, text: str) -> bool:
    """Return True if the block is all capitals after at least two blank lines."""
    return (
        len(block.lines) <= 2
        and block.gap >= 2
        and 4 <= len(text) <= 80
        and is_capitals(text)
        and text[0] not in '"“'
    )
