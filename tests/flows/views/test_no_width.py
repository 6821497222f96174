"""A terminal that says it has no columns gets the whole output, not nothing."""

from __future__ import annotations

import io

import pytest

from cloze.flows.views.terminal import UNWRAPPED, WholeConsole, table_of


@pytest.mark.parametrize("is_terminal", [False, True])
def test_no_columns_are_an_unknown_number(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    monkeypatch.setenv("LINES", "0")
    stream = io.StringIO()
    console = WholeConsole(file=stream, force_terminal=is_terminal, color_system=None)
    table = table_of(("run", "state"))
    table.add_row("demo", "finished")
    console.print(table)
    assert console.width == UNWRAPPED
    assert "demo" in stream.getvalue()
    assert "finished" in stream.getvalue()
