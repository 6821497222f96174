"""Tables of text with named columns, and their columns by role for the splits of tasks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cloze.core.errors import DataError
from cloze.model.tasks.files import split_files
from cloze.model.tasks.formats.table_files import SUFFIXES, Table, as_label, as_text, open_tables
from cloze.model.tasks.options import SplitOptions, TableOptions

# The table of a split.

TEXT, PAIR, LABEL, ID = "text", "pair", "label", "id"  # column roles
MUST_LABEL = ("train", "dev")  # splits whose answers must be known
NO_LABEL = "-1"  # marks a missing label in test splits of Hugging Face's hub
SHOWN = 20  # values in a message
FIELD = re.compile(r"\{([^{}]+)\}")  # a column in a template


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTable:
    """Table of a split, with the column and its index by role, for the roles that exist.

    Attributes:
        where: value that a row must have, by column index.
        values: replacements of values, by role.
        classes: labels are names (`as_label`), not texts to write.
    """

    table: Table
    columns: Mapping[str, str | int]
    indices: Mapping[str, int]
    where: Mapping[int, str] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    classes: bool = True

    def rows(self) -> Iterator[tuple[str, dict[str, str], Sequence[Any]]]:
        """Iterate over rows as (file and line, text by role, all values).

        Raises:
            DataError: there are rows, but none with the values of `where`.
        """
        is_kept, others = False, dict[str, None]()
        for location, values in self.table.rows:
            own = [as_text(values[i], location, i) for i in self.where]
            if own != [*self.where.values()]:
                others |= {", ".join(own): None} if len(others) < SHOWN else {}
                continue
            is_kept = True
            texts = {
                role: as_text(values[index], location, self.columns[role])
                for role, index in self.indices.items()
            }
            if self.classes and LABEL in texts:
                texts[LABEL] = as_label(texts[LABEL])
            for role, replacements in self.values.items():
                if role in texts:
                    texts[role] = replacements.get(texts[role], texts[role])
            yield location, texts, values
        if others and not is_kept:
            raise DataError(
                f"{self.table.path} has no row with {', '.join(self.where.values())!r}, but with "
                f"{', '.join(map(repr, others))}; correct where in the task's options"
            )


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
    records: int | None = None,
) -> SplitTable:
    """Open the table of a split; splits other than train and dev may have no answers.

    Args:
        path: task directory, its parent, or the split's file.
        role: required role, in addition to `label`.
        optional: role that is read, like `id`, if the options name its column.
        expected_files: description of the expected files, for messages.
        prepare: function that returns the table with other columns.
        records: see `open_table`.

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
    files = split_files(path, split, options, tuple(SUFFIXES), expected_files)
    # Each line of a test file needs a prediction.
    drop = options.irregular == "drop" and not split.startswith("test")
    header = options.header if own.header is None else own.header
    table = prepare(open_tables(files, options, header=header, drop=drop, records=records))
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
        classes=options.label_is_class,
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
