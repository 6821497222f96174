"""The prediction file: one example a line, in the order of the data, readable by eye and by any TSV reader."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence

from pipeline.core import storage


def write_rows(path: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Write rows of the same columns as TSV with a header and without quoting."""
    lines = ["\t".join(rows[0])] if rows else []
    lines += ["\t".join(map(_one_line, row.values())) for row in rows]
    storage.write_bytes(path, ("\n".join(lines) + "\n").encode("utf-8"))


def read_predictions(path: str) -> list[dict[str, str]]:
    """The rows of a prediction file by column."""
    text = storage.read_text(path)
    return list(csv.DictReader(io.StringIO(text, newline=""), delimiter="\t", quoting=csv.QUOTE_NONE))


def _one_line(text: str) -> str:
    """The text with its tabs and line breaks as spaces, so that a row stays a line."""
    return " ".join(text.replace("\t", " ").splitlines())
