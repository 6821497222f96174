"""GLUE's table format: UTF-8, a header line, tabs between the columns, no quoting, one example a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.core import storage
from pipeline.core.errors import DataError


def read_table(path: str, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, values of `columns`) for each line after the header.

    A quotation mark is a character like any other (csv's QUOTE_NONE): SST-2 and MRPC hold unpaired ones.

    Raises:
        DataError: the file is missing or empty, a column is not in the header, a line has another number of
            columns than the header or is no UTF-8; the message names file and line.
    """
    with storage.open_input(path) as handle:
        lines = handle.read().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not lines[-1].strip():  # what follows the last line end
        lines.pop()
    if not any(line.strip() for line in lines):
        raise DataError(f"{path} is empty; it must hold a header line ({', '.join(columns)}) and examples")
    header = _decoded(lines[0], path, 1).split("\t")
    missing = [name for name in columns if name not in header]
    if missing:
        raise DataError(
            f"{path}, line 1: no column {missing[0]!r} in the header ({', '.join(header)});"
            f" name its columns {', '.join(columns)}"
        )
    if len(lines) == 1:
        raise DataError(f"{path} holds a header and no examples; add some or name another file")
    places = [header.index(name) for name in columns]
    for number, line in enumerate(lines[1:], start=2):
        values = _decoded(line, path, number).split("\t")
        if len(values) != len(header):
            raise DataError(
                f"{path}, line {number}: {len(values)} columns where the header has {len(header)}; separate columns by one tab"
            )
        yield number, [values[place] for place in places]


def read_header(path: str) -> list[str]:
    """The names of the table's columns."""
    with storage.open_input(path) as handle:
        return _decoded(handle.readline().removeprefix(b"\xef\xbb\xbf").rstrip(b"\n"), path, 1).split("\t")


def _decoded(line: bytes, path: str, number: int) -> str:
    try:
        return line.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, line {number}: byte {error.start + 1} is not UTF-8; convert the file to UTF-8") from error
