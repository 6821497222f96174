"""How a terminal shows tables and live lines: titles are dim, names are text and no markup."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from cloze.flows.views.live import live_lines
from cloze.flows.views.terminal import ellipsized, table_of


def screen(width: int = 120) -> Console:
    return Console(
        file=io.StringIO(), width=width, force_terminal=True, color_system="standard", record=True
    )


def shown(table: Table) -> list[str]:
    out = screen(40)
    out.print(table)
    return out.export_text(styles=True).splitlines()


def test_a_table_has_a_dim_title_and_bold_names() -> None:
    table = table_of(["name", "size"], right=["size"], title="[a] of b")
    table.add_row("corpus", "5")
    title, header, row = (line.rstrip() for line in shown(table))
    assert title == "\x1b[2m[a] of b    \x1b[0m"
    assert header.startswith("\x1b[1mname")
    assert re.sub(r"\x1b\[[01]m", "", header) == "name    size"
    assert row == "corpus     5"


def test_only_the_last_column_of_whole_rows_is_shortened() -> None:
    table = table_of(["name", "what"], whole=True)
    table.add_row("a" * 20, ellipsized("b" * 40))
    (_, row) = (line.rstrip() for line in shown(table))
    assert row == f"{'a' * 20}  {'b' * 17}…"
    plain = table_of(["name"])
    plain.add_row("c" * 50)
    assert [line.rstrip() for line in shown(plain)][1:] == ["c" * 40, "c" * 10]


@pytest.mark.parametrize("width", [60, 200])
def test_names_counts_and_notes_of_a_live_line_are_no_markup(width: int) -> None:
    out = screen(width)
    lines = live_lines(out)
    names: dict[str, Any] = {"count": "[b]1[/b]", "note": "[red]n[/]", "unit": "u", "began": 0.0}
    lines.add_task("[i]x[/i]", total=None, **names)
    out.print(lines.get_renderable())
    text = out.export_text()
    for word in ("[i]x[/i]", "[b]1[/b]", "[red]n[/]"):
        assert word in text
