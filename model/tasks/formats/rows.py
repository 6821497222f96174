"""The texts in some columns of a table, checked: what pairs of texts are read from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from model.tasks.formats.tables import as_text, open_table
from model.tasks.options import TableOptions
from pipeline.core.errors import DataError


def read_rows(path: str, columns: Sequence[str], more: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (file and line, values by column) of each row.

    Args:
        columns: those that every row must have, each a text that is not blank.
        more: those that are given where they are there.

    Raises:
        DataError: the file is missing, empty or no table, or a row has nothing in a column; the message names file and line.
    """
    table = open_table(path, TableOptions())
    places = dict(zip(columns, table.wanted(columns), strict=True))
    places |= {name: place for name in more if (place := table.place(name)) is not None}
    for number, values in table.rows:
        where = table.where(number)
        row = {name: as_text(values[place], where, name) for name, place in places.items() if values[place] is not None}
        for name in columns:
            if not row.get(name, "").strip():
                raise DataError(f"{where}: the {name} is empty; remove the line")
            if "\0" in row[name]:
                raise DataError(f"{where}: the {name} has a NUL in it; remove it")
        yield where, row
