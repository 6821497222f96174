"""Tables as lines of text (sentences or Markdown), and infoboxes as fields (name and value).

Of an infobox only arguments about the subject are kept: no pictures, captions, sizes, or layout
switches. A value is what the page would show. Values with a placeholder (an unknown template, a
formula) are dropped and counted. Fields of nested boxes are included.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cloze.pipeline.corpus.document import PLACEHOLDER_PATTERN, InfoboxField
from cloze.pipeline.corpus.readers.encyclopedia.blocks import ExtractedPage, Form, plain
from cloze.pipeline.corpus.readers.encyclopedia.elements import escape_literals, unescape_literals
from cloze.pipeline.corpus.readers.encyclopedia.mediawiki_names import alternatives

MARK = "\ue0fa"
"""Precedes each row of a kept table; alone it marks a dropped table."""

_ATTRIBUTES = re.compile(r"\s*(?:[\w-]+\s*=\s*(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s|\"']+)\s*)+")
_SPAN = re.compile(r"(col|row)span\s*=\s*[\"']?\s*(\d{1,3})")
WIDEST, TALLEST = 40, 1000  # maximum columns read, and rows a cell may span
_LETTER_OR_DIGIT = re.compile(r"\w")


@dataclass(slots=True)
class Cell:
    """A cell of the source: text, heading or not, and numbers of columns and rows it spans."""

    text: str
    head: bool
    columns: int = 1
    rows: int = 1


def table_from_wikitext(content: str, form: Form) -> list[str]:
    """Return the lines of a table; none for layout tables (without a heading row, or one column).

    Args:
        content: text between `{|` and `|}`, with links and templates resolved.
        form: `prose` for `Year: 1990; Population: 5,000.`, `markdown` for `| 1990 | 5,000 |`.
    """
    return table_from_cells(*_cells(content), form)


def table_from_cells(caption: str, raw: list[list[Cell]], form: Form) -> list[str]:
    """Return the lines of a table; none for layout tables.

    Args:
        caption: caption of the table; may be empty.
        raw: rows of the source, each cell once.
        form: as in `table_from_wikitext`.
    """
    grid = _spread([row for row in raw if row])
    header = next((row for row in grid if len(row) > 1 and all(cell.head for cell in row)), None)
    if header is None or len(grid) < 2:
        return []
    width = len(header)
    names = [cell.text for cell in header]
    data_rows = [
        [cell.text for cell in row]
        for row in grid
        if row is not header and len(row) <= width and not all(cell.head for cell in row)
    ]
    if form == "markdown":
        lines = [_markdown(names), escape_literals("|" + " --- |" * width)]
        lines += [_markdown(row + [""] * (width - len(row))) for row in data_rows]
    else:
        lines = [line for row in data_rows if (line := _sentence(names, row))]
    return [caption, *lines] if caption and lines else lines


def _sentence(names: list[str], cells: list[str]) -> str:
    """Return a row as `Name: value; name: value.`"""
    pairs = [
        f"{name}: {cell}" if name else cell
        for name, cell in zip(names, cells, strict=False)
        if _LETTER_OR_DIGIT.search(cell)
    ]
    return "; ".join(pairs) + "." if len(pairs) > 1 else ""


def _markdown(cells: list[str]) -> str:
    return escape_literals("| ") + escape_literals(" | ").join(cells) + escape_literals(" |")


def _cells(content: str) -> tuple[str, list[list[Cell]]]:
    """Return the caption and the rows of the source."""
    caption, rows = "", [[]]  # type: tuple[str, list[list[Cell]]]
    last_cell: Cell | None = None
    for line in content.split("\n")[1:]:
        line = line.strip()
        if line.startswith("|+"):
            caption, last_cell = _without_attributes(line[2:])[0], None
        elif line.startswith("|-"):
            rows.append([])
            last_cell = None
        elif line[:1] in ("|", "!"):
            is_head = line[0] == "!"
            for text in re.split(r"\|\||!!" if is_head else r"\|\|", line[1:]):
                last_cell = _cell(text, is_head)
                rows[-1].append(last_cell)
        elif last_cell is not None and line:
            last_cell.text = f"{last_cell.text} {line}".strip()
    return caption, rows


def _cell(text: str, head: bool) -> Cell:
    text, attributes = _without_attributes(text)
    spans = {kind: max(1, int(number)) for kind, number in _SPAN.findall(attributes)}
    return Cell(text, head, min(spans.get("col", 1), WIDEST), min(spans.get("row", 1), TALLEST))


def _without_attributes(text: str) -> tuple[str, str]:
    attributes, bar, content = text.partition("|")
    has_any = bar and _ATTRIBUTES.fullmatch(attributes)
    return (content.strip(), attributes) if has_any else (text.strip(), "")


def _spread(raw: list[list[Cell]]) -> list[list[Cell]]:
    """Repeat cells that span columns and rows, so that all positions are filled."""
    grid: list[list[Cell]] = []
    spanning_cells: dict[int, Cell] = {}  # by column: cells that extend into the next row
    for row in raw:
        cells: list[Cell] = []
        remaining = list(row)
        while (remaining or len(cells) in spanning_cells) and len(cells) < WIDEST:
            column = len(cells)
            cell = spanning_cells.pop(column, None) or remaining.pop(0)
            for position in range(column, min(column + cell.columns, WIDEST)):
                cells.append(Cell(cell.text, cell.head))
                if cell.rows > 1:
                    spanning_cells[position] = Cell(cell.text, cell.head, rows=cell.rows - 1)
        grid.append(cells)
    return grid


# Infoboxes.

REASON = "infobox_field"
"""Reason under which fields with a placeholder are counted."""

LINES = "; "
"""Separator between the lines of a value and between list items in it."""

_BEGIN = re.compile(r"\{\{[\s_]*([^{}|<>\[\]]{3,80}?)[\s_]*(?=[|}\n<])")
# `Infobox settlement`, `Ficha de …`, `Info/…`, `Карточка …`, `Miasto infobox`
_KINDS = re.compile(
    rf"(?:{alternatives('infobox names')})[\s_/:-]*(?P<kind>.*)"
    r"|info/(?P<info>.+)|ficha (?:de )?(?P<ficha>.+)|(?P<before>.+?)[\s_/-]+(?:infobox|bilgi "
    r"kutusu|정보)|(?P<whole>(?:automatic )?taxobox|(?:sub|infra|hybrid)?speciesbox|chembox|drugbox|"
    r"virusbox)",
    re.IGNORECASE,
)
_TOKEN = re.compile(r"\{\{|\}\}|\[\[|\]\]|\|")
_NAME = re.compile(r"[^\n=<>\[\]{}]{1,60}")
_LAYOUT = re.compile(alternatives("infobox layout"), re.IGNORECASE)
_SETTING = re.compile(rf"(?i:{alternatives('infobox settings')})|y|n")  # but `N` is the north
_LINE_BREAK = re.compile(r"<br\b[^<>]*>|</?(?:li|div|p|ul|ol)\b[^<>]*>", re.IGNORECASE)
_LINE = re.compile(rf"\n\s*\n|\n(?=[ \t]*[*#:;{MARK}])")
_ITEM = re.compile(r"^(?!#[0-9a-fA-F]{3,8}$)[*#:;]+\s*")  # but not a colour
_MARKED = re.compile(r"^[•·]\s*")
_SIGNED = re.compile(r"[-–]\d")
_HAS_CONTENT = re.compile(rf"\w|{PLACEHOLDER_PATTERN.pattern}")
_OPENS, _CONTINUES = ("(", "[", ",", ";"), ("(", "[", ",", ";", ":")
_DEEPEST = 3  # maximum nesting of boxes
_MOST_UNCLOSED = 8  # boxes without an end; each scans the rest of the page


def collect_infoboxes(text: str, inline: Callable[[str], str], page: ExtractedPage) -> None:
    """Add the fields of a page's infoboxes to `page`.

    Args:
        text: the page without comments, references and other non-text elements.
        inline: function from wikitext to the text that the page shows.
    """
    for box, name, value in _arguments(text, 0):
        add_field(box, name, _lines(inline(_LINE_BREAK.sub("\n\n", value))), page)


def add_field(box: str, name: str, lines: list[str], page: ExtractedPage) -> None:
    """Add a field of a box of a type, which may be empty, if it is about the subject."""
    name = " ".join(plain(name.replace("_", " ")).split()).strip(" :•·")
    value = ""
    for line in filter(_HAS_CONTENT.search, lines):
        if value:
            value += " " if line.startswith(_OPENS) or value.endswith(_CONTINUES) else LINES
        value += line
    if not name or not value or _LAYOUT.fullmatch(name) or _SETTING.fullmatch(value):
        return
    if PLACEHOLDER_PATTERN.search(value):
        page.omit(REASON, f"{name}: {value}")
    else:
        page.infobox.append(InfoboxField(box, name, value))


def kind_of(template: str) -> str | None:
    """Return the infobox type of a template name; None if it is not an infobox."""
    match = _KINDS.fullmatch(" ".join(template.replace("_", " ").split()))
    if match is None:
        return None
    return next(filter(None, match.groups()), "").strip().lower()


def _arguments(text: str, depth: int) -> Iterator[tuple[str, str, str]]:
    """Yield (box type, name, wikitext value) of the named arguments of all infoboxes, in order."""
    position = unclosed = 0
    while unclosed < _MOST_UNCLOSED and (match := _BEGIN.search(text, position)):
        position = match.end()
        kind = kind_of(match[1])
        if kind is None:
            continue
        arguments, end = _split(text, match.end())
        if not end:
            unclosed += 1
            continue
        position = end
        for argument in arguments:
            name, equals, value = argument.partition("=")
            if not equals or not _NAME.fullmatch(name.strip()):
                continue
            nested_kinds = (kind_of(nested[1]) for nested in _BEGIN.finditer(value))
            if depth < _DEEPEST and any(nested is not None for nested in nested_kinds):
                yield from _arguments(value, depth + 1)
            elif value.strip():
                yield kind, name.strip(), value


def _split(text: str, begin: int) -> tuple[list[str], int]:
    """Return the arguments of a template whose name ends at `begin`, and its end; 0: no end."""
    arguments: list[str] = []
    # `template_depth` is the number of templates in `open_brackets`.
    start, template_depth, open_brackets = -1, 0, list[str]()
    for match in _TOKEN.finditer(text, begin):
        token = match[0]
        if token in ("{{", "[["):
            open_brackets.append(token)
            template_depth += token == "{{"
        elif token == "|":
            if not open_brackets:
                if start >= 0:
                    arguments.append(text[start : match.start()])
                start = match.end()
        elif token == "]]":
            if open_brackets[-1:] == ["[["]:
                open_brackets.pop()
        elif template_depth:
            template_depth -= 1
            while open_brackets.pop() != "{{":  # or a link without an end
                pass
        else:
            return (
                [*arguments, text[start : match.start()]] if start >= 0 else arguments
            ), match.end()
    return [], 0


def _lines(text: str) -> list[str]:
    """Return the lines of a value, without tables."""
    lines = (" ".join(line.split()) for line in _LINE.split(text))
    return [line_of(_ITEM.sub("", line)) for line in lines if line[:1] not in ("", MARK)]


def line_of(text: str) -> str:
    """Return a line of a value as shown; keeps the sign of a leading number, unlike `plain`."""
    text = _MARKED.sub("", text)
    unescaped = unescape_literals(text)
    return (unescaped[0] if _SIGNED.match(unescaped) else "") + plain(text)
