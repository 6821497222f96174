"""Tokenizers side by side: a column each, a line a figure of `pipeline.vocab.measure`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

LINES = {  # line of the table -> figure
    "kind": "kind",
    "pieces in it": "size",
    "of them used": "vocabulary_used",
    "fertility (pieces a word)": "fertility",
    "words in one piece": "single_piece_words",
    "unknown pieces": "unknown_rate",
    "bytes a piece": "bytes_per_piece",
    "words in a row of 128": "words_in_128",
    "words in a row of 512": "words_in_512",
    "documents that fit in 128": "documents_in_128",
    "documents that fit in 512": "documents_in_512",
}
SHARES = {"single_piece_words", "unknown_rate", "vocabulary_used", "documents_in_128", "documents_in_512"}


def comparison(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Args: rows: of the summary of the stage compare-vocab."""
    first = rows[0]
    title = f"{first['documents']:,} documents, {first['words']:,} words, {first['bytes']:,} bytes of held-out text"
    table = Table(box=None, header_style="bold", title=title, title_justify="left", title_style="dim")
    table.add_column("", no_wrap=True)
    for row in rows:
        table.add_column(row["tokenizer"].rstrip("/").rsplit("/", 1)[-1], justify="right", overflow="fold")
    for line, figure in LINES.items():
        table.add_row(line, *(_shown(figure, row[figure]) for row in rows))
    return table


def _shown(figure: str, value: Any) -> str:
    if figure in SHARES:
        return f"{100 * value:.3f} %" if figure == "unknown_rate" else f"{100 * value:.1f} %"
    return f"{value:,}" if isinstance(value, int) else str(value)
