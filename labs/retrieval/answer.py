"""The command answer-corpus: questions are answered from passages of an index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cloze.labs.retrieval.search import Reading, Searcher
from cloze.labs.retrieval.stages import AnswerCorpusConfig
from cloze.labs.serving.answer import Answer, AnswerPredictor
from cloze.model.tasks.task import Split
from cloze.model.train.precision import placement
from cloze.model.use.request import Request


class CorpusAnswers(AnswerPredictor):
    """Predictor of answer-corpus: the best answer of each request, and all in `predictions`.

    A question without a passage is answered from the passages that the search finds.
    They are read as one text, so their answers compete (Yang et al. 2019, BERTserini); each answer
    then has its `passage` with title, url and licence.
    """

    def __init__(self, checkpoint: str, config: AnswerCorpusConfig) -> None:
        super().__init__(checkpoint, config)
        self._passages = config.passages
        self._searcher = Searcher(config.corpus, **placement(config.device, config.precision))

    def read(self, request: Request) -> tuple[str, str | None]:
        return request.text("question"), request.optional("passage")

    def encode(self, group: Sequence[tuple[str, str | None]]) -> tuple[Split, list[Reading | None]]:
        readings: list[Reading | None] = [None] * len(group)
        searched = [number for number, (_, passage) in enumerate(group) if passage is None]
        if searched:
            found = self._searcher.search([group[number][0] for number in searched], self._passages)
            for number, own in zip(searched, found, strict=True):
                passage = self._searcher.index.passage
                readings[number] = Reading([passage(place) for place, _ in own])
        questions = [
            (question, passage or (reading.text if reading else ""))
            for (question, passage), reading in zip(group, readings, strict=True)
        ]
        return self._answerer.encode_questions(questions), readings

    def answer(self, encoded: tuple[Split, list[Reading | None]]) -> list[dict[str, Any]]:
        split, readings = encoded
        return self.best(
            ranked if reading is None else _sourced(ranked, reading)
            for ranked, reading in zip(self._answerer.ranked(split), readings, strict=True)
        )


def _sourced(ranked: Sequence[Answer], reading: Reading) -> list[Answer]:
    """Return the answers that lie in one passage, with it; at least "no answer"."""
    answers = []
    for answer in ranked:
        source = None if answer["start"] is None else reading.source(answer["start"], answer["end"])
        if source is not None or answer["start"] is None:
            answers.append({**answer, **(source or {"passage": None})})
    nothing = {"answer": "", "score": 0.0, "start": None, "end": None, "passage": None}
    return answers or [nothing]
