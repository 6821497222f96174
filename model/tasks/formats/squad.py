"""Formats of questions on passages: JSON of SQuAD, JSON lines of MRQA.

SQuAD, version 1.1 or 2.0 (Rajpurkar et al. 2016, 2018):

    {"data": [{"title": …, "paragraphs": [{"context": …, "qas": [{"id": …, "question": …,
        "answers": [{"text": …, "answer_start": …}], "is_impossible": …}]}]}]}

An entry of `data` may also be one question with its `context`. `answers` may be an object of lists,
`text` and `answer_start`, as in exported tables. A question without answers is unanswerable, as
in the official scorer of 2.0; a file without any answers is a file to predict.

MRQA (Fisch et al. 2019), `.jsonl` or `.jsonl.gz`, with one passage per line after a header:

    {"context": …, "qas": [{"qid": …, "question": …, "answers": [ALIAS, …],
        "detected_answers": [{"text": …, "char_spans": [[FIRST, LAST], …]}]}]}

Detected answers are trained on; all aliases count in scores.

Tables of the Hub, `.parquet` or `.arrow`, with one question per row, as an entry of SQuAD's `data`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cloze.core.errors import DataError
from cloze.model.tasks.formats.lines import json_lines, read_json
from cloze.model.tasks.formats.table_files import open_table
from cloze.model.tasks.options import TableOptions

# Characters: maximum distance at which a misplaced answer is searched around its answer_start.
NEAR = 100
MISPLACED = "misplaced_answer"  # reason for dropping a question
MRQA = (".jsonl", ".jsonl.gz")
TABLES = (".parquet", ".arrow")


class Answer(NamedTuple):
    """Answer without surrounding blanks, and its start in the passage, in characters."""

    text: str
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SquadExamples:
    """Questions on passages, in file order.

    Attributes:
        ids: distinct ids of the questions.
        passage_of: number of each question's passage.
        answers: reference answers of each question, empty if unanswerable; None for a split without
            answers.
        aliases: texts that count as right, where they differ from `answers`, as in MRQA.
        relocated: number of answers near their answer_start, but not at it, or with another text
            than their span in MRQA's files.
        misplaced: number of answers that were dropped, as they are not near it.
    """

    ids: Sequence[str]
    questions: Sequence[str]
    passages: Sequence[str]
    passage_of: Sequence[int]
    answers: Sequence[tuple[Answer, ...]] | None
    aliases: Sequence[tuple[str, ...]] | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    relocated: int = 0
    misplaced: int = 0
    where: str = ""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def labelled(self) -> bool:
        return self.answers is not None

    def references(self) -> list[list[str]]:
        """Return the texts that count as right for each question, of a split with answers."""
        if self.aliases is not None:
            return [list(texts) for texts in self.aliases]
        return [[answer.text for answer in answers] for answers in self.answers or ()]

    @property
    def answerable(self) -> npt.NDArray[np.bool_]:
        """True at the questions with an answer, bool [n]; the split has answers."""
        assert self.answers is not None
        return np.array([bool(answers) for answers in self.answers], dtype=np.bool_)


def read_squad(path: str, *more: str, unanswerable: bool, drop: bool = False) -> SquadExamples:
    """Read the questions of files in the form of SQuAD, or of MRQA or a table by their names.

    If an answer is not at its `answer_start`, the nearest occurrence is used, at most `NEAR`
    characters away, and counted.

    Args:
        unanswerable: true to keep unanswerable questions; else they are dropped and counted.
        drop: true to drop answers that are not in their passage, and questions that have no other;
            else they are an error.

    Raises:
        DataError: the file is missing or not of SQuAD's form, has no questions or a duplicate id,
            or an answer is not in its passage; the message names file and place.
    """
    passages: list[str] = []
    questions: dict[str, _Question] = {}
    relocated, has_answers = 0, False
    misplaced, dropped = 0, Counter[str]()
    for paragraph, source in chain.from_iterable(map(_paragraphs, (path, *more))):
        context = _field(paragraph, "context", str, source)
        if passages[-1:] != [context]:
            passages.append(context)
        for number, entry in enumerate(_field(paragraph, "qas", list, source), start=1):
            identity = str(_field(entry, "id", (str, int), f"{source}, question {number}"))
            location = f"{path}, question {identity!r}"
            if identity in questions:
                raise DataError(f"{location} occurs twice; use distinct ids")
            text = _field(entry, "question", str, location)
            if not text.strip():
                raise DataError(f"{location}: the question is empty; remove it")
            answers, missing = _answers(entry, context, location, drop)
            has_answers |= bool(answers or missing) or entry.get("is_impossible") is True
            misplaced += missing
            if missing and not answers:
                dropped[MISPLACED] += 1
                continue
            relocated += sum(moved for _, moved in answers or ())
            questions[identity] = _Question(
                text,
                len(passages) - 1,
                None if answers is None else tuple(a for a, _ in answers),
                entry["aliases"] if path.endswith(MRQA) else (),
            )
    if not questions:
        problem = f"only {dropped[MISPLACED]:,} whose answers are not in their passage"
        raise DataError(
            f"{path} has {problem if dropped else 'no questions'}; use a file of SQuAD's form that "
            f"has some"
        )
    answerable = _answered(path, questions, unanswerable) if has_answers else questions
    if without := len(questions) - len(answerable):
        dropped["unanswerable"] = without
    return SquadExamples(
        ids=list(answerable),
        questions=[question.text for question in answerable.values()],
        passages=passages,
        passage_of=[question.passage for question in answerable.values()],
        answers=[question.answers or () for question in answerable.values()]
        if has_answers
        else None,
        aliases=[question.aliases for question in answerable.values()]
        if path.endswith(MRQA)
        else None,
        dropped=dict(dropped),
        relocated=relocated,
        misplaced=misplaced,
        where=path,
    )


class _Question(NamedTuple):
    """Question, number of its passage, its answers (None without the field), and aliases."""

    text: str
    passage: int
    answers: tuple[Answer, ...] | None
    aliases: tuple[str, ...]


def _paragraphs(path: str) -> Iterator[tuple[Any, str]]:
    """Iterate over a file's paragraphs and their place; a lone question is a paragraph too."""
    if path.endswith(MRQA):
        yield from _mrqa_paragraphs(path)
        return
    if path.endswith(TABLES):
        table = open_table(path, TableOptions())
        for source, values in table.rows:
            entry = dict(zip(table.columns, values, strict=True))
            yield {"context": entry.get("context"), "qas": [entry]}, source
        return
    for number, article in enumerate(_field(read_json(path), "data", list, path), start=1):
        source = f"{path}, article {number}"
        if isinstance(article, dict):
            title = article.get("title")
            source += f" ({_short(title)!r})" if isinstance(title, str) else ""
            if "paragraphs" not in article and "context" in article:
                yield {"context": article["context"], "qas": [article]}, source
                continue
        for index, paragraph in enumerate(_field(article, "paragraphs", list, source), start=1):
            yield paragraph, f"{source}, paragraph {index}"


