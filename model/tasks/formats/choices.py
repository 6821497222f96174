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
        source, dropped = split_file(path, split, options, ("",), expected_files), dict[str, int]()
        rows = list(_passages(source))
    else:
        columns, _ = columns_by_role(options, split)
        needed = [CONTEXT, START] if START in columns else [CONTEXT]
        split_table = open_split(path, split, options, needed, expected_files, columns)
        ending_indices = split_table.table.indices(options.endings)
        rows = list(
            _rows(
                split_table.table,
                split_table.indices,
                ending_indices,
                [str(name) for name in options.endings],
            )
        )
        source, dropped = split_table.table.path, dict(split_table.table.dropped)
    for row in rows:
        _check(row)
    check_ids([row.id for row in rows if row.id is not None], [row.place for row in rows])
    if options.folds:
        rows = [
            rows[i]
            for i in fold_indices([row.context for row in rows], split, options.folds, options.fold)
        ]
    ids = [row.id for row in rows if row.id is not None]
    max_endings = max((len(row.endings) for row in rows), default=0)
    label_names = options.labels or tuple(str(number) for number in range(max_endings))
    labelled = split in ("train", "dev") or not {row.answer for row in rows} <= {None, "", NO_LABEL}
    return Choices(
        contexts=[row.context for row in rows],
        endings=[row.endings for row in rows],
        labels=[_label(row, label_names) for row in rows] if labelled else None,
        label_names=label_names,
        ids=ids if len(ids) == len(rows) else None,
        dropped=dropped,
        where=source,
    )


def _rows(
    table: Table, places: Mapping[str, int], ends: Sequence[int], named: Sequence[str]
) -> Iterator[_Row]:
    """Iterate over the rows of a table; endings are one column each, or lists in one column."""
    for number, values in table.rows:
        location = table.where(number)
        if len(ends) == 1:
            ending_values = values[ends[0]]
            if not isinstance(ending_values, list):
                raise DataError(
                    f"{location}: {named[0]} is not a list of endings; name the columns with --set "
                    f"options.endings=…"
                )
        else:
            ending_values = [values[index] for index in ends]
        text = {role: as_text(values[index], location, role) for role, index in places.items()}
        prefix = f"{text[START]} " if text.get(START) else ""
        endings = [as_text(ending, location, "ending") for ending in ending_values]
        yield _Row(
            place=location,
            context=text[CONTEXT],
            endings=[prefix + ending if ending.strip() else "" for ending in endings],
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
            texts = [
                question.replace(GAP, o) if GAP in question else f"{question} {o}" for o in options
            ]
            yield _Row(
                place=f"{path}, question {i + 1}",
                context=passage["article"],
                endings=[
                    text if option.strip() else ""
                    for text, option in zip(texts, options, strict=True)
                ],
                answer=None if answers is None else answers[i],
                id=f"{passage.get('id', name)}-{i}",
            )


def _passage(path: str) -> dict[str, Any]:
    """Read a passage and check that its parts match."""
    try:
        passage = load_json(storage.read_text(path))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} is not JSON in UTF-8 ({error}); correct or remove the file"
        ) from error
    if not isinstance(passage, dict) or not isinstance(passage.get("article"), str):
        raise DataError(f"{path} has no text 'article'; name RACE's directory")
    lists = [
        passage.get(key)
        for key in ("questions", "options", "answers")
        if key != "answers" or key in passage
    ]
    if (
        not all(isinstance(values, list) for values in lists)
        or len({len(values) for values in lists if values is not None}) != 1
    ):
        raise DataError(
            f"{path}: questions, options and answers must be lists of equal length; correct "
            f"the file"
        )
    questions, options, *answers = lists
    if not all(_texts(values) for values in (questions, *(options or ()), *answers)):
        raise DataError(
            f"{path}: questions must be texts, and options lists of texts; correct the file"
        )
    return passage


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
    allowed = names[: len(row.endings)]
    if row.answer not in allowed:
        raise DataError(
            f"{row.place}: label {row.answer!r} is not one of {', '.join(allowed)}; correct it, or "
            f"set options.labels"
        )
    return allowed.index(row.answer)
