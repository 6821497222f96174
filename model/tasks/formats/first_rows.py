"""The first rows of a task's tables, which a plan reads. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from cloze.core import storage
from cloze.core.artifacts import fingerprints
from cloze.core.errors import DataError
from cloze.model.tasks.files import is_archive, missing_split
from cloze.model.tasks.formats.choices import CONTEXT, START
from cloze.model.tasks.formats.tables import LABEL, PAIR, TEXT, describe_columns, open_split
from cloze.model.tasks.options import ChoiceOptions, TaskOptions, TextOptions


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


def _check(path: str, split: str, given: TaskOptions, records: int | None) -> None:
    options = given.as_table()
    if options is None:
        return
    is_choice = isinstance(options, ChoiceOptions)
    more = getattr(options, "endings" if is_choice else "label_columns", ())
    if more and not is_choice:
        options = options.model_copy(update={"columns": {**options.columns, LABEL: more[0]}})
    roles = (CONTEXT, START) if is_choice else (TEXT, PAIR)
    table = open_split(path, split, options, *roles, describe_columns(options), records=records)
    table.table.indices(more)
    known = options.labels if type(options) is TextOptions else ()
    location, texts, _ = next(table.rows() if known else iter(()), ("", dict[str, str](), ()))
    if LABEL in texts and texts[LABEL] not in {*known, *options.unlabelled}:
        raise DataError(
            f"{location}: label {texts[LABEL]!r} is not one of {', '.join(known)}; correct the line"
        )