def _mrqa_paragraphs(path: str) -> Iterator[tuple[Any, str]]:
    """Iterate over the passages of an MRQA file as paragraphs of SQuAD, with `aliases`."""
    for number, record in json_lines(path):
        source = f"{path}, line {number}"
        if "header" in record and "context" not in record:
            continue
        context = _field(record, "context", str, source)
        questions = _field(record, "qas", list, source)
        yield (
            {"context": context, "qas": [_mrqa(own, context, source) for own in questions]},
            source,
        )


def _mrqa(entry: Any, context: str, source: str) -> dict[str, Any]:
    """Convert a question of MRQA; texts are the passage's, whose case may differ."""
    identity = _field(entry, "qid", str, source)
    source = f"{source}, question {identity!r}"
    question = {"id": identity, "question": _field(entry, "question", str, source), "aliases": ()}
    if "detected_answers" not in entry:  # to be predicted
        return question
    spans = [
        (span, answer.get("text"))
        for answer in _field(entry, "detected_answers", list, source)
        for span in _field(answer, "char_spans", list, source)
    ]
    for span, _ in spans:
        if not (isinstance(span, list) and [*map(type, span)] == [int, int]) or not (
            0 <= span[0] <= span[1] < len(context)
        ):
            raise DataError(
                f"{source}: the char_span {span} is not [FIRST, LAST] in its passage of "
                f"{len(context)} characters; correct the file"
            )
    answers = [_detected(context, first, last, text) for (first, last), text in spans]
    aliases = tuple(map(str, _field(entry, "answers", list, source)))
    texts = tuple(answer["text"] for answer in answers)
    return {**question, "answers": answers, "aliases": aliases or texts}


def _detected(context: str, first: int, last: int, text: Any) -> dict[str, Any]:
    """Return an answer at a span; the file's own text nearby counts more than its offsets."""
    own = context[first : last + 1]
    answer = {"text": own, "answer_start": first}
    if not isinstance(text, str) or text.lower().split() == own.lower().split():
        return answer
    near = _nearest(context, text, first) if text.strip() else None
    found = {"text": near[0], "answer_start": near.start()} if near else answer
    return {**found, "differs": True}


