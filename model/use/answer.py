"""The command answer: extractive question answering.

A request has `question` and `passage`; the answers are ranked spans of the passage or "no answer".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cloze.core.errors import UsageError
from cloze.model.tasks.formats.squad import SquadExamples
from cloze.model.tasks.kinds.spans import QuestionPredictions, Spans
from cloze.model.use.configs import AnswerConfig
from cloze.model.use.requests import Request
from cloze.model.use.tuned import FinetunedModel
from cloze.model.use.verb import Verb

Answer = dict[
    str, Any
]  # {"answer": str, "score": probability, "start": int, "end": int}, see `answer_batch`


class QuestionAnsweringPipeline:
    """Question-answering checkpoint in memory.

    Raises:
        UsageError: the checkpoint was not fine-tuned, or its task is no question answering.
        DataError: the checkpoint is missing or damaged.
    """

    def __init__(self, path: str) -> None:
        self._tuned = FinetunedModel(path)
        task = self._tuned.task
        if not isinstance(task, Spans):
            raise UsageError(
                f"task {task.name} of {path} answers no questions; name a checkpoint of a task "
                f"such as squad"
            )
        self._threshold = (
            (task.span_options.null_threshold or 0.0) if task.span_options.unanswerable else None
        )

    @property
    def truncated(self) -> int:
        """Number of questions truncated to the maximum question length since loading."""
        return self._tuned.truncated

    def answer(self, question: str, passage: str, top_k: int = 5) -> list[Answer]:
        """Return the best answers to one question, see `answer_batch`."""
        return self.answer_batch([(question, passage)], top_k)[0]

    def answer_batch(self, asked: Sequence[tuple[str, str]], top_k: int = 5) -> list[list[Answer]]:
        """Return the best answers to each question, most probable first.

        Args:
            asked: pairs (question, passage); passages may have any length, equal ones are read
                once.
            top_k: number of answers, at least 1; "no answer" is appended if it is not among them.

        Returns:
            For each question dicts of "answer": the text; "score": its probability among the
            answers that were kept; "start" and "end": its characters in the passage, end exclusive.
            "No answer" is {"answer": "", "score": …, "start": None, "end": None}; only models
            trained on unanswerable questions give it, or any model for a passage without words. It
            is first exactly if its score passes the model's threshold.

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
        examples = SquadExamples(
            ids=[str(number) for number in range(len(asked))],
            questions=[question for question, _ in asked],
            passages=passages,
            passage_of=[places[passage] for _, passage in asked],
            answers=None,
        )
        return [self._told(found, top_k) for found in self._tuned.predictions(examples)]

    def _told(self, found: QuestionPredictions, top_k: int) -> list[Answer]:
        return [
            {"answer": "", "score": score, "start": None, "end": None}
            if span is None
            else {"answer": span.text, "score": score, "start": span.begin, "end": span.end}
            for place, (span, score) in enumerate(found.ranked(self._threshold))
            if place < top_k or span is None
        ]


class AnswerPredictor(Verb[tuple[str, str]]):
    """Predictor of answer: the best answer of each request, and all answers in `predictions`."""

    def __init__(self, checkpoint: str, config: AnswerConfig) -> None:
        self._answerer, self._top_k = QuestionAnsweringPipeline(checkpoint), config.top_k

    def read(self, request: Request) -> tuple[str, str]:
        asked = request.text("question"), request.text("passage")
        for name, text in zip(("question", "passage"), asked, strict=True):
            if not text.strip():
                raise request.error(f"has an empty {name!r}; write something")
        return asked

    def answer(self, group: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        return [
            {**ranked[0], "predictions": ranked}
            for ranked in self._answerer.answer_batch(group, self._top_k)
        ]

    def finish(self) -> dict[str, Any]:
        return {"truncated": self._answerer.truncated}
