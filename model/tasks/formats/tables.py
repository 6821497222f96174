"""Tables of text: TSV without quoting, CSV, JSON lines, Parquet and Arrow."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from cloze.core import storage
from cloze.core.errors import DataError, first_line
from cloze.model.tasks.formats.files import load_json
from cloze.model.tasks.options import TableOptions

BOM = b"\xef\xbb\xbf"
Line = tuple[int, list[str]]  # line number from 1, and values


def text_lines(path: str) -> Iterator[tuple[int, str]]:
    """Iterate over the numbered lines of a UTF-8 file, without their ends (LF or CRLF).

    Only LF ends a line: U+2028 and vertical tabs are part of the text.

    Raises:
        DataError: the file is missing, or a line is no UTF-8 or has a NUL.
    """
    with storage.open_input(path) as handle:
        for number, line in enumerate(handle, start=1):
            yield number, _decoded(line.removeprefix(BOM) if number == 1 else line, path, number)


def tsv_lines(path: str, delimiter: str = "\t") -> Iterator[Line]:
    """Iterate over split lines; quotation marks are text, as SST-2 and MRPC have unpaired ones."""
    for number, line in text_lines(path):
        yield number, line.split(delimiter)


def csv_lines(path: str, delimiter: str = ",") -> Iterator[Line]:
    """Iterate over CSV records (RFC 4180) with the number of their first line.

    Raises:
        DataError: a quotation mark is unclosed or misplaced; and as for `text_lines`.
    """
    number = 1
    reader = csv.reader(_with_ends(text_lines(path)), delimiter=delimiter, strict=True)
    while True:
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{path}, line {number}: {error}; close the quotation mark, or write it twice"
            ) from error
        yield number, values
        number = reader.line_num + 1


def json_lines(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Iterate over the objects of a JSON-lines file; empty lines are skipped.

    Raises:
        DataError: a line is no JSON object; and as for `text_lines`.
    """
    for number, line in text_lines(path):
        if not line.strip():
            continue
        try:
            found = load_json(line)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{path}, line {number}, column {error.colno}: no JSON ({error.msg}); mend the line"
            ) from error
        if not isinstance(found, dict):
            raise DataError(
                f"{path}, line {number}: {type(found).__name__} where an object belongs; write one "
                f"object a line"
            )
        yield number, found


def _with_ends(lines: Iterable[tuple[int, str]]) -> Iterator[str]:
    return (line + "\n" for _, line in lines)


def _decoded(line: bytes, path: str, number: int) -> str:
    if b"\0" in line:
        raise DataError(
            f"{path}, line {number}: a NUL at byte {line.index(0) + 1}; the file is damaged or in "
            f"UTF-16,"
            " convert it to UTF-8"
        )
    try:
        return line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, line {number}: byte {error.start + 1} is not UTF-8; convert the file to UTF-8"
        ) from error


# Tables with named columns, one reader for all formats.