def _answered(
    path: str, questions: Mapping[str, _Question], unanswerable: bool
) -> Mapping[str, _Question]:
    """Return the questions with answers, and with `unanswerable` those without."""
    for identity, question in questions.items():
        if question.answers is None:
            raise DataError(
                f"{path}, question {identity!r} has no answers, unlike others; add them, or "
                f"is_impossible"
            )
    answerable = {name: own for name, own in questions.items() if own.answers or unanswerable}
    if not answerable:
        raise DataError(
            f"{path} has unanswerable questions only; use the task squad2, or set "
            f"options.unanswerable"
        )
    return answerable


def _answers(
    entry: Mapping[str, Any], context: str, source: str, drop: bool
) -> tuple[list[tuple[Answer, bool]] | None, int]:
    """Return the answers to a question, and the number of dropped ones.

    Each answer has whether it is not at its answer_start. Empty for an impossible question; None
    without the field `answers`.
    """
    impossible = entry.get("is_impossible", False)
    if not isinstance(impossible, bool):
        raise DataError(
            f"{source}: is_impossible ({impossible!r}) must be true or false; correct the file"
        )
    if impossible:
        return [], 0
    if entry.get("answers") is None:
        return None, 0
    answers = _field(entry, "answers", (list, dict), source)
    if isinstance(answers, dict):
        texts, starts = (
            _field(answers, name, list, f"{source}, answers") for name in ("text", "answer_start")
        )
        if len(texts) != len(starts):
            raise DataError(
                f"{source}: {len(texts)} texts of answers and {len(starts)} of answer_start; "
                f"correct the file"
            )
        answers = [
            {"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)
        ]
    found = [
        _answer(answer, context, f"{source}, answer {number}", drop)
        for number, answer in enumerate(answers, start=1)
    ]
    kept = [answer for answer in found if answer is not None]
    return kept, len(found) - len(kept)


def _answer(answer: Any, context: str, source: str, drop: bool) -> tuple[Answer, bool] | None:
    text, start = _field(answer, "text", str, source), _field(answer, "answer_start", int, source)
    if not text.strip():
        raise DataError(f"{source}: the text is empty; remove the answer")
    indent = len(text) - len(text.lstrip())
    if start + indent >= 0 and context.startswith(text.strip(), start + indent):
        return Answer(text.strip(), start + indent), answer.get("differs", False)
    match = _nearest(context, text, start + indent)
    if match is None and drop:
        return None
    if match is None:
        raise DataError(
            f"{source}: {_short(text)!r} is not at answer_start ({start}) in its passage of "
            f"{len(context)} characters, nor within {NEAR} characters of it; correct "
            f"answer_start, or drop such answers with --set options.irregular=drop"
        )
    return Answer(match[0], match.start()), match.start() != start + indent


def counts(examples: SquadExamples) -> dict[str, int]:
    """Count answerable and unanswerable questions; empty if answers are unknown."""
    if examples.answers is None:
        return {}
    counter = Counter("answerable" if answers else "unanswerable" for answers in examples.answers)
    return {name: counter[name] for name in ("answerable", "unanswerable")}


def mended(examples: SquadExamples) -> dict[str, int]:
    """Count the answers beside their answer_start, and the dropped ones, if any."""
    dropped = {"misplaced_answers": examples.misplaced} if examples.misplaced else {}
    return {"mended_answers": examples.relocated, **dropped}


def _field(record: Any, name: str, kind: type | tuple[type, ...], source: str) -> Any:
    """Return a field of a JSON object, checked to have the type `kind`."""
    if not isinstance(record, dict):
        raise DataError(
            f"{source} is {type(record).__name__} where SQuAD's form has an object; name a file of "
            f"that form"
        )
    if name not in record:
        raise DataError(
            f"{source} has no {name!r} (it has {', '.join(map(str, record)) or 'nothing'}); it "
            f"must be of SQuAD's form"
        )
    value = record[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise DataError(
            f"{source}: {name} is {type(value).__name__} and must be {expected}; correct the file"
        )
    return value


def _nearest(context: str, text: str, start: int) -> re.Match[str] | None:
    """Return the nearest occurrence of `text` to `start`, the earlier one on a tie.

    The passage may have other white space between the words, as in run_squad.py.
    """
    pattern = re.compile(r"\s+".join(map(re.escape, text.split())))
    window = range(max(start - NEAR, 0), min(start + NEAR, len(context)) + 1)
    matches = (match for place in window if (match := pattern.match(context, place)))
    return min(matches, key=lambda match: abs(match.start() - start), default=None)


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "…"
