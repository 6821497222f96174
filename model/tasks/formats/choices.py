"""Multiple-choice examples: contexts with several endings, one of which is right."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cloze.core import storage
from cloze.core.errors import DataError
from cloze.model.tasks.files import fold_indices, split_file
from cloze.model.tasks.formats.lines import load_json
from cloze.model.tasks.formats.tables import (
    ID,
    LABEL,
    NO_LABEL,
    Table,
    as_text,
    check_ids,
    columns_by_role,
    open_split,
)
from cloze.model.tasks.options import ChoiceOptions

CONTEXT, START = "context", "start"  # column roles in addition to those of texts
FEWEST = 2  # minimum number of endings
GAP = "_"  # replaced by the option in RACE's questions


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Multiple-choice examples in file order.

    Attributes:
        endings: endings of each example, at least two, including a question that precedes them.
        labels: number of the right ending, from 0; None for a split without answers.
        label_names: names of the first, second … ending in the file.
        ids: ids of the examples, if the file has any.
        dropped: number of examples dropped on purpose, by reason.
        where: source for messages.
    """

    contexts: Sequence[str]
    endings: Sequence[Sequence[str]]
    labels: Sequence[int] | None
    label_names: Sequence[str]
    ids: Sequence[str] | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    where: str = ""

    def __len__(self) -> int:
        return len(self.contexts)

    @property
    def labelled(self) -> bool:
        return self.labels is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """Example as in the file."""

    place: str
    context: str
    endings: Sequence[str]
    answer: str | None
    id: str | None = None


def read_choices(path: str, split: str, options: ChoiceOptions, expected_files: str) -> Choices:
    """Read the examples of one split.

    Raises:
        DataError: the file is missing or malformed, a text is empty, an answer unknown, or an id is
            duplicate; the message names file and line.
    """
    rows: list[_Row]
    if options.layout == "race":
        where, dropped = split_file(path, split, options, ("",), expected_files), dict[str, int]()
        rows = list(_passages(where))
    else:
        columns, _ = columns_by_role(options, split)
        needed = [CONTEXT, START] if START in columns else [CONTEXT]
        opened = open_split(path, split, options, needed, expected_files, columns)
        ends = opened.table.indices(options.endings)
        rows = list(
            _rows(opened.table, opened.indices, ends, [str(name) for name in options.endings])
        )
        where, dropped = opened.table.path, dict(opened.table.dropped)
    for row in rows:
        _check(row)
    ids = [row.id for row in rows if row.id is not None]
    check_ids(ids, [row.place for row in rows])
    if options.folds:
        rows = [
            rows[i]
            for i in fold_indices([row.context for row in rows], split, options.folds, options.fold)
        ]
    most = max((len(row.endings) for row in rows), default=0)
    names = options.labels or tuple(str(number) for number in range(most))
    labelled = split in ("train", "dev") or not {row.answer for row in rows} <= {None, "", NO_LABEL}
    return Choices(
        contexts=[row.context for row in rows],
        endings=[row.endings for row in rows],
        labels=[_label(row, names) for row in rows] if labelled else None,
        label_names=names,
        ids=ids if len(ids) == len(rows) else None,
        dropped=dropped,
        where=where,
    )


def _rows(
    table: Table, places: Mapping[str, int], ends: Sequence[int], named: Sequence[str]
) -> Iterator[_Row]:
    """Iterate over the rows of a table; endings are one column each, or lists in one column."""
    for number, values in table.rows:
        where = table.where(number)
        if len(ends) == 1:
            found = values[ends[0]]
            if not isinstance(found, list):
                raise DataError(
                    f"{where}: {named[0]} is not a list of endings; name the columns with --set "
                    f"options.endings=…"
                )
        else:
            found = [values[place] for place in ends]
        text = {role: as_text(values[place], where, role) for role, place in places.items()}
        before = f"{text[START]} " if text.get(START) else ""
        endings = [as_text(ending, where, "ending") for ending in found]
        yield _Row(
            place=where,
            context=text[CONTEXT],
            endings=[before + ending if ending.strip() else "" for ending in endings],
            answer=text.get(LABEL),
            id=text.get(ID),
        )


def _passages(directory: str) -> Iterator[_Row]:
    """Iterate over RACE (Lai et al. 2017): one JSON file per passage.

    The option fills the gap of a question, or follows a question without a gap.
    """
    names = sorted(name for name in storage.list_files(directory) if name.endswith(".txt"))
    if not names:
        raise DataError(f"{directory} has no passages (no file *.txt); use RACE's directory")
    for name in names:
        path = storage.join(directory, name)
        passage = _passage(path)
        answers = passage.get("answers")
        for i, (question, options) in enumerate(
            zip(passage["questions"], passage["options"], strict=True)
        ):
            joined = [
                question.replace(GAP, o) if GAP in question else f"{question} {o}" for o in options
            ]
            yield _Row(
                place=f"{path}, question {i + 1}",
                context=passage["article"],
                endings=[
                    text if option.strip() else ""
                    for text, option in zip(joined, options, strict=True)
                ],
                answer=None if answers is None else answers[i],
                id=f"{passage.get('id', name)}-{i}",
            )


def _passage(path: str) -> dict[str, Any]:
    """Read a passage and check that its parts match."""
    try:
        found = load_json(storage.read_text(path))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} is not JSON in UTF-8 ({error}); correct or remove the file"
        ) from error
    if not isinstance(found, dict) or not isinstance(found.get("article"), str):
        raise DataError(f"{path} has no text 'article'; name RACE's directory")
    parts = [
        found.get(key)
        for key in ("questions", "options", "answers")
        if key != "answers" or key in found
    ]
    if (
        not all(isinstance(part, list) for part in parts)
        or len({len(part) for part in parts if part is not None}) != 1
    ):
        raise DataError(
            f"{path}: questions, options and answers must be lists of equal length; correct "
            f"the file"
        )
    questions, options, *answers = parts
    if not all(_texts(part) for part in (questions, *(options or ()), *answers)):
        raise DataError(
            f"{path}: questions must be texts, and options lists of texts; correct the file"
        )
    return found


def _texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _check(row: _Row) -> None:
    if not row.context.strip():
        raise DataError(f"{row.place}: the context is empty; remove the example")
    if len(row.endings) < FEWEST:
        raise DataError(f"{row.place}: {len(row.endings)} endings; at least two are needed")
    for number, ending in enumerate(row.endings, start=1):
        if not ending.strip():
            raise DataError(
                f"{row.place}: ending {number} is missing; write it, or remove the example"
            )


def _label(row: _Row, names: Sequence[str]) -> int:
    known = names[: len(row.endings)]
    if row.answer not in known:
        raise DataError(
            f"{row.place}: label {row.answer!r} is not one of {', '.join(known)}; correct it, or "
            f"set options.labels"
        )
    return known.index(row.answer)
