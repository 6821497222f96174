"""Tables of wikitext as lines of text: rows as sentences or as Markdown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from cloze.pipeline.corpus.readers.encyclopedia.elements import escape_literals

Form = Literal["drop", "prose", "markdown"]

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


def rows(content: str, form: Form) -> list[str]:
    """Return the lines of a table; none for layout tables (without a heading row, or one column).

    Args:
        content: text between `{|` and `|}`, with links and templates resolved.
        form: `prose` gives `Year: 1990; Population: 5,000.`, `markdown` gives `| 1990 | 5,000 |`.
    """
    caption, raw = _cells(content)
    return lines(caption, raw, form)


def lines(caption: str, raw: list[list[Cell]], form: Form) -> list[str]:
    """Return the lines of a table; none for layout tables.

    Args:
        caption: caption of the table; may be empty.
        raw: rows of the source, each cell once.
        form: as in `rows`.
    """
    grid = _spread([row for row in raw if row])
    heads = next((row for row in grid if len(row) > 1 and all(cell.head for cell in row)), None)
    if heads is None or len(grid) < 2:
        return []
    width = len(heads)
    names = [cell.text for cell in heads]
    body = [
        row
        for row in grid
        if row is not heads and len(row) <= width and not all(cell.head for cell in row)
    ]
    if form == "markdown":
        found = [_markdown(names), escape_literals("|" + " --- |" * width)]
        found += [
            _markdown([cell.text for cell in row] + [""] * (width - len(row))) for row in body
        ]
    else:
        found = [line for row in body if (line := _sentence(names, [cell.text for cell in row]))]
    return [caption, *found] if caption and found else found


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
    caption, raw = "", [[]]  # type: tuple[str, list[list[Cell]]]
    last: Cell | None = None
    for line in content.split("\n")[1:]:
        line = line.strip()
        if line.startswith("|+"):
            caption, last = _without_attributes(line[2:])[0], None
        elif line.startswith("|-"):
            raw.append([])
            last = None
        elif line[:1] in ("|", "!"):
            head = line[0] == "!"
            for text in re.split(r"\|\||!!" if head else r"\|\|", line[1:]):
                last = _cell(text, head)
                raw[-1].append(last)
        elif last is not None and line:
            last.text = f"{last.text} {line}".strip()
    return caption, raw


def _cell(text: str, head: bool) -> Cell:
    text, attributes = _without_attributes(text)
    spans = {kind: max(1, int(number)) for kind, number in _SPAN.findall(attributes)}
    return Cell(text, head, min(spans.get("col", 1), WIDEST), min(spans.get("row", 1), TALLEST))


def _without_attributes(text: str) -> tuple[str, str]:
    before, bar, rest = text.partition("|")
    return (rest.strip(), before) if bar and _ATTRIBUTES.fullmatch(before) else (text.strip(), "")


def _spread(raw: list[list[Cell]]) -> list[list[Cell]]:
    """Repeat cells that span columns and rows, so that all positions are filled."""
    grid: list[list[Cell]] = []
    down: dict[int, Cell] = {}  # by column: cells that extend into the next row
    for row in raw:
        cells: list[Cell] = []
        waiting = list(row)
        while (waiting or len(cells) in down) and len(cells) < WIDEST:
            column = len(cells)
            above = down.get(column)
            if above is not None:
                cells.append(Cell(above.text, above.head))
                down[column] = Cell(above.text, above.head, rows=above.rows - 1)
                if down[column].rows < 1:
                    del down[column]
                continue
            cell = waiting.pop(0)
            for place in range(column, min(column + cell.columns, WIDEST)):
                cells.append(Cell(cell.text, cell.head))
                if cell.rows > 1:
                    down[place] = Cell(cell.text, cell.head, rows=cell.rows - 1)
        grid.append(cells)
    return grid
