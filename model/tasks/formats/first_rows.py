"""The first rows of a task's tables, which a plan reads. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from cloze.core import storage
from cloze.core.artifacts import fingerprints
from cloze.core.errors import DataError
from cloze.model.tasks.files import is_archive, missing_split, split_file
from cloze.model.tasks.formats.choices import CONTEXT, START
from cloze.model.tasks.formats.table_files import SUFFIXES, open_table
from cloze.model.tasks.formats.tables import LABEL, PAIR, TEXT, describe_columns, open_split
from cloze.model.tasks.options import (
    ChoiceOptions,
    MultiLabelOptions,
    RetrievalOptions,
    TableOptions,
    TaskOptions,
    TextOptions,
)


def check_columns(path: str, options: TaskOptions, splits: Sequence[str], hint: str = "") -> None:
    """Check the columns and the first row of each split's table, so that no run begins in vain.

    Args:
        hint: end of the message.

    Raises:
        DataError: a column is missing, or the first row is malformed or has an unknown label; not
            for missing files.
    """

    def check() -> str:
        for split in () if missing_split(path, options, splits) else splits:
            try:
                _check(path, split, options, 1)
            except DataError:  # records may have further fields
                try:
                    _check(path, split, options, None)
                except DataError as error:
                    raise DataError(f"{error}{hint}") from None
        return ""

    if storage.is_local(path) and (not storage.is_dir(path) or is_archive(path)):
        fingerprints.memoize(f"columns\0{path}\0{options!r}\0{splits}", check)


def _check(path: str, split: str, options: TaskOptions, records: int | None) -> None:
    if isinstance(options, RetrievalOptions) and options.pairs == "rows":
        file = split_file(path, split, options, tuple(SUFFIXES), "a table")
        columns = [options.columns.get(role, role) for role in ("query", "passage")]
        open_table(file, TableOptions(), records=records).indices(columns)
    if not isinstance(options, TableOptions) or getattr(options, "layout", "table") != "table":
        return
    is_choice, more = isinstance(options, ChoiceOptions), tuple[str | int, ...]()
    if isinstance(options, ChoiceOptions):
        more = options.endings
    elif isinstance(options, MultiLabelOptions) and options.label_columns:
        more = options.label_columns
        columns_of = {**options.columns, LABEL: more[0]}
        options = options.model_copy(update={"columns": columns_of})
    roles = (CONTEXT, START) if is_choice else (TEXT, PAIR)
    table = open_split(path, split, options, *roles, describe_columns(options), records=records)
    table.table.indices(more)
    if not isinstance(options, TextOptions) or isinstance(options, MultiLabelOptions):
        return
    for location, texts, _ in table.rows():
        label = texts.get(LABEL, "")
        if options.labels and label not in {*options.labels, *options.unlabelled}:
            known = ", ".join(options.labels)
            raise DataError(f"{location}: label {label!r} is not one of {known}; correct the line")
        break
