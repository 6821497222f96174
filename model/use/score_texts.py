"""What the verb score does with sentences, once torch is there: in fp32, as nothing tells whether a rounding matters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from model.use.requests import Request
from model.use.score_texts_stage import ScoreTextsConfig
from model.use.scorer import Scorer
from model.use.serve import Verb


class ScoreTexts(Verb[str]):
    """The verb: each sentence's score, and its pieces with their log-probabilities, in nats."""

    def __init__(self, checkpoint: str, config: ScoreTextsConfig) -> None:
        self._scorer, self._normalize = Scorer(checkpoint, mask=config.mask), config.normalize

    def read(self, request: Request) -> str:
        text = request.text("text")
        with request.blamed():
            self._scorer.check(text)
        return text

    def answer(self, group: Sequence[str]) -> list[dict[str, Any]]:
        return [
            {
                "text": text,
                "score": found.score(self._normalize),
                "pieces": list(found.pieces),
                "log_probabilities": found.log_probabilities.tolist(),
            }
            for text, found in zip(group, self._scorer.scored(group), strict=True)
        ]
