"""Texts, or pairs of texts, from a table of one split, with their answers as they are written there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model.tasks.formats.splits import split_file
from model.tasks.formats.tables import SUFFIXES, Table, as_text, open_table
from model.tasks.formats.tables_folds import in_fold
from model.tasks.options import TableOptions
from pipeline.core.errors import DataError

TEXT, PAIR, LABEL, ID = "text", "pair", "label", "id"  # roles of columns
MUST_LABEL = ("train", "dev")  # splits whose answers must be known
UNLABELLED = "without_a_label"  # why an example was left out
NO_LABEL = "-1"  # how tables of Hugging Face's hub say in a test split that there is no label


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRows:
    """The rows of a split, in their order.

    Attributes:
        path: the file.
        pairs: the second text of each row; None: there is none.
        answers: as they are written; None: the split has none.
        ids: as they are written; None: there is no such column.
        places: where each row stands, for messages.
        dropped: how many were left out, by reason.
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
    """A split's table, and the columns of its roles.

    Attributes:
        columns: by role, of those that were asked for and are there.
        labelled: whether the role `label` is among them.
    """

    table: Table
    columns: Mapping[str, str | int]
    places: Mapping[str, int]
    labelled: bool


def told(options: TableOptions, roles: Sequence[str] = (TEXT, PAIR, LABEL)) -> str:
    """What a task on such a table reads, for messages."""
    columns = ", ".join(str(options.columns[role]) for role in roles if role in options.columns) or f"{TEXT}, {LABEL}"
    names = [" or ".join(options.files.get(split) or (f"{split}.tsv",)) for split in MUST_LABEL]
    files = " and ".join(dict.fromkeys(names))
    return f"a directory with {files} (columns: {columns})"


def roles_of(options: TableOptions, split: str) -> tuple[dict[str, str | int], bool]:
    """The columns of a split by role, and whether a header names them."""
    own = options.splits.get(split)
    columns = {**options.columns, **(own.columns if own else {})}
    header = options.header if own is None or own.header is None else own.header
    return columns, header


def open_split(
    path: str, split: str, options: TableOptions, needed: Sequence[str], told: str, columns: Mapping[str, str | int]
) -> SplitTable:
    """The table of one split.

    A split other than train and dev may be without answers.

    Args:
        path: the task's directory, the one above it, or the split's file.
        needed: roles that must be there; beside them `label`, and `id` where the options name it.
        told: what the task reads, for messages.
        columns: where a role's column is called otherwise than the role.

    Raises:
        DataError: the file or a column is missing.
    """
    if options.folds and split not in MUST_LABEL:
        raise DataError(f"{path} has no split {split!r}: its one file is cut into {options.folds} folds; use dev or train")
    _, header = roles_of(options, split)
    name = split_file(path, split, options, tuple(SUFFIXES), told)
    drop = options.irregular == "drop" and not split.startswith("test")  # each line of a test file wants its prediction
    table = open_table(name, options, header=header, drop=drop)
    chosen = {role: columns.get(role, role) for role in needed}
    label = columns.get(LABEL, LABEL)
    labelled = split in MUST_LABEL or table.place(label) is not None
    if labelled:
        chosen[LABEL] = label
    remedy = "; a set without answers is read with --split test" if split == "dev" and table.place(label) is None else ""
    places = table.wanted(list(chosen.values()), remedy)
    if ID in columns and (place := table.place(columns[ID])) is not None:
        chosen[ID] = columns[ID]
        places.append(place)
    return SplitTable(table=table, columns=chosen, places=dict(zip(chosen, places, strict=True)), labelled=labelled)


def read_rows(path: str, split: str, options: TableOptions, told: str) -> TextRows:
    """The rows of one split.

    Raises:
        DataError: the file is missing or malformed, a text is empty, an answer missing or an id twice there; the message names file
            and line.
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
        row = {role: as_text(values[place], where, str(opened.columns[role])) for role, place in opened.places.items()}
        if options.unlabelled and row.get(LABEL) in options.unlabelled:
            dropped[UNLABELLED] += 1
            continue
        for role in needed:
            if not row[role].strip() and options.empty == "refuse":
                raise DataError(f"{where}: the {opened.columns[role]} is empty; remove the {table.unit}")
        for role, value in row.items():
            found[role].append(value)
        places.append(where)
    check_ids(found.get(ID), places)
    answers = found.get(LABEL)
    if answers is not None and split not in MUST_LABEL and set(answers) <= {"", NO_LABEL}:
        answers = None
    for place, answer in zip(places, answers or (), strict=False):
        if not answer.strip():
            raise DataError(f"{place}: the {opened.columns[LABEL]} is empty; say it, or remove the {table.unit}")
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
    """Refuse an id that is there twice.

    Raises:
        DataError: it is; the message names both places.
    """
    first: dict[str, str] = {}
    for value, place in zip(ids or (), places, strict=False):
        if value in first:
            raise DataError(f"{place}: the id {value!r} stands at {first[value].rpartition(', ')[2]} too; give each its own")
        first[value] = place


def _fold(rows: TextRows, split: str, options: TableOptions) -> TextRows:
    kept = in_fold(rows.texts, split, options.folds, options.fold)

    def chosen(values: list[Any] | None) -> Any:
        return None if values is None else [values[i] for i in kept]

    return TextRows(
        path=rows.path,
        texts=chosen(rows.texts),
        pairs=chosen(rows.pairs),
        answers=chosen(rows.answers),
        ids=chosen(rows.ids),
        places=chosen(rows.places),
        dropped=rows.dropped,
    )
