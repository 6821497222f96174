"""Files of tables: TSV without quoting, CSV, JSON lines, Parquet and Arrow."""

from __future__ import annotations

import functools
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

from cloze.core import storage
from cloze.core.errors import DataError, first_line
from cloze.model.tasks.formats.lines import Line, csv_delimiter, csv_lines, json_lines, tsv_lines
from cloze.model.tasks.formats.official import Record
from cloze.model.tasks.options import FORMATS, TableOptions

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
TAB = "\t"
JOINERS = "\u200c\u200d"
IRREGULAR, EMPTY = "irregular_line", "empty_line"  # reasons for dropping a line
Row = tuple[str, Sequence[Any]]  # file and line, for messages; values, strings in text files


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Table that is read once, from start to end.

    Attributes:
        path: file, for messages.
        columns: column names; without a header their numbers.
        named: true if columns have names.
        header: true if the first line has them.
        dropped: number of rows dropped so far, by reason.
    """

    path: str
    columns: tuple[str, ...]
    rows: Iterator[Row]
    named: bool = True
    header: bool = False
    dropped: Counter[str] = field(default_factory=Counter)

    def index(self, column: str | int) -> int | None:
        """Return the index of a column; None if it does not exist."""
        if isinstance(column, int):
            return column if 0 <= column < len(self.columns) else None
        return self.columns.index(column) if column in self.columns else None

    def indices(self, columns: Sequence[str | int], remedy: str = "") -> list[int]:
        """Return the indices of columns.

        Raises:
            DataError: a column does not exist; the message names the existing ones.
        """
        indices = []
        for column in columns:
            index = self.index(column)
            if index is None:
                location, scope = (", line 1", "in the header ") if self.header else ("", "")
                existing = ", ".join(self.columns) if self.named else f"{len(self.columns)} columns"
                raise DataError(
                    f"{self.path}{location}: no column {column!r} {scope}({existing}); name its "
                    f"columns {', '.join(map(str, columns))}, or name the columns with --set "
                    f"'options={{columns: {{…}}}}'{remedy}"
                )
            indices.append(index)
        return indices


def open_table(
    path: str,
    options: TableOptions,
    *,
    header: bool = True,
    drop: bool = False,
    records: int | None = None,
) -> Table:
    """Open the table of a file, in the format of the options or of the suffix.

    Args:
        header: true if the first line of TSV and CSV has the column names.
        drop: true to drop lines with another number of columns; else they are an error.
        records: maximum number of JSON records to read. Default: all.

    Raises:
        DataError: the file is missing, empty or malformed. Malformed rows raise it while iterating;
            the message names file and line.
    """
    formats = {**SUFFIXES, **options.suffixes}
    suffixes = (name for suffix, name in formats.items() if path.lower().endswith(suffix))
    kind: str = options.format or next(suffixes, "")
    if not kind:
        raise DataError(
            f"{path} has no suffix of a table ({', '.join(SUFFIXES)}); rename it, or set the "
            f"format with --set options.format=tsv"
        )
    if kind == "tsv":
        return _from_lines(path, tsv_lines, options.delimiter or TAB, header, drop)
    if kind == "csv":
        delimiter = options.delimiter or csv_delimiter(path, header)
        return _from_lines(path, csv_lines, delimiter, header, drop)
    if (read := FORMATS.get(kind)) is not None:
        return _from_records(path, islice(read(path), records))
    if kind == "jsonl":
        objects = json_lines(path)
        rows = ((f"{path}, line {number}", own) for number, own in objects)
        return _from_records(path, islice(rows, records))
    return _from_arrow(path, kind, getattr(options, "labels", ()))


def open_tables(paths: Sequence[str], options: TableOptions, **settings: Any) -> Table:
    """Open files with the same columns as one table, each when its first row is read.

    Raises:
        DataError: as `open_table`, or the columns of two files differ.
    """
    first = open_table(paths[0], options, **settings)

    def rows() -> Iterator[Row]:
        yield from first.rows
        for path in paths[1:]:
            table = open_table(path, options, **settings)
            order = table.indices(first.columns)
            if len(table.columns) != len(order):
                raise DataError(
                    f"{path} has the columns {', '.join(table.columns)}, {paths[0]} has "
                    f"{', '.join(first.columns)}; use files of one data set"
                )
            yield from ((location, [row[i] for i in order]) for location, row in table.rows)
            first.dropped.update(table.dropped)

    return first if len(paths) == 1 else replace(first, rows=rows())


def _from_lines(
    path: str, split: Callable[[str, str], Iterator[Line]], delimiter: str, header: bool, drop: bool
) -> Table:
    """Return the table of the lines that `split` splits.

    Spreadsheets write empty lines to CSV, which are skipped and counted, and cells without a name
    at the end of a row, which may be missing.
    """
    lines, is_csv = split(path, delimiter), split is csv_lines
    filled = filter(_has_text, lines)
    number, first = next(filled if is_csv else lines, (1, []))
    if not any(map(str.strip, first)):
        raise DataError(
            f"{path} {'begins with an empty line' if any(filled) else 'is empty'}; it must contain "
            f"{'a header line and ' if header else ''}examples"
        )
    names = tuple(map(str, range(len(first))))
    if header:
        names = tuple(name.strip() or f"Unnamed: {i}" for i, name in enumerate(first))
    width = len(names)
    fewest = max(i + 1 for i, name in enumerate(first) if name.strip()) if header else width
    if len(set(names)) < width:
        duplicate = next(name for name, count in Counter(names).items() if count > 1)
        raise DataError(f"{path}, line {number}: two columns are called {duplicate!r}; rename one")
    dropped: Counter[str] = Counter()

    def rows() -> Iterator[Row]:
        count, empty = 0, list[Line]()  # empty lines count only if another line follows
        for line in lines if header else chain([(number, first)], lines):
            if line[1] in ([], [""]) or (is_csv and not _has_text(line)):
                empty.append(line)
                continue
            if is_csv and empty:
                dropped[EMPTY] += len(empty)
                empty.clear()
            for line_number, cells in [*empty, line]:
                if len(cells) > width and not any(map(str.strip, cells[width:])):
                    cells = cells[:width]
                if fewest <= len(cells) <= width:
                    count += 1
                    yield f"{path}, line {line_number}", [*cells, *[""] * (width - len(cells))]
                elif drop:
                    dropped[IRREGULAR] += 1
                else:
                    sign = "one tab" if delimiter == TAB else repr(delimiter)
                    raise DataError(
                        f"{path}, line {line_number}: {len(cells)} columns, but "
                        f"{'the header' if header else 'the first line'} has {width}; separate "
                        f"columns by {sign}, or omit such lines with --set options.irregular=drop"
                    )
            empty.clear()
        if not count:
            raise DataError(f"{path} has a header but no examples; add some or use another file")

    return Table(
        path=path, columns=names, rows=rows(), named=header, header=header, dropped=dropped
    )


def _has_text(line: Line) -> bool:
    return any(map(str.strip, line[1]))


def _from_records(path: str, records: Iterator[Record]) -> Table:
    """Return the table of records; its columns are those of all of them."""
    found = list(records)
    if not found:
        raise DataError(f"{path} is empty; it must contain examples")
    names = tuple(dict.fromkeys(name for _, values in found for name in values))
    # Missing values are None; the reader of a column checks them.
    rows = ((location, [values.get(name) for name in names]) for location, values in found)
    return Table(path=path, columns=names, rows=rows)


def _from_arrow(path: str, kind: str, labels: Sequence[str]) -> Table:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with storage.open_input(path) as handle:
            content = handle.read()
        source: Any = pa.BufferReader(content)
        if kind == "parquet":
            table = parquet.read_table(source)
        else:
            open_reader = pa.ipc.open_file if content.startswith(b"ARROW1") else pa.ipc.open_stream
            table = open_reader(source).read_all()
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path} is not a valid {kind} file ({first_line(error)}); use another one"
        ) from error
    if not table.num_rows:
        raise DataError(f"{path} has no examples; add some or use another file")
    names = {
        name: own
        for name, own in class_names(table.schema.metadata).items()
        # A task whose labels are the numbers, such as GLUE's files have them, keeps these.
        if not labels or set(own) <= set(labels)
    }
    values = (
        row
        for batch in table.to_batches()
        for row in zip(
            *(
                [_named(value, names[name]) for value in column.to_pylist()]
                if name in names
                else column.to_pylist()
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            ),
            strict=True,
        )
    )
    rows = ((f"{path}, row {number}", row) for number, row in enumerate(values, start=1))
    return Table(path=path, columns=tuple(table.column_names), rows=rows)


def class_names(metadata: Mapping[bytes, bytes] | None) -> dict[str, list[str]]:
    """Return the label names of columns, from the features that `datasets` writes to a schema.

    A column is a ClassLabel, or a list of them.
    """
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"].items()
    except (KeyError, TypeError, AttributeError, ValueError):
        return {}
    found = {}
    for name, feature in features:
        own = feature[0] if isinstance(feature, list) and feature else feature
        own = own.get("feature", own) if isinstance(own, Mapping) else {}
        if isinstance(own, Mapping) and own.get("_type") == "ClassLabel" and own.get("names"):
            found[name] = [str(label) for label in own["names"]]
    return found


def _named(value: Any, names: Sequence[str]) -> Any:
    """Return the name of a class, or of each in a list; -1 of an unlabelled row stays."""
    if isinstance(value, list):
        return [_named(item, names) for item in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else value


def as_text(value: Any, location: str, column: str | int) -> str:
    """Convert a value to text; None and NaN, pandas' None, become an empty text.

    Raises:
        DataError: the value is a list or an object, or bytes that are not UTF-8.
    """
    if isinstance(value, str):
        return value
    if value is None or value != value:
        return ""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{location}: byte {error.start + 1} of the {column} is not UTF-8; write texts"
            ) from error
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, Mapping)):
        kind = "a list" if isinstance(value, list) else "an object"
        raise DataError(
            f"{location}: the {column} is {kind} instead of a text; name another column"
        )
    return str(value)


@functools.lru_cache(maxsize=4096)
def as_label(text: str) -> str:
    """Return a label without what nobody sees: composed (NFC), with single blanks in it only.

    Format characters go, such as byte order marks, but for the joiners within a word, which some
    scripts and emoji need.
    """
    seen = "".join(
        letter
        for letter in unicodedata.normalize("NFC", text)
        if letter in JOINERS or unicodedata.category(letter) != "Cf"
    )
    return " ".join(seen.split()).strip(JOINERS)
