"""JSON format of SQuAD, version 1.1 or 2.0 (Rajpurkar et al. 2016, 2018).

    {"data": [{"title": …, "paragraphs": [{"context": …, "qas": [{"id": …, "question": …,
        "answers": [{"text": …, "answer_start": …}], "is_impossible": …}]}]}]}

An entry of `data` may also be one question with its `context`. `answers` may be an object of lists,
`text` and `answer_start`, as in exported tables. A question without answers is unanswerable, as
in the official scorer of 2.0; a file without any answers is a file to predict.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cloze.core import storage
from cloze.core.errors import DataError
from cloze.model.tasks.formats.lines import load_json

# Characters: maximum distance at which a misplaced answer is searched around its answer_start.
NEAR = 100


class Answer(NamedTuple):
    """Answer without surrounding blanks, and its start in the passage, in characters."""

    text: str
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SquadExamples:
    """Questions on passages, in file order.

    Attributes:
        ids: distinct ids of the questions.
        passages: texts of the passages.
        passage_of: number of each question's passage.
        answers: reference answers of each question, empty if unanswerable; None for a split without
            answers.
        dropped: number of questions dropped on purpose, by reason.
        relocated: number of answers near their answer_start, but not at it.
        where: source for messages.
    """

    ids: Sequence[str]
    questions: Sequence[str]
    passages: Sequence[str]
    passage_of: Sequence[int]
    answers: Sequence[tuple[Answer, ...]] | None
    dropped: Mapping[str, int] = field(default_factory=dict)
    relocated: int = 0
    where: str = ""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def labelled(self) -> bool:
        return self.answers is not None


def read_squad(path: str, *, unanswerable: bool) -> SquadExamples:
    """Read the questions of a file.

    If an answer is not at its `answer_start`, the nearest occurrence is used, at most `NEAR`
    characters away, and counted.

    Args:
        unanswerable: true to keep unanswerable questions; else they are dropped and counted.

    Raises:
        DataError: the file is missing or not of SQuAD's form, has no questions or a duplicate id,
            or an answer is not in its passage; the message names file and place.
    """
    reader = _Reader(path)
    for number, article in enumerate(_field(_parsed(path), "data", list, path)):
        location = f"{path}, article {_title(article, number)}"
        if isinstance(article, dict) and "paragraphs" not in article and "context" in article:
            reader.paragraph({"context": article["context"], "qas": [article]}, location)
            continue
        for paragraph_number, paragraph in enumerate(
            _field(article, "paragraphs", list, location), start=1
        ):
            reader.paragraph(paragraph, f"{location}, paragraph {paragraph_number}")
    return reader.found(unanswerable)


class _Reader:
    """State of reading a file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._passages: list[str] = []
        self._ids: dict[str, None] = {}
        self._questions: list[str] = []
        self._passage_of: list[int] = []
        self._answers: list[tuple[Answer, ...] | None] = []  # None: no field `answers`
        self._said = False  # True if any question has answers or is marked impossible
        self._relocated = 0

    def paragraph(self, paragraph: Any, place: str) -> None:
        context = _field(paragraph, "context", str, place)
        if not self._passages or self._passages[-1] != context:
            self._passages.append(context)
        for number, entry in enumerate(_field(paragraph, "qas", list, place), start=1):
            identity = _field(entry, "id", (str, int), f"{place}, question {number}")
            location = f"{self._path}, question {str(identity)!r}"
            if str(identity) in self._ids:
                raise DataError(f"{location} occurs twice; use distinct ids")
            question = _field(entry, "question", str, location)
            if not question.strip():
                raise DataError(f"{location}: the question is empty; remove it")
            self._ids[str(identity)] = None
            self._questions.append(question)
            self._passage_of.append(len(self._passages) - 1)
            self._answers.append(self._answers_to(entry, context, location))

    def _answers_to(
        self, asked: Mapping[str, Any], context: str, place: str
    ) -> tuple[Answer, ...] | None:
        impossible = asked.get("is_impossible", False)
        if not isinstance(impossible, bool):
            raise DataError(
                f"{place}: is_impossible ({impossible!r}) must be true or false; correct the file"
            )
        if impossible:
            self._said = True
            return ()
        if asked.get("answers") is None:
            return None
        answers = [
            self._answer(answer, context, f"{place}, answer {number}")
            for number, answer in enumerate(_listed(asked, place), start=1)
        ]
        self._said = self._said or bool(answers)
        return tuple(answers)

    def _answer(self, answer: Any, context: str, place: str) -> Answer:
        text, start = _field(answer, "text", str, place), _field(answer, "answer_start", int, place)
        if not text.strip():
            raise DataError(f"{place}: the text is empty; remove the answer")
        actual_start = _nearest(context, text, start)
        if actual_start is None:
            raise DataError(
                f"{place}: {_short(text)!r} is not at answer_start ({start}) in its "
                f"passage of {len(context)} characters, nor within {NEAR} characters of it; "
                f"correct answer_start"
            )
        self._relocated += actual_start != start
        return Answer(text.strip(), actual_start + len(text) - len(text.lstrip()))

    def found(self, unanswerable: bool) -> SquadExamples:
        if not self._ids:
            raise DataError(
                f"{self._path} has no questions; use a file of SQuAD's form that has some"
            )
        ids, answers = list(self._ids), self._answers
        if not self._said:
            return self._of(range(len(ids)), None, {})
        for identity, references in zip(ids, answers, strict=True):
            if references is None:
                raise DataError(
                    f"{self._path}, question {identity!r} has no answers, unlike others; add them, "
                    f"or is_impossible"
                )
        indices = [i for i, references in enumerate(answers) if references or unanswerable]
        if not indices:
            raise DataError(
                f"{self._path} has unanswerable questions only; use the task squad2, or set "
                f"options.unanswerable"
            )
        dropped = len(ids) - len(indices)
        return self._of(
            indices,
            [answers[i] or () for i in indices],
            {"unanswerable": dropped} if dropped else {},
        )

    def _of(
        self,
        chosen: Sequence[int],
        answers: list[tuple[Answer, ...]] | None,
        dropped: dict[str, int],
    ) -> SquadExamples:
        ids = list(self._ids)
        return SquadExamples(
            ids=[ids[i] for i in chosen],
            questions=[self._questions[i] for i in chosen],
            passages=self._passages,
            passage_of=[self._passage_of[i] for i in chosen],
            answers=answers,
            dropped=dropped,
            relocated=self._relocated,
            where=self._path,
        )


