"""Texts or pairs of texts with answers, from the table of a split."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cloze.core.errors import DataError
from cloze.model.tasks.formats.files import fold_indices, split_file
from cloze.model.tasks.formats.tables import SUFFIXES, Table, as_text, open_table
from cloze.model.tasks.options import TableOptions

TEXT, PAIR, LABEL, ID = "text", "pair", "label", "id"  # column roles
MUST_LABEL = ("train", "dev")  # splits whose answers must be known
UNLABELLED = "without_a_label"  # reason for dropping an example
NO_LABEL = "-1"  # marks a missing label in test splits of Hugging Face's hub


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRows:
    """Rows of a split, in order.

    Attributes:
        path: file.
        pairs: second text of each row; None: single texts.
        answers: answers as in the file; None: the split has none.
        ids: ids as in the file; None: no such column.
        places: position of each row, for messages.
        dropped: number of dropped rows, by reason.
    """

    path: str
    texts: list[str]
    pairs: list[str] | None
    answers: list[str] | None
    ids: list[str] | None
    places: list[str]
    dropped: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTable:
    """Table of a split with the columns of its roles.

    Attributes:
        columns: column of each requested role that exists.
        places: index of each of these columns.
        labelled: the role `label` is included.
    """

    table: Table
    columns: Mapping[str, str | int]
    places: Mapping[str, int]
    labelled: bool


def describe_columns(options: TableOptions, roles: Sequence[str] = (TEXT, PAIR, LABEL)) -> str:
    """Describe the files of a task for messages."""
    columns = (
        ", ".join(str(options.columns[role]) for role in roles if role in options.columns)
        or f"{TEXT}, {LABEL}"
    )
    names = [" or ".join(options.files.get(split) or (f"{split}.tsv",)) for split in MUST_LABEL]
    files = " and ".join(dict.fromkeys(names))
    return f"a directory with {files} (columns: {columns})"


def roles_of(options: TableOptions, split: str) -> tuple[dict[str, str | int], bool]:
    """Return the columns of a split by role, and whether it has a header."""
    own = options.splits.get(split)
    columns = {**options.columns, **(own.columns if own else {})}
    header = options.header if own is None or own.header is None else own.header
    return columns, header


def open_split(
    path: str,
    split: str,
    options: TableOptions,
    needed: Sequence[str],
    told: str,
    columns: Mapping[str, str | int],
) -> SplitTable:
    """Open the table of a split; splits other than train and dev may have no answers.

    Args:
        path: task directory, its parent, or the split's file.
        needed: required roles, in addition to `label`; `id` is read if the options name it.
        told: description of the expected files, for messages.
        columns: column names that differ from their role.

    Raises:
        DataError: the file or a column is missing.
    """
    if options.folds and split not in MUST_LABEL:
        raise DataError(
            f"{path} has no split {split!r}: its one file is cut into {options.folds} folds; use "
            f"dev or train"
        )
    _, header = roles_of(options, split)
    name = split_file(path, split, options, tuple(SUFFIXES), told)
    drop = options.irregular == "drop" and not split.startswith(
        "test"
    )  # each line of a test file needs a prediction
    table = open_table(name, options, header=header, drop=drop)
    chosen = {role: columns.get(role, role) for role in needed}
    label = columns.get(LABEL, LABEL)
    labelled = split in MUST_LABEL or table.place(label) is not None
    if labelled:
        chosen[LABEL] = label
    remedy = (
        "; a set without answers is read with --split test"
        if split == "dev" and table.place(label) is None
        else ""
    )
    places = table.wanted(list(chosen.values()), remedy)
    if ID in columns and (place := table.place(columns[ID])) is not None:
        chosen[ID] = columns[ID]
        places.append(place)
    return SplitTable(
        table=table,
        columns=chosen,
        places=dict(zip(chosen, places, strict=True)),
        labelled=labelled,
    )


def read_rows(path: str, split: str, options: TableOptions, told: str) -> TextRows:
    """Read the rows of one split.

    Raises:
        DataError: the file is missing or malformed, a text is empty, an answer missing, or an id is
            duplicate; the message names file and line.
    """
    columns, _ = roles_of(options, split)
    needed = [TEXT, PAIR] if PAIR in columns else [TEXT]
    opened = open_split(path, split, options, needed, told, columns)
    table = opened.table
    found: dict[str, list[str]] = {role: [] for role in opened.places}
    places: list[str] = []
    dropped = table.dropped
    for number, values in table.rows:
        where = table.where(number)
        row = {
            role: as_text(values[place], where, str(opened.columns[role]))
            for role, place in opened.places.items()
        }
        if options.unlabelled and row.get(LABEL) in options.unlabelled:
            dropped[UNLABELLED] += 1
            continue
        for role in needed:
            if not row[role].strip() and options.empty == "refuse":
                raise DataError(
                    f"{where}: the {opened.columns[role]} is empty; remove the {table.unit}"
                )
        for role, value in row.items():
            found[role].append(value)
        places.append(where)
    check_ids(found.get(ID), places)
    answers = found.get(LABEL)
    if answers is not None and split not in MUST_LABEL and set(answers) <= {"", NO_LABEL}:
        answers = None
    for place, answer in zip(places, answers or (), strict=False):
        if not answer.strip():
            raise DataError(
                f"{place}: the {opened.columns[LABEL]} is empty; say it, or remove the {table.unit}"
            )
    rows = TextRows(
        path=table.path,
        texts=found[TEXT],
        pairs=found.get(PAIR),
        answers=answers,
        ids=found.get(ID),
        places=places,
        dropped=dict(dropped),
    )
    return rows if not options.folds else _fold(rows, split, options)


def check_ids(ids: Sequence[str] | None, places: Sequence[str]) -> None:
    """Check that ids are unique.

    Raises:
        DataError: an id is duplicate; the message names both places.
    """
    first: dict[str, str] = {}
    for value, place in zip(ids or (), places, strict=False):
        if value in first:
            raise DataError(
                f"{place}: the id {value!r} stands at {first[value].rpartition(', ')[2]} too; give "
                f"each its own"
            )
        first[value] = place


def _fold(rows: TextRows, split: str, options: TableOptions) -> TextRows:
    kept = fold_indices(rows.texts, split, options.folds, options.fold)
    return dataclasses.replace(
        rows,
        texts=[rows.texts[i] for i in kept],
        pairs=rows.pairs and [rows.pairs[i] for i in kept],
        answers=rows.answers and [rows.answers[i] for i in kept],
        ids=rows.ids and [rows.ids[i] for i in kept],
        places=[rows.places[i] for i in kept],
    )
