"""The command score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cloze.labs.serving.verbs import ScoreTextsConfig
from cloze.model.train.precision import placement
from cloze.model.use.request import Request
from cloze.model.use.scorer import SentenceScorer
from cloze.model.use.verb import Verb


class ScoreTexts(Verb[str]):
    """Predictor of score: each sentence's score and its tokens' log-probabilities, in nats."""

    def __init__(self, checkpoint: str, config: ScoreTextsConfig) -> None:
        where = placement(config.device, config.precision)
        self._scorer = SentenceScorer(checkpoint, mask=config.mask, **where)
        self._normalize = config.normalize

    def read(self, request: Request) -> str:
        text = request.text("text")
        with request.blamed():
            self._scorer.check(text)
        return text

    def answer(self, encoded: Sequence[str]) -> list[dict[str, Any]]:
        return [
            {
                "text": text,
                "score": scored.score(self._normalize),
                "pieces": list(scored.pieces),
                "log_probabilities": scored.log_probabilities.tolist(),
            }
            for text, scored in zip(encoded, self._scorer.scored(encoded), strict=True)
        ]
