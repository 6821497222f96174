"""What the verb answer does, once torch is there: questions and passages in; ranked answers, parts of the passage or "no answer", out.

A request has `question` and `passage`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from model.tasks.formats.squad import Questions
from model.tasks.kinds.spans.decode import Found
from model.tasks.kinds.spans.kind import Spans
from model.use.answer_stage import AnswerConfig
from model.use.requests import Request
from model.use.serve import Verb
from model.use.tuned import Tuned
from pipeline.core.errors import UsageError

Answer = dict[str, Any]  # {"answer": str, "score": probability, "start": int, "end": int}, see `Answerer.answer_batch`


class Answerer:
    """A checkpoint that answers questions, in memory.

    Raises:
        UsageError: the checkpoint was not fine-tuned, or its task answers no questions.
        DataError: there is no checkpoint at that path, or it is damaged.
    """

    def __init__(self, path: str) -> None:
        self._tuned = Tuned(path)
        task = self._tuned.task
        if not isinstance(task, Spans):
            raise UsageError(f"task {task.name} of {path} answers no questions; name a checkpoint of a task such as squad")
        self._threshold = (task.span_options.null_threshold or 0.0) if task.span_options.unanswerable else None

    @property
    def truncated(self) -> int:
        """How many questions lost pieces to the greatest length of a question, since it was loaded."""
        return self._tuned.truncated

    def answer(self, question: str, passage: str, top_k: int = 5) -> list[Answer]:
        """The best answers to one question, see `answer_batch`."""
        return self.answer_batch([(question, passage)], top_k)[0]

    def answer_batch(self, asked: Sequence[tuple[str, str]], top_k: int = 5) -> list[list[Answer]]:
        """The best answers to each question in its passage, which may be of any length; the likeliest first.

        Args:
            asked: questions with their passages. Passages that are equal are read once.
            top_k: how many answers, at least 1; "no answer" comes after them where it is not among them.

        Returns:
            Of each question {"answer": the text, "score": its probability among the answers that were kept, "start", "end": its
            characters in the passage, from and to}. A model that was trained on questions without answers also gives "no answer":
            {"answer": "", "score": …, "start": None, "end": None}, which comes first exactly where the model says that the
            passage does not answer the question, by its threshold. Any model says so where the passage holds no words.

        Raises:
            UsageError: a question is empty.
        """
        if not asked:
            return []
        for number, (question, _) in enumerate(asked, start=1):
            if not question.strip():
                raise UsageError(f"question {number} is empty; write one")
        passages = list(dict.fromkeys(passage for _, passage in asked))
        places = {passage: number for number, passage in enumerate(passages)}
        examples = Questions(
            ids=[str(number) for number in range(len(asked))],
            questions=[question for question, _ in asked],
            passages=passages,
            passage_of=[places[passage] for _, passage in asked],
            answers=None,
        )
        return [self._told(found, top_k) for found in self._tuned.predictions(examples)]

    def _told(self, found: Found, top_k: int) -> list[Answer]:
        return [
            {"answer": "", "score": score, "start": None, "end": None}
            if span is None
            else {"answer": span.text, "score": score, "start": span.begin, "end": span.end}
            for place, (span, score) in enumerate(found.ranked(self._threshold))
            if place < top_k or span is None
        ]


class Answers(Verb[tuple[str, str]]):
    """The verb: of each request the best answer, and all of them ranked in `predictions`."""

    def __init__(self, checkpoint: str, config: AnswerConfig) -> None:
        self._answerer, self._top_k = Answerer(checkpoint), config.top_k

    def read(self, request: Request) -> tuple[str, str]:
        asked = request.text("question"), request.text("passage")
        for name, text in zip(("question", "passage"), asked, strict=True):
            if not text.strip():
                raise request.fault(f"has an empty {name!r}; write something")
        return asked

    def answer(self, group: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        return [{**ranked[0], "predictions": ranked} for ranked in self._answerer.answer_batch(group, self._top_k)]

    def finish(self) -> dict[str, Any]:
        return {"truncated": self._answerer.truncated}
