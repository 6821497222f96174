"""The cells of a table in HTML."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.corpus.readers.wikipedia.hidden import hide
from pipeline.corpus.readers.wikipedia.tables import TALLEST, WIDEST, Cell


def cells(table: Any, line: Callable[[Any], str]) -> tuple[str, list[list[Cell]]]:
    """(caption, rows); tables inside its cells are none of its rows.

    Args:
        table: the element.
        line: an element's text on one line.
    """
    caption = ""
    rows: list[list[Cell]] = []
    for child in table:
        if child.tag == "caption":
            caption = line(child)
        elif child.tag == "tr":
            rows.append(_row(child, line))
        elif child.tag in ("thead", "tbody", "tfoot"):
            rows += [_row(row, line) for row in child if row.tag == "tr"]
    return caption, rows


def _row(row: Any, line: Callable[[Any], str]) -> list[Cell]:
    return [
        Cell(
            hide(line(cell)),
            cell.tag == "th",
            min(_span(cell.get("colspan")), WIDEST),
            min(_span(cell.get("rowspan")), TALLEST),
        )
        for cell in row
        if cell.tag in ("td", "th")
    ]


def _span(value: str | None) -> int:
    digits = (value or "").strip()
    return max(1, int(digits)) if digits.isascii() and digits.isdigit() and len(digits) < 5 else 1
