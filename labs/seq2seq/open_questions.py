"""Questions without a passage, each with several right answers: files, and scores by SQuAD's rules.

    {"question": …, "answer": [ANSWER, …]}     JSON lines of NQ-open and DrQA's data sets
    QUESTION <tab> ['ANSWER', …]               DPR's .qa.csv

The first answer is learned; every one counts as right. Those of CuratedTrec are patterns.
"""

from __future__ import annotations

import ast
import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from cloze.core.errors import DataError
from cloze.labs.seq2seq.stages import OpenQuestionOptions
from cloze.labs.seq2seq.text_to_text_task import TextTargets, TextToText, Written
from cloze.model.tasks.formats.lines import json_lines, text_lines
from cloze.model.tasks.formats.official import Record
from cloze.model.tasks.metrics import Floats, mean_interval, normalize_answer, question_scores
from cloze.model.tasks.task import Metrics

UNKNOWN: Any = object()  # a question without the field, to be predicted
PATTERN_ONLY = "answer_is_a_pattern"  # reason for dropping a question of the train split
SPECIAL = re.compile(r"[\\^$*+?{}\[\]|()]|(?<!\w)\.|\.(?=[*+?])")
FLAGS = re.IGNORECASE | re.MULTILINE  # of DrQA's regex_match_score


def records(path: str) -> Iterator[Record]:
    """Iterate over questions; columns: question, and answers, a JSON list.

    Raises:
        DataError: a question has no text or no list of answers; the message names file and line.
    """
    found: Iterable[tuple[int, Mapping[str, Any]]] = (
        ((number, _dpr(line)) for number, line in text_lines(path) if line.strip())
        if path.endswith(".csv")
        else json_lines(path)
    )
    for number, entry in found:
        where = f"{path}, line {number}"
        question = entry.get("question")
        answers = entry.get("answer", entry.get("answers", UNKNOWN))
        if not isinstance(question, str) or not (answers is UNKNOWN or _are_texts(answers)):
            raise DataError(
                f"{where} has no question with a list of answers (it has "
                f"{', '.join(entry)}); use a file of NQ-open, DrQA or DPR"
            )
        known = {} if answers is UNKNOWN else {"answers": json.dumps(answers)}
        yield where, {"question": question, **known}


def _are_texts(answers: Any) -> bool:
    return (
        isinstance(answers, list)
        and bool(answers)
        and all(isinstance(a, str) and a.strip() for a in answers)
    )


def _dpr(line: str) -> Mapping[str, Any]:
    question, *answers = next(csv.reader([line], delimiter="\t"))
    try:
        return {"question": question, "answer": ast.literal_eval("\t".join(answers))}
    except (ValueError, SyntaxError):
        return {"question": question, "answer": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions(TextTargets):
    """Questions with all right answers; `targets` are those that are learned."""

    answers: Sequence[Sequence[str]] | None


class OpenQuestions(TextToText):
    """Text-to-text scored by exact match and F1 after SQuAD's normalization, or by patterns."""

    options: OpenQuestionOptions
    metrics: tuple[str, ...] = ("exact_match", "f1")
    own_metrics: ClassVar[tuple[str, ...]] = ("exact_match", "f1")

    def read(self, path: str, split: str, limit_per_class: int | None) -> Questions:
        read = super().read(path, split, limit_per_class)
        fields = {name: getattr(read, name) for name in TextTargets.__dataclass_fields__}
        if read.targets is None:
            return Questions(**fields, answers=None)
        answers: list[list[str]] = list(map(json.loads, read.targets))
        plain = [next(filter(self._is_plain, own), "") for own in answers]
        targets = [text or own[0] for text, own in zip(plain, answers, strict=True)]
        questions = Questions(**{**fields, "targets": targets}, answers=answers)
        # A pattern is nothing to write.
        kept = [number for number, text in enumerate(plain) if text]
        if split != "train" or len(kept) == len(plain):
            return questions
        dropped = Counter(read.dropped) + Counter({PATTERN_ONLY: len(plain) - len(kept)})
        return replace(questions.select(kept, "targets", "answers"), dropped=dict(dropped))

    def _is_plain(self, answer: str) -> bool:
        return not self.options.patterns or SPECIAL.search(answer) is None

    def _by_metric(self, examples: Any, texts: Sequence[str]) -> dict[str, Floats]:
        """Return the scores of each question by metric, float64 [n], in the task's order."""
        exact, f1 = question_scores(texts, examples.answers, unanswerable=False)
        if self.options.patterns:
            matches = [
                any(_matches(text, own) for own in answers)
                for text, answers in zip(texts, examples.answers, strict=True)
            ]
            exact = np.array(matches, dtype=np.float64)
        return {"exact_match": exact, "f1": f1}

    def score(self, examples: TextTargets, predictions: list[Written]) -> Metrics:
        scores = self._by_metric(examples, [own.text for own in predictions])
        return {name: float(scores[name].mean()) for name in self.metrics}

    def baselines(self, examples: TextTargets) -> Metrics:
        """Return the score of always writing the most frequent target."""
        ((most, _),) = Counter(map(normalize_answer, examples.targets or ())).most_common(1)
        scores = self._by_metric(examples, [most] * len(examples))
        return {"majority": float(scores[self.metrics[0]].mean())}

    def detailed_metrics(
        self, examples: TextTargets, predictions: list[Written], *, seed: int, resamples: int
    ) -> dict[str, Any]:
        scores = self._by_metric(examples, [own.text for own in predictions])
        return {
            "interval": {
                name: mean_interval(scores[name], seed, resamples) for name in self.metrics
            }
        }


def _matches(text: str, pattern: str) -> bool:
    """Return whether a text begins with a match; one that is no pattern is compared as text."""
    try:
        return re.match(pattern, text, FLAGS) is not None
    except re.error:
        return normalize_answer(text) == normalize_answer(pattern)
