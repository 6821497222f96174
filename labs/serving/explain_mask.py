"""The command explain-mask: what of a text speaks for the word that a model puts at its mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cloze.core.errors import UsageError
from cloze.labs.serving.explain import (
    Explains,
    Explanation,
    Part,
    attribute,
    check_explainable,
    explanation,
)
from cloze.model.layers.batch import Batch
from cloze.model.train.precision import placement
from cloze.model.use.configs import VerbConfig
from cloze.model.use.fill_mask import FillMask, FillMaskPipeline, Question
from cloze.model.use.request import Request
from cloze.model.use.verb import Verb


class ExplainMask(Verb[Question]):
    """Predictor of explain-mask: for each mask the best word, its score and its `explanation`.

    Args:
        filler: the checkpoint's pipeline, where it is in memory.

    Raises:
        UsageError: the checkpoint fills no masks, or has no gradient by its tokens' embeddings.
    """

    def __init__(
        self, checkpoint: str, config: VerbConfig, filler: FillMaskPipeline | None = None
    ) -> None:
        self._filler = filler or FillMaskPipeline(
            checkpoint, **placement(config.device, config.precision)
        )
        if self._filler.before or self._filler.permuted:
            raise UsageError(
                f"explain-mask explains models that see both sides of a mask, and {checkpoint} "
                f"predicts in another order; name a checkpoint of mlm"
            )
        check_explainable(checkpoint, self._filler.model, {})
        self._reader = self._filler.pieces.backend_naming([self._filler.mask_token])

    def read(self, request: Request) -> Question:
        text = request.text("text")
        with request.blamed():
            return self._filler.question(text)

    def answer(self, encoded: Sequence[Question]) -> list[dict[str, Any]]:
        answers = [{"text": question.text} for question in encoded]
        self.explain(encoded, answers)
        return answers

    def explain(self, encoded: Sequence[Question], answers: Sequence[dict[str, Any]]) -> None:
        """Add `masks` to the answers: for each mask the best word with its `explanation`."""
        for question, answer in zip(encoded, answers, strict=True):
            logits = self._filler.logits([question])
            words = self._filler.candidates([question], logits, top_k=1)
            masks = zip(words, question.masks, logits.argmax(-1).tolist(), strict=True)
            answer["masks"] = [
                {**word, "explanation": self._explained(question, position, token)}
                for (word,), position, token in masks
            ]

    def _explained(self, question: Question, position: int, token: int) -> Explanation:
        """Return the attribution of a token at a position."""
        ids, model = torch.tensor(question.ids), self._filler.model
        device = next(model.parameters()).device

        def batch_of(count: int) -> Batch:
            rows = ids.expand(count, -1)
            return {
                "input_ids": rows,
                "attention_mask": torch.ones_like(rows, dtype=torch.bool),
                "token_type_ids": torch.zeros_like(rows),
                "masked_positions": torch.arange(count) * len(ids) + position,
            }

        found = attribute(
            model, self._filler.pieces, device, batch_of,
            lambda outputs: outputs["mlm_logits"][:, token],
        )  # fmt: skip
        offsets = self._reader.encode(question.text, add_special_tokens=False).offsets
        label = str(self._filler.pieces.backend.id_to_token(token))
        part = Part("text", question.text, offsets, found.scores[1:-1])
        return explanation(found, label, [part], ("text", *offsets[position - 1]))


def explainer_of(
    name: str, checkpoint: str, verb: Verb[Any], config: VerbConfig
) -> ExplainMask | Explains[Any]:
    """Return what explains the answers of a verb, with the model that the verb has in memory.

    Raises:
        UsageError: the verb explains nothing, or its checkpoint cannot be explained.
    """
    if isinstance(verb, FillMask):
        return ExplainMask(checkpoint, config, verb.filler)
    if not isinstance(verb, Explains):
        raise UsageError(f"{name} has no explanations; leave explain out")
    verb.check_explainable()
    return verb
