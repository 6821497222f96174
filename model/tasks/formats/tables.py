"""Tables of text with named columns: TSV without quoting, CSV, JSON lines, Parquet and Arrow."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from cloze.core import storage
from cloze.core.errors import DataError, first_line
from cloze.model.tasks.files import split_file
from cloze.model.tasks.formats.lines import Line, csv_lines, json_lines, tsv_lines
from cloze.model.tasks.formats.official import OFFICIAL, Record
from cloze.model.tasks.options import SplitOptions, TableOptions

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
    path: str, options: TableOptions, *, header: bool = True, drop: bool = False
) -> Table:
    """Open the table of a file, in the format of the options or of the suffix.

    Args:
        header: true if the first line of TSV and CSV has the column names.
        drop: true to drop lines with another number of columns; else they are an error.

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
        return _from_lines(path, tsv_lines(path, options.delimiter or "\t"), header, drop)
    if kind == "csv":
        return _from_lines(path, csv_lines(path, options.delimiter or ","), header, drop)
    if kind in OFFICIAL:
        return _from_records(path, OFFICIAL[kind](path))
    if kind == "jsonl":
        objects = json_lines(path)
        return _from_records(path, ((f"{path}, line {number}", own) for number, own in objects))
    return _from_arrow(path, kind)


def _from_lines(path: str, lines: Iterator[Line], header: bool, drop: bool) -> Table:
    number, first = next(lines, (1, []))
    if not any(value.strip() for value in first):
        has_text = any(value.strip() for _, values in lines for value in values)
        raise DataError(
            f"{path} {'begins with an empty line' if has_text else 'is empty'}; it must contain "
            f"{'a header line and ' if header else ''}examples"
        )
    width = len(first)
    names = tuple(first) if header else tuple(map(str, range(width)))
    if len(set(names)) < width:
        duplicate = next(name for name, count in Counter(names).items() if count > 1)
        raise DataError(f"{path}, line {number}: two columns are called {duplicate!r}; rename one")
    dropped: Counter[str] = Counter()

    def rows() -> Iterator[Row]:
        count = 0
        empty_lines: list[Line] = []  # empty lines count only if another line follows
        for line in lines if header else chain([(number, first)], lines):
            if line[1] in ([], [""]):
                empty_lines.append(line)
                continue
            for line_number, cells in [*empty_lines, line]:
                location = f"{path}, line {line_number}"
                if len(cells) == width:
                    count += 1
                    yield location, cells
                elif drop:
                    dropped[IRREGULAR] += 1
                else:
                    raise DataError(
                        f"{location}: {len(cells)} columns, but "
                        f"{'the header' if header else 'the first line'} has {width}; separate "
                        f"columns by one tab, or omit such lines with --set options.irregular=drop"
                    )
            empty_lines.clear()
        if not count:
            raise DataError(f"{path} has a header but no examples; add some or use another file")

    return Table(
        path=path, columns=names, rows=rows(), named=header, header=header, dropped=dropped
    )


def _from_records(path: str, records: Iterator[Record]) -> Table:
    first = next(records, None)
    if first is None:
        raise DataError(f"{path} is empty; it must contain examples")
    names = tuple(first[1])
    # Missing values are None; the reader of a column checks them.
    rows = (
        (location, [values.get(name) for name in names])
        for location, values in chain([first], records)
    )
    return Table(path=path, columns=names, rows=rows)


def _from_arrow(path: str, kind: str) -> Table:
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
    values = (
        row
        for batch in table.to_batches()
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    rows = ((f"{path}, row {number}", row) for number, row in enumerate(values, start=1))
    return Table(path=path, columns=tuple(table.column_names), rows=rows)


def as_text(value: Any, location: str, column: str | int) -> str:
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
            f"{location}: the {column} is {kind} instead of a text; name another column"
        )
    return str(value)


# The table of a split.

TEXT, PAIR, LABEL, ID = "text", "pair", "label", "id"  # column roles
MUST_LABEL = ("train", "dev")  # splits whose answers must be known
NO_LABEL = "-1"  # marks a missing label in test splits of Hugging Face's hub
FIELD = re.compile(r"\{([^{}]+)\}")  # a column in a template


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTable:
    """Table of a split, with the column and its index by role, for the roles that exist.

    Attributes:
        where: value that a row must have, by column index.
        values: replacements of values, by role.
    """

    table: Table
    columns: Mapping[str, str | int]
    indices: Mapping[str, int]
    where: Mapping[int, str] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def rows(self) -> Iterator[tuple[str, dict[str, str], Sequence[Any]]]:
        """Iterate over rows as (file and line, text by role, all values)."""
        for location, values in self.table.rows:
            if any(as_text(values[i], location, i) != wanted for i, wanted in self.where.items()):
                continue
            texts = {
                role: as_text(values[index], location, self.columns[role])
                for role, index in self.indices.items()
            }
            for role, replacements in self.values.items():
                if role in texts:
                    texts[role] = replacements.get(texts[role], texts[role])
            yield location, texts, values


