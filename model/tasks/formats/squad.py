"""SQuAD's JSON, version 1.1 or 2.0 (Rajpurkar et al. 2016, 2018): articles of paragraphs of questions, with answers where they are known.

    {"data": [{"title": …, "paragraphs": [{"context": …, "qas": [
        {"id": …, "question": …, "answers": [{"text": …, "answer_start": …}], "is_impossible": …}]}]}]}

Each entry of `data` may also be one question with its `context`, and `answers` an object of lists, `text` and `answer_start`, as programs
write it that keep the set in a table. A question without answers has none in its passage, as the official scorer of 2.0 takes it; a file
in which nothing is said of any answer is one to predict.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from model.tasks.formats.json_text import load_json
from pipeline.core import storage
from pipeline.core.errors import DataError

NEAR = 100  # characters: an answer that does not stand at its answer_start is looked for as far as that from it


class Answer(NamedTuple):
    """An answer and where it begins in its passage, in characters; without blanks around it."""

    text: str
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """Questions on passages, in the order of their file.

    Attributes:
        ids: of the questions, each once.
        passages: the texts; `passage_of` says on which of them a question is.
        answers: of each question, as people gave them, none where it has none; None for a split without answers.
        dropped: how many questions were left out on purpose, by reason.
        mended: how many answers did not stand at their answer_start, but near it.
        where: what was read, for messages.
    """

    ids: Sequence[str]
    questions: Sequence[str]
    passages: Sequence[str]
    passage_of: Sequence[int]
    answers: Sequence[tuple[Answer, ...]] | None
    dropped: Mapping[str, int] = field(default_factory=dict)
    mended: int = 0
    where: str = ""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def labelled(self) -> bool:
        return self.answers is not None


def read_squad(path: str, *, unanswerable: bool) -> Questions:
    """The questions of one file.

    An answer that does not stand at its `answer_start` is taken from its nearest occurrence, at most `NEAR` characters away, and counted.

    Args:
        unanswerable: keep questions that have no answer; else they are left out and counted.

    Raises:
        DataError: the file is missing, no UTF-8, no JSON or not of SQuAD's form, two questions have one id, an answer does not stand
            in its passage, or there is nothing to ask; the message names the file and the place in it.
    """
    reader = _Reader(path)
    for number, article in enumerate(_field(_parsed(path), "data", list, path)):
        place = f"{path}, article {_title(article, number)}"
        if isinstance(article, dict) and "paragraphs" not in article and "context" in article:
            reader.paragraph({"context": article["context"], "qas": [article]}, place)
            continue
        for count, paragraph in enumerate(_field(article, "paragraphs", list, place), start=1):
            reader.paragraph(paragraph, f"{place}, paragraph {count}")
    return reader.found(unanswerable)


class _Reader:
    """What was read so far."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._passages: list[str] = []
        self._ids: dict[str, None] = {}
        self._questions: list[str] = []
        self._passage_of: list[int] = []
        self._answers: list[tuple[Answer, ...] | None] = []  # None: nothing is said of them
        self._said = False  # whether any question has answers, or is said to have none
        self._mended = 0

    def paragraph(self, paragraph: Any, place: str) -> None:
        context = _field(paragraph, "context", str, place)
        if not self._passages or self._passages[-1] != context:
            self._passages.append(context)
        for number, asked in enumerate(_field(paragraph, "qas", list, place), start=1):
            identity = _field(asked, "id", (str, int), f"{place}, question {number}")
            place_of_it = f"{self._path}, question {str(identity)!r}"
            if str(identity) in self._ids:
                raise DataError(f"{place_of_it} stands there twice; give every question an id of its own")
            question = _field(asked, "question", str, place_of_it)
            if not question.strip():
                raise DataError(f"{place_of_it}: the question is empty; remove it")
            self._ids[str(identity)] = None
            self._questions.append(question)
            self._passage_of.append(len(self._passages) - 1)
            self._answers.append(self._answers_to(asked, context, place_of_it))

    def _answers_to(self, asked: Mapping[str, Any], context: str, place: str) -> tuple[Answer, ...] | None:
        impossible = asked.get("is_impossible", False)
        if not isinstance(impossible, bool):
            raise DataError(f"{place}: is_impossible ({impossible!r}) must be true or false; mend the file")
        if impossible:
            self._said = True
            return ()
        if asked.get("answers") is None:
            return None
        given = [
            self._answer(answer, context, f"{place}, answer {number}")
            for number, answer in enumerate(_listed(asked, place), start=1)
        ]
        self._said = self._said or bool(given)
        return tuple(given)

    def _answer(self, answer: Any, context: str, place: str) -> Answer:
        text, start = _field(answer, "text", str, place), _field(answer, "answer_start", int, place)
        if not text.strip():
            raise DataError(f"{place}: the text is empty; remove the answer")
        at = _nearest(context, text, start)
        if at is None:
            raise DataError(
                f"{place}: {_short(text)!r} does not stand at answer_start ({start}) in its passage of {len(context)} characters,"
                f" nor within {NEAR} characters of it; mend answer_start"
            )
        self._mended += at != start
        return Answer(text.strip(), at + len(text) - len(text.lstrip()))

    def found(self, unanswerable: bool) -> Questions:
        if not self._ids:
            raise DataError(f"{self._path} holds no questions; name a file of SQuAD's form that has some")
        ids, answers = list(self._ids), self._answers
        if not self._said:
            return self._of(range(len(ids)), None, {})
        for identity, known in zip(ids, answers, strict=True):
            if known is None:
                raise DataError(
                    f"{self._path}, question {identity!r} has no answers, unlike others; add them, or is_impossible"
                )
        chosen = [i for i, known in enumerate(answers) if known or unanswerable]
        if not chosen:
            raise DataError(f"{self._path} holds unanswerable questions only; use the task squad2, or set options.unanswerable")
        left_out = len(ids) - len(chosen)
        return self._of(chosen, [answers[i] or () for i in chosen], {"unanswerable": left_out} if left_out else {})

    def _of(self, chosen: Sequence[int], answers: list[tuple[Answer, ...]] | None, dropped: dict[str, int]) -> Questions:
        ids = list(self._ids)
        return Questions(
            ids=[ids[i] for i in chosen],
            questions=[self._questions[i] for i in chosen],
            passages=self._passages,
            passage_of=[self._passage_of[i] for i in chosen],
            answers=answers,
            dropped=dropped,
            mended=self._mended,
            where=self._path,
        )


