"""Multiple-choice examples: contexts with several endings, one of which is right."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cloze.core import storage
from cloze.core.errors import DataError
from cloze.model.tasks.files import fold_indices, split_file
from cloze.model.tasks.formats.lines import json_lines, read_json
from cloze.model.tasks.formats.table_files import as_text
from cloze.model.tasks.formats.tables import (
    ID,
    LABEL,
    MUST_LABEL,
    NO_LABEL,
    SplitTable,
    check_ids,
    open_split,
)
from cloze.model.tasks.options import ChoiceOptions

CONTEXT, START = "context", "start"  # column roles in addition to those of texts
FEWEST = 2  # minimum number of endings
GAP = re.compile("_+")  # replaced by the option in RACE's questions


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Multiple-choice examples in file order.

    Attributes:
        endings: endings of each example, at least two, including a question that precedes them.
        labels: number of the right ending, from 0; None for a split without answers.
        label_names: names of the first, second … ending in the file.
        ids: ids of the examples, if the file has any.
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

    location: str
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
    dropped: Mapping[str, int] = {}
    if options.layout == "race":
        source = split_file(path, split, options, ("",), expected_files)
        rows = list(_passages(source))
    elif options.layout == "wsc":
        source = split_file(path, split, options, (".jsonl",), expected_files)
        rows, dropped = _pronouns(source)
    else:
        split_table = open_split(path, split, options, CONTEXT, START, expected_files)
        rows = list(_rows(split_table, options.endings))
        source, dropped = split_table.table.path, dict(split_table.table.dropped)
    for row in rows:
        _check(row)
    check_ids([row.id for row in rows if row.id is not None], [row.location for row in rows])
    if options.folds and split in MUST_LABEL:
        rows = [
            rows[i]
            for i in fold_indices([row.context for row in rows], split, options.folds, options.fold)
        ]
    ids = [row.id for row in rows if row.id is not None]
    max_endings = max((len(row.endings) for row in rows), default=0)
    label_names = options.labels or tuple(str(number) for number in range(max_endings))
    labelled = split in MUST_LABEL or not {row.answer for row in rows} <= {None, "", NO_LABEL}
    return Choices(
        contexts=[row.context for row in rows],
        endings=[row.endings for row in rows],
        labels=[_label(row, label_names) for row in rows] if labelled else None,
        label_names=label_names,
        ids=ids if len(ids) == len(rows) else None,
        dropped=dropped,
        where=source,
    )


def _rows(split_table: SplitTable, endings: Sequence[str | int]) -> Iterator[_Row]:
    """Iterate over the rows of a table; endings are one column each, or lists in one column."""
    indices = split_table.table.indices(endings)
    for location, texts, values in split_table.rows():
        cells = [values[index] for index in indices]
        if len(indices) == 1:
            if not isinstance(cells[0], list):
                raise DataError(
                    f"{location}: {endings[0]} is not a list of endings; name the columns with "
                    f"--set options.endings=…"
                )
            cells = cells[0]
        prefix = f"{texts[START]} " if texts.get(START) else ""
        own_endings = [as_text(cell, location, "ending") for cell in cells]
        yield _Row(
            location=location,
            context=texts[CONTEXT],
            endings=[prefix + ending if ending.strip() else "" for ending in own_endings],
            answer=texts.get(LABEL),
            id=texts.get(ID),
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
            parts = GAP.split(question if GAP.search(question) else f"{question} _")
            yield _Row(
                location=f"{path}, question {i + 1}",
                context=passage["article"],
                endings=[o.join(parts) if o.strip() else "" for o in options],
                answer=None if answers is None else answers[i],
                id=f"{passage.get('id', name)}-{i}",
            )


def _passage(path: str) -> dict[str, Any]:
    """Read a passage and check that its parts match."""
    passage = read_json(path)
    if not isinstance(passage, dict) or not isinstance(passage.get("article"), str):
        raise DataError(f"{path} has no text 'article'; name RACE's directory")
    keys = ("questions", "options", *(("answers",) if "answers" in passage else ()))
    lists: list[Any] = [passage.get(key) for key in keys]
    if not all(isinstance(values, list) for values in lists) or len(set(map(len, lists))) != 1:
        raise DataError(
            f"{path}: questions, options and answers must be lists of equal length; correct "
            f"the file"
        )
    questions, options, *answers = lists
    if not all(_texts(values) for values in (questions, *options, *answers)):
        raise DataError(
            f"{path}: questions must be texts, and options lists of texts; correct the file"
        )
    return passage


def _pronouns(path: str) -> tuple[list[_Row], dict[str, int]]:
    """Read SuperGLUE's WSC: one row per candidate for a pronoun, true or false.

    An example has all candidates of the file for one pronoun; the endings are the text with each of
    them in place of the pronoun. Pronouns without a choice, without a right candidate, or beside
    their index, are dropped and counted.
    """
    groups: dict[tuple[str, int], list[tuple[str, str, str | None]]] = {}
    rows, dropped = [], Counter[str]()
    for number, row in json_lines(path):
        location = f"{path}, line {number}"
        try:
            text, target = row["text"], row["target"]
            place, pronoun, candidate = (
                target[key] for key in ("span2_index", "span2_text", "span1_text")
            )
            words = text.split()
            if place < 0 or pronoun not in words[place]:
                dropped["pronoun_elsewhere"] += 1
                continue
            words[place] = words[place].replace(pronoun, candidate, 1)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise DataError(
                f"{location}: not an example of SuperGLUE's WSC ({error}); use its file"
            ) from error
        answer = None if "label" not in row else as_text(row["label"], location, LABEL)
        groups.setdefault((text, place), []).append((location, " ".join(words), answer))
    for (text, _), candidates in groups.items():
        locations, endings, answers = zip(*candidates, strict=True)
        if len(candidates) < FEWEST:
            dropped["one_candidate"] += 1
        elif None not in answers and answers.count("true") != 1:
            dropped["not_one_right_candidate"] += 1
        else:
            answer = None if None in answers else str(answers.index("true"))
            rows.append(_Row(location=locations[0], context=text, endings=endings, answer=answer))
    return rows, dropped


def _texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _check(row: _Row) -> None:
    if not row.context.strip():
        raise DataError(f"{row.location}: the context is empty; remove the example")
    if len(row.endings) < FEWEST:
        raise DataError(f"{row.location}: {len(row.endings)} endings; at least two are needed")
    for number, ending in enumerate(row.endings, start=1):
        if not ending.strip():
            raise DataError(
                f"{row.location}: ending {number} is missing; write it, or remove the example"
            )


def _label(row: _Row, names: Sequence[str]) -> int:
    allowed = names[: len(row.endings)]
    if row.answer not in allowed:
        raise DataError(
            f"{row.location}: label {row.answer!r} is not one of {', '.join(allowed)}; correct it, "
            f"or set options.labels"
        )
    return allowed.index(row.answer)
