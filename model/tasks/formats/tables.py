"""A table with named columns, whatever file it comes in: TSV, CSV, JSON lines, Parquet or Arrow, behind one reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from model.tasks.formats.tsv import csv_lines, json_lines, tsv_lines
from model.tasks.options import TableOptions
from pipeline.core import storage
from pipeline.core.errors import DataError

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
IRREGULAR = "irregular_line"  # why a line was left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table, read once from its begin to its end.

    Attributes:
        path: of the file, for messages.
        columns: the names of the columns; without a header their numbers.
        rows: the number of each row as `unit` counts them, and its values: strings of text files, of others what they hold.
        unit: `line`, or `row` (from 1) of files without lines.
        header: the number of the line that names the columns; 0 without one.
        named: whether the columns have names.
        dropped: how many rows were left out so far, by reason.
    """

    path: str
    columns: tuple[str, ...]
    rows: Iterator[tuple[int, Sequence[Any]]]
    unit: str
    header: int
    named: bool
    dropped: Counter[str]

    def place(self, column: str | int) -> int | None:
        """Where a column stands; None: there is none of that name."""
        if isinstance(column, int):
            return column if 0 <= column < len(self.columns) else None
        return self.columns.index(column) if column in self.columns else None

    def wanted(self, columns: Sequence[str | int], remedy: str = "") -> list[int]:
        """Where these columns stand.

        Raises:
            DataError: one is not there; the message names those that are.
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
        """A row, for messages."""
        return f"{self.path}, {self.unit} {number}"


def format_of(path: str, options: TableOptions) -> str:
    """What a file is: as the options say, or as its name ends.

    Raises:
        DataError: nothing says it.
    """
    if options.format:
        return options.format
    for suffix, name in SUFFIXES.items():
        if path.lower().endswith(suffix):
            return name
    raise DataError(
        f"{path} ends like no table ({', '.join(SUFFIXES)}); rename it, or say what it is with --set options.format=tsv"
    )


def open_table(path: str, options: TableOptions, *, header: bool = True, drop: bool = False) -> Table:
    """The table of a file.

    Args:
        header: whether the first line names the columns, of TSV and CSV.
        drop: leave lines of another number of columns out; else they are an error.

    Raises:
        DataError: the file is missing, empty or malformed. While rows are taken: one is malformed; the message names file and line.
    """
    kind = format_of(path, options)
    if kind == "tsv":
        return _from_lines(path, tsv_lines(path, options.delimiter or "\t"), header, drop)
    if kind == "csv":
        return _from_lines(path, csv_lines(path, options.delimiter or ","), header, drop)
    if kind == "jsonl":
        return _from_objects(path)
    return _from_arrow(path, kind)


def _from_lines(path: str, lines: Iterator[tuple[int, list[str]]], header: bool, drop: bool) -> Table:
    first = next(lines, None)
    if first is None or not any(value.strip() for value in first[1]):
        rest = any(value.strip() for _, values in lines for value in values) if first else False
        said = "begins with an empty line" if rest else "is empty"
        raise DataError(f"{path} {said}; it must hold {'a header line and ' if header else ''}examples")
    width = len(first[1])
    names = tuple(first[1]) if header else tuple(str(number) for number in range(width))
    if len(set(names)) < width:
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise DataError(f"{path}, line {first[0]}: two columns are called {twice!r}; rename one")
    dropped: Counter[str] = Counter()

    def rows() -> Iterator[tuple[int, list[str]]]:
        found, held = 0, list[tuple[int, list[str]]]()  # a line without anything counts if another one follows
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
                        " separate columns by one tab, or leave such lines out with --set options.irregular=drop"
                    )
            held.clear()
        if not found:
            raise DataError(f"{path} holds a header and no examples; add some or name another file")

    return Table(path=path, columns=names, rows=rows(), unit="line", header=int(header), named=header, dropped=dropped)


def _from_objects(path: str) -> Table:
    objects = json_lines(path)
    first = next(objects, None)
    if first is None:
        raise DataError(f"{path} is empty; it must hold a JSON object a line")
    names = tuple(first[1])

    def rows() -> Iterator[tuple[int, list[Any]]]:
        for number, values in chain([first], objects):
            yield number, [values.get(name) for name in names]  # what is not there is nothing; who needs it says so

    return Table(path=path, columns=names, rows=rows(), unit="line", header=0, named=True, dropped=Counter())


def _from_arrow(path: str, kind: str) -> Table:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with storage.open_input(path) as handle:
            table: Any = parquet.read_table(pa.PythonFile(handle)) if kind == "parquet" else _arrow(handle.read())
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is no {kind} file ({str(error).splitlines()[0]}); name another one") from error
    if not table.num_rows:
        raise DataError(f"{path} holds no examples; add some or name another file")

    def rows() -> Iterator[tuple[int, list[Any]]]:
        number = 0
        for batch in table.to_batches():
            for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                number += 1
                yield number, list(values)

    return Table(path=path, columns=tuple(table.column_names), rows=rows(), unit="row", header=0, named=True, dropped=Counter())


def _arrow(content: bytes) -> Any:
    """An Arrow file, or a stream."""
    import pyarrow as pa

    opened = pa.ipc.open_file if content.startswith(b"ARROW1") else pa.ipc.open_stream
    return opened(pa.BufferReader(content)).read_all()


def as_text(value: Any, where: str, column: str) -> str:
    """A value as text: numbers and truth values as they are written, nothing as nothing.

    Raises:
        DataError: it is a list or an object.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, Mapping)):
        kind = "a list" if isinstance(value, list) else "an object"
        raise DataError(f"{where}: the {column} is {kind} where a text belongs; name another column")
    return str(value)
