"""Question-answering checkpoints, and the command answer.

A request has `question` and `passage`. The answers are ranked spans of the passage or "no answer".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from cloze.core.errors import UsageError
from cloze.labs.serving.verbs import AnswerConfig
from cloze.model.tasks.formats.squad import SquadExamples
from cloze.model.tasks.kinds.spans import Spans
from cloze.model.tasks.predict import FinetunedModel
from cloze.model.tasks.task import Split
from cloze.model.train.precision import Placement, placement
from cloze.model.use.request import Request
from cloze.model.use.verb import Verb

if TYPE_CHECKING:
    from typing_extensions import Unpack

# {"answer": str, "score": probability, "start": int, "end": int}, see `answer_batch`.
Answer = dict[str, Any]


class QuestionAnsweringPipeline(FinetunedModel):
    """Question-answering checkpoint in memory.

    Raises:
        UsageError: the checkpoint was not fine-tuned, or its task is no question answering.
        DataError: the checkpoint is missing or damaged.
    """

    def __init__(self, path: str, **placement: Unpack[Placement]) -> None:
        super().__init__(path, **placement)
        if not isinstance(self.task, Spans):
            raise UsageError(
                f"task {self.task.name} of {path} answers no questions; name a checkpoint of a "
                f"task such as squad"
            )
        options = self.task.options
        self._threshold = (options.null_threshold or 0.0) if options.unanswerable else None

    def answer(self, question: str, passage: str, top_k: int = 5) -> list[Answer]:
        """Return the best answers to one question, see `answer_batch`."""
        return self.answer_batch([(question, passage)], top_k)[0]

    def answer_batch(
        self, questions: Sequence[tuple[str, str]], top_k: int = 5
    ) -> list[list[Answer]]:
        """Return the best answers to each question, most probable first.

        Args:
            questions: pairs (question, passage); passages may have any length, equal ones are
                read once.
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
        ranked = self.ranked(self.encode_questions(questions)) if questions else []
        return [best_answers(answers, top_k) for answers in ranked]

    def encode_questions(self, questions: Sequence[tuple[str, str]]) -> Split:
        """Tokenize questions and passages for `ranked`; raises as `answer_batch`."""
        for number, (question, _) in enumerate(questions, start=1):
            if not question.strip():
                raise UsageError(f"question {number} is empty; write one")
        passages = list(dict.fromkeys(passage for _, passage in questions))
        passage_index = {passage: number for number, passage in enumerate(passages)}
        examples = SquadExamples(
            ids=[str(number) for number in range(len(questions))],
            questions=[question for question, _ in questions],
            passages=passages,
            passage_of=[passage_index[passage] for _, passage in questions],
            answers=None,
        )
        return self.encode(examples)

    def ranked(self, split: Split) -> list[list[Answer]]:
        """Return all answers to the questions of `encode_questions`, as `answer_batch`."""
        return [
            [
                {"answer": "", "score": score, "start": None, "end": None}
                if span is None
                else {"answer": span.text, "score": score, "start": span.begin, "end": span.end}
                for span, score in prediction.ranked(self._threshold)
            ]
            for prediction in self.predict(split)
        ]


class AnswerPredictor(Verb[tuple[str, Any]]):
    """Predictor of answer: the best answer of each request, and all answers in `predictions`."""

    def __init__(self, checkpoint: str, config: AnswerConfig) -> None:
        where = placement(config.device, config.precision)
        self._answerer = QuestionAnsweringPipeline(checkpoint, **where)
        self._top_k = config.top_k

    def read(self, request: Request) -> tuple[str, Any]:
        return request.text("question"), request.text("passage")

    def encode(self, group: Sequence[tuple[str, Any]]) -> Any:
        return self._answerer.encode_questions(group)

    def answer(self, encoded: Any) -> list[dict[str, Any]]:
        return self.best(self._answerer.ranked(encoded))

    def best(self, ranked: Iterable[Sequence[Answer]]) -> list[dict[str, Any]]:
        """Return the first answer of each ranking, with all that are kept."""
        found = [best_answers(answers, self._top_k) for answers in ranked]
        return [{**own[0], "predictions": own} for own in found]

    def finish(self) -> dict[str, Any]:
        return {"truncated": self._answerer.truncated}


def best_answers(ranked: Sequence[Answer], top_k: int) -> list[Answer]:
    """Return the first `top_k` answers, and "no answer" if it comes later."""
    return [answer for rank, answer in enumerate(ranked) if rank < top_k or answer["start"] is None]