def counts(examples: SquadExamples) -> dict[str, int]:
    """Count answerable and unanswerable questions; empty if answers are unknown."""
    if examples.answers is None:
        return {}
    counter = Counter("answerable" if answers else "unanswerable" for answers in examples.answers)
    return {name: counter[name] for name in ("answerable", "unanswerable")}


def _parsed(path: str) -> Any:
    with storage.open_input(path) as handle:
        content = handle.read().removeprefix(b"\xef\xbb\xbf")
    if not content.strip():
        raise DataError(f"{path} is empty; it must hold questions in SQuAD's JSON")
    try:
        return load_json(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: byte {error.start + 1} is not UTF-8; convert the file to UTF-8"
        ) from error
    except json.JSONDecodeError as error:
        end = " (it ends too early)" if not content.decode("utf-8")[error.pos :].strip() else ""
        raise DataError(
            f"{path}, line {error.lineno}, column {error.colno} is no JSON: {error.msg}{end}; name "
            f"a whole file of SQuAD's form"
        ) from error


def _field(record: Any, name: str, kind: type | tuple[type, ...], place: str) -> Any:
    """Return a field of a JSON object, checked to have the type `kind`."""
    if not isinstance(record, dict):
        raise DataError(
            f"{place} is {type(record).__name__} where SQuAD's form has an object; name a file of "
            f"that form"
        )
    if name not in record:
        raise DataError(
            f"{place} has no {name!r} (it has {', '.join(map(str, record)) or 'nothing'}); it must "
            f"be of SQuAD's form"
        )
    value = record[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise DataError(
            f"{place}: {name} is {type(value).__name__} and must be {expected}; correct the file"
        )
    return value


def _listed(asked: Mapping[str, Any], place: str) -> list[Any]:
    """Return the answers, one object each."""
    answers = _field(asked, "answers", (list, dict), place)
    if isinstance(answers, list):
        return answers
    texts, starts = (
        _field(answers, name, list, f"{place}, answers") for name in ("text", "answer_start")
    )
    if len(texts) != len(starts):
        raise DataError(
            f"{place}: {len(texts)} texts of answers and {len(starts)} of answer_start; correct "
            f"the file"
        )
    return [
        {"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)
    ]


def _title(article: Any, number: int) -> str:
    title = article.get("title") if isinstance(article, dict) else None
    return f"{number + 1} ({_short(title)!r})" if isinstance(title, str) else str(number + 1)


def _nearest(context: str, text: str, start: int) -> int | None:
    """Return the start of `text`: `start`, or the nearest occurrence, the earlier one on a tie."""
    if start >= 0 and context.startswith(text, start):
        return start
    window_start = max(start - NEAR, 0)
    window = context[window_start : max(start + NEAR + len(text), 0)]
    matches, position = [], window.find(text)
    while position >= 0:
        matches.append(window_start + position)
        position = window.find(text, position + 1)
    return min(matches, key=lambda place: (abs(place - start), place), default=None)


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "…"