SUFFIXES = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}
IRREGULAR = "irregular_line"  # reason for dropping a line


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Table that is read once, from start to end.

    Attributes:
        path: file, for messages.
        columns: column names; without a header their numbers.
        rows: number of each row in `unit`, and its values: strings in text files.
        unit: `line`, or `row` (from 1) for binary formats.
        header: number of the header line; 0 without one.
        named: columns have names.
        dropped: number of rows dropped so far, by reason.
    """

    path: str
    columns: tuple[str, ...]
    rows: Iterator[tuple[int, Sequence[Any]]]
    unit: str
    header: int
    named: bool
    dropped: Counter[str]

    def place(self, column: str | int) -> int | None:
        """Return the index of a column; None if it does not exist."""
        if isinstance(column, int):
            return column if 0 <= column < len(self.columns) else None
        return self.columns.index(column) if column in self.columns else None

    def wanted(self, columns: Sequence[str | int], remedy: str = "") -> list[int]:
        """Return the indices of columns.

        Raises:
            DataError: a column does not exist; the message names the existing ones.
        """
        places = []
        for column in columns:
            place = self.place(column)
            if place is None:
                named = ", ".join(str(name) for name in columns)
                where = f"{self.path}, line {self.header}" if self.header else self.path
                there = ", ".join(self.columns) if self.named else f"{len(self.columns)} columns"
                inside = "in the header " if self.header else ""
                raise DataError(
                    f"{where}: no column {column!r} {inside}({there}); name its columns {named},"
                    f" or say which they are with --set 'options={{columns: {{…}}}}'{remedy}"
                )
            places.append(place)
        return places

    def where(self, number: int) -> str:
        """Describe a row for messages."""
        return f"{self.path}, {self.unit} {number}"


def format_of(path: str, options: TableOptions) -> str:
    """Return the format of a file, from the options or the suffix.

    Raises:
        DataError: the suffix is unknown.
    """
    if options.format:
        return options.format
    for suffix, name in SUFFIXES.items():
        if path.lower().endswith(suffix):
            return name
    raise DataError(
        f"{path} ends like no table ({', '.join(SUFFIXES)}); rename it, or say what it is with "
        f"--set options.format=tsv"
    )


def open_table(
    path: str, options: TableOptions, *, header: bool = True, drop: bool = False
) -> Table:
    """Open the table of a file.

    Args:
        header: the first line of TSV and CSV names the columns.
        drop: drop lines with another number of columns; else they are an error.

    Raises:
        DataError: the file is missing, empty or malformed. Malformed rows raise it while iterating;
            the message names file and line.
    """
    kind = format_of(path, options)
    if kind == "tsv":
        return _from_lines(path, tsv_lines(path, options.delimiter or "\t"), header, drop)
    if kind == "csv":
        return _from_lines(path, csv_lines(path, options.delimiter or ","), header, drop)
    if kind == "jsonl":
        return _from_objects(path)
    return _from_arrow(path, kind)


def _from_lines(
    path: str, lines: Iterator[tuple[int, list[str]]], header: bool, drop: bool
) -> Table:
    first = next(lines, None)
    if first is None or not any(value.strip() for value in first[1]):
        rest = any(value.strip() for _, values in lines for value in values) if first else False
        said = "begins with an empty line" if rest else "is empty"
        raise DataError(
            f"{path} {said}; it must hold {'a header line and ' if header else ''}examples"
        )
    width = len(first[1])
    names = tuple(first[1]) if header else tuple(str(number) for number in range(width))
    if len(set(names)) < width:
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise DataError(f"{path}, line {first[0]}: two columns are called {twice!r}; rename one")
    dropped: Counter[str] = Counter()

    def rows() -> Iterator[tuple[int, list[str]]]:
        found, held = (
            0,
            list[tuple[int, list[str]]](),
        )  # an empty line counts only if another line follows
        for number, values in lines if header else chain([first], lines):
            if values == [""] or not values:
                held.append((number, values))
                continue
            for at, few in [*held, (number, values)]:
                if len(few) == width:
                    found += 1
                    yield at, few
                elif drop:
                    dropped[IRREGULAR] += 1
                else:
                    than = "the header" if header else "the first line"
                    raise DataError(
                        f"{path}, line {at}: {len(few)} columns where {than} has {width};"
                        " separate columns by one tab, or leave such lines out with --set "
                        "options.irregular=drop"
                    )
            held.clear()
        if not found:
            raise DataError(f"{path} holds a header and no examples; add some or name another file")

    return Table(
        path=path,
        columns=names,
        rows=rows(),
        unit="line",
        header=int(header),
        named=header,
        dropped=dropped,
    )


def _from_objects(path: str) -> Table:
    objects = json_lines(path)
    first = next(objects, None)
    if first is None:
        raise DataError(f"{path} is empty; it must hold a JSON object a line")
    names = tuple(first[1])

    def rows() -> Iterator[tuple[int, list[Any]]]:
        for number, values in chain([first], objects):
            yield (
                number,
                [values.get(name) for name in names],
            )  # missing values are None; the reader of a column checks them

    return Table(
        path=path, columns=names, rows=rows(), unit="line", header=0, named=True, dropped=Counter()
    )


def _from_arrow(path: str, kind: str) -> Table:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with storage.open_input(path) as handle:
            table: Any = (
                parquet.read_table(pa.PythonFile(handle))
                if kind == "parquet"
                else _arrow(handle.read())
            )
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path} is no {kind} file ({first_line(error)}); name another one"
        ) from error
    if not table.num_rows:
        raise DataError(f"{path} holds no examples; add some or name another file")

    def rows() -> Iterator[tuple[int, list[Any]]]:
        number = 0
        for batch in table.to_batches():
            for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                number += 1
                yield number, list(values)

    return Table(
        path=path,
        columns=tuple(table.column_names),
        rows=rows(),
        unit="row",
        header=0,
        named=True,
        dropped=Counter(),
    )


def _arrow(content: bytes) -> Any:
    """Read an Arrow file or stream."""
    import pyarrow as pa

    opened = pa.ipc.open_file if content.startswith(b"ARROW1") else pa.ipc.open_stream
    return opened(pa.BufferReader(content)).read_all()


def as_text(value: Any, where: str, column: str) -> str:
    """Convert a value to text; None becomes an empty text.

    Raises:
        DataError: the value is a list or an object.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, Mapping)):
        kind = "a list" if isinstance(value, list) else "an object"
        raise DataError(
            f"{where}: the {column} is {kind} where a text belongs; name another column"
        )
    return str(value)


# Checked texts of table columns.


def read_rows(
    path: str, columns: Sequence[str], more: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, str]]]:
    """Iterate over rows as (file and line, values by column).

    Args:
        columns: required columns with texts that are not blank.
        more: optional columns.

    Raises:
        DataError: the file is missing, empty or no table, or a required value is missing; the
            message names file and line.
    """
    table = open_table(path, TableOptions())
    places = dict(zip(columns, table.wanted(columns), strict=True))
    places |= {name: place for name in more if (place := table.place(name)) is not None}
    for number, values in table.rows:
        where = table.where(number)
        row = {
            name: as_text(values[place], where, name)
            for name, place in places.items()
            if values[place] is not None
        }
        for name in columns:
            if not row.get(name, "").strip():
                raise DataError(f"{where}: the {name} is empty; remove the line")
            if "\0" in row[name]:
                raise DataError(f"{where}: the {name} has a NUL in it; remove it")
        yield where, row