def counts(examples: Questions) -> dict[str, int]:
    """How many questions have an answer and how many have none; empty where that is not known."""
    if examples.answers is None:
        return {}
    found = Counter("answerable" if answers else "unanswerable" for answers in examples.answers)
    return {name: found[name] for name in ("answerable", "unanswerable")}


def _parsed(path: str) -> Any:
    with storage.open_input(path) as handle:
        content = handle.read().removeprefix(b"\xef\xbb\xbf")
    if not content.strip():
        raise DataError(f"{path} is empty; it must hold questions in SQuAD's JSON")
    try:
        return load_json(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start + 1} is not UTF-8; convert the file to UTF-8") from error
    except json.JSONDecodeError as error:
        end = " (it ends too early)" if not content.decode("utf-8")[error.pos :].strip() else ""
        raise DataError(
            f"{path}, line {error.lineno}, column {error.colno} is no JSON: {error.msg}{end}; name a whole file of SQuAD's form"
        ) from error


def _field(record: Any, name: str, kind: type | tuple[type, ...], place: str) -> Any:
    """A field of a JSON object, of that type."""
    if not isinstance(record, dict):
        raise DataError(f"{place} is {type(record).__name__} where SQuAD's form has an object; name a file of that form")
    if name not in record:
        raise DataError(
            f"{place} has no {name!r} (it has {', '.join(map(str, record)) or 'nothing'}); it must be of SQuAD's form"
        )
    value = record[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
        raise DataError(f"{place}: {name} is {type(value).__name__} and must be {wanted}; mend the file")
    return value


def _listed(asked: Mapping[str, Any], place: str) -> list[Any]:
    """The answers, an object each."""
    given = _field(asked, "answers", (list, dict), place)
    if isinstance(given, list):
        return given
    texts, starts = (_field(given, name, list, f"{place}, answers") for name in ("text", "answer_start"))
    if len(texts) != len(starts):
        raise DataError(f"{place}: {len(texts)} texts of answers and {len(starts)} of answer_start; mend the file")
    return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]


def _title(article: Any, number: int) -> str:
    title = article.get("title") if isinstance(article, dict) else None
    return f"{number + 1} ({_short(title)!r})" if isinstance(title, str) else str(number + 1)


def _nearest(context: str, text: str, start: int) -> int | None:
    """Where `text` begins: at `start`, or at its occurrence that is nearest to it, the earlier of two."""
    if start >= 0 and context.startswith(text, start):
        return start
    low = max(start - NEAR, 0)
    window = context[low : max(start + NEAR + len(text), 0)]
    found, at = [], window.find(text)
    while at >= 0:
        found.append(low + at)
        at = window.find(text, at + 1)
    return min(found, key=lambda place: (abs(place - start), place), default=None)


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "…"
