"""Tables of results in a terminal of any width: no cell breaks within a word; none is lost."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cloze.flows.views.terminal import summary_tables

ALBERT = {
    "title": "Lan et al. 2020, table 5",
    "columns": [
        "", "MLM accuracy", "NSP accuracy", "SOP accuracy", "SQuAD 1.1 F1", "SQuAD 2.0 F1", "MNLI",
        "SST-2", "RACE", "Average",
    ],
    "rows": [
        ["None (XLNet, RoBERTa)", *["82.0 ± 2.8 [92.0]"] * 9],
        ["NSP (BERT) [mine]", *["82.0"] * 9],
    ],
}  # fmt: skip


def shown(content: dict[str, Any], width: int) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width)
    for table in summary_tables(content, width):
        console.print(table)
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_no_word_is_broken_and_no_cell_is_lost(width: int) -> None:
    text = shown(ALBERT, width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join([*ALBERT["columns"], *(cell for row in ALBERT["rows"] for cell in row)])
    assert set(words.split()) <= set(text.split())
    assert text.count("82.0 ± 2.8 [92.0]") == 9  # whole, not over two lines
    assert text.count("table 5") == 1


def test_a_table_that_fits_is_one() -> None:
    assert len(list(summary_tables(ALBERT, 100_000))) == 1


@given(
    st.lists(st.text("ab 12.±", min_size=1, max_size=14), min_size=2, max_size=9),
    st.integers(50, 130),
)
def test_any_table_keeps_its_words(cells: list[str], width: int) -> None:
    content = {"title": "t", "columns": cells, "rows": [cells, cells]}
    text = shown(content, width)
    assert max(map(len, text.splitlines())) <= width
    for word in " ".join(cells).split():
        assert word in text.split()


def test_columns_too_wide_for_any_line_are_folded() -> None:
    content = {"title": "t", "columns": ["", "figure"], "rows": [["a" * 50, "b" * 50]]}
    text = shown(content, 60)
    assert text.count("a") == text.count("b") == 50


def test_a_title_that_is_wider_than_its_table_is_whole() -> None:
    content = {"title": "one column of one row", "columns": ["", "a"], "rows": [["x", "1"]]}
    assert shown(content, 40).splitlines()[0].strip() == content["title"]
    wide = ["the title of the checkpoint", "before and after"]
    lines = shown({**content, "title": " ".join(wide)}, 30).splitlines()
    assert [line.strip() for line in lines[:2]] == wide