def describe_columns(options: TableOptions, roles: Sequence[str] = (TEXT, PAIR, LABEL)) -> str:
    """Describe the files of a task for messages."""
    columns = (
        ", ".join(str(options.columns[role]) for role in roles if role in options.columns)
        or f"{TEXT}, {LABEL}"
    )
    names = [" or ".join(options.files.get(split) or (f"{split}.tsv",)) for split in MUST_LABEL]
    files = " and ".join(dict.fromkeys(names))
    return f"a directory with {files} (columns: {columns})"


def _with_templates(table: Table, columns: Iterable[str | int]) -> Table:
    """Return the table with a column for each template, such as `{question} Answer: {answer}`.

    A column of the table itself that has braces in its name is no template.
    """
    templates = [
        name for name in map(str, columns) if FIELD.search(name) and name not in table.columns
    ]
    if not templates:
        return table
    indices = {
        name: index
        for template in templates
        for name in FIELD.findall(template)
        for index in table.indices([name])
    }

    def filled(location: str, values: Sequence[Any]) -> Iterator[str]:
        texts = {name: as_text(values[index], location, name) for name, index in indices.items()}
        for template in templates:
            yield FIELD.sub(lambda match: texts[match[1]], template)

    rows = ((location, [*values, *filled(location, values)]) for location, values in table.rows)
    return replace(table, columns=(*table.columns, *templates), rows=rows)


def open_split(
    path: str,
    split: str,
    options: TableOptions,
    role: str,
    optional: str,
    expected_files: str,
    prepare: Callable[[Table], Table] = lambda table: table,
) -> SplitTable:
    """Open the table of a split; splits other than train and dev may have no answers.

    Args:
        path: task directory, its parent, or the split's file.
        role: required role, in addition to `label`.
        optional: role that is read, like `id`, if the options name its column.
        expected_files: description of the expected files, for messages.
        prepare: function that returns the table with other columns.

    Raises:
        DataError: the file or a column is missing.
    """
    if options.folds and split not in (*MUST_LABEL, *options.files):
        raise DataError(
            f"{path} has no split {split!r}: its one file is cut into {options.folds} folds; use "
            f"dev or train"
        )
    own = options.splits.get(split, SplitOptions())
    columns = {**options.columns, **own.columns}
    file = split_file(path, split, options, tuple(SUFFIXES), expected_files)
    # Each line of a test file needs a prediction.
    drop = options.irregular == "drop" and not split.startswith("test")
    header = options.header if own.header is None else own.header
    table = prepare(open_table(file, options, header=header, drop=drop))
    table = _with_templates(table, columns.values())
    roles = [role, optional] if optional in columns else [role]
    has_label = table.index(columns.get(LABEL, LABEL)) is not None
    if has_label or split in MUST_LABEL:
        roles.append(LABEL)
    names = {role: columns.get(role, role) for role in roles}
    remedy = "" if has_label or split != "dev" else "; read a set without answers with --split test"
    indices = dict(zip(names, table.indices(list(names.values()), remedy), strict=True))
    if ID in columns and (index := table.index(columns[ID])) is not None:
        names[ID], indices[ID] = columns[ID], index
    wanted = options.where if own.where is None else own.where
    return SplitTable(
        table=table,
        columns=names,
        indices=indices,
        where=dict(zip(table.indices(list(wanted)), wanted.values(), strict=True)),
        values=options.values,
    )


def check_ids(ids: Sequence[str] | None, locations: Sequence[str]) -> None:
    """Check that ids are unique.

    Raises:
        DataError: an id is duplicate; the message names both places.
    """
    earlier: dict[str, str] = {}
    for value, location in zip(ids or (), locations, strict=False):
        if value in earlier:
            raise DataError(
                f"{location}: duplicate id {value!r}, see {earlier[value].rpartition(', ')[2]}; "
                f"use distinct ids"
            )
        earlier[value] = location


def read_texts_by_column(
    table: Table, columns: Sequence[str], optional: Sequence[str] = (), lists: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, str]]]:
    """Iterate over the rows of a table as (file and line, text by column).

    Args:
        columns: required columns with texts that are not blank.
        optional: columns that may be missing, and values too.
        lists: columns with lists of texts, which are returned as JSON.

    Raises:
        DataError: a column or a required value is missing, or a row is malformed; the message
            names file and line.
    """
    indices = dict(zip(columns, table.indices(columns), strict=True))
    indices |= {name: index for name in optional if (index := table.index(name)) is not None}
    for location, values in table.rows:
        row = {
            name: as_text(
                json.dumps([as_text(text, location, name) for text in values[index]])
                if name in lists and isinstance(values[index], list)
                else values[index],
                location,
                name,
            )
            for name, index in indices.items()
            if values[index] is not None
        }
        for name in columns:
            if not row.get(name, "").strip():
                raise DataError(f"{location}: the {name} is empty; remove the line")
            if "\0" in row[name]:
                raise DataError(f"{location}: the {name} has a NUL in it; remove it")
        yield location, row
