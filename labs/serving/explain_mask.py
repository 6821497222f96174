"""The command explain-mask: what of a text speaks for the word that a model puts at its mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cloze.core.errors import UsageError
from cloze.labs.serving.explain import attribute, check_explainable, context_shares
from cloze.labs.serving.verbs import ExplainMaskConfig
from cloze.model.data.batch import move
from cloze.model.layers.batch import Batch
from cloze.model.objectives import objectives
from cloze.model.train.precision import placement
from cloze.model.use.fill_mask import FillMaskPipeline, Question
from cloze.model.use.request import Request
from cloze.model.use.verb import Verb


class ExplainMask(Verb[Question]):
    """Predictor of explain-mask: for each mask the best word, its score and its `explanation`.

    Raises:
        UsageError: the checkpoint fills no masks, or has no gradient by its tokens' embeddings.
    """

    def __init__(self, checkpoint: str, config: ExplainMaskConfig) -> None:
        self._filler = FillMaskPipeline(checkpoint, **placement(config.device, config.precision))
        self._device = next(self._filler.model.parameters()).device
        names = self._filler.names
        if "mntp" in names or any(own.transform for own in objectives(names)):
            raise UsageError(
                f"explain-mask explains models that see both sides of a mask, and {checkpoint} was "
                f"trained on {', '.join(names)}; name a checkpoint of mlm"
            )
        check_explainable(checkpoint, self._filler.model, {})
        self._reader = self._filler.pieces.backend_naming([self._filler.mask_token])

    def read(self, request: Request) -> Question:
        text = request.text("text")
        with request.blamed():
            return self._filler.question(text)

    def answer(self, encoded: Sequence[Question]) -> list[dict[str, Any]]:
        return [
            {
                "text": question.text,
                "masks": [
                    {**best, "explanation": self._explained(question, position)}
                    for (best,), position in zip(predictions, question.masks, strict=True)
                ],
            }
            for question, predictions in zip(
                encoded, self._filler.answer(encoded, top_k=1), strict=True
            )
        ]

    def _explained(self, question: Question, position: int) -> dict[str, Any]:
        """Return the attribution of the best word at a position, and the sides it comes from."""
        ids, pieces = torch.tensor(question.ids), self._filler.pieces

        def batch_of(count: int) -> Batch:
            rows = ids.expand(count, -1)
            return {
                "input_ids": rows,
                "attention_mask": torch.ones_like(rows, dtype=torch.bool),
                "token_type_ids": torch.zeros_like(rows),
                "masked_positions": torch.arange(count) * len(ids) + position,
            }

        with torch.no_grad():
            outputs = self._filler.model(move(batch_of(1), self._device))
        token = int(outputs["mlm_logits"][0].argmax())
        found = attribute(
            self._filler.model, pieces, self._device, batch_of,
            lambda outputs: outputs["mlm_logits"][:, token],
        )  # fmt: skip
        offsets = self._reader.encode(question.text, add_special_tokens=False).offsets
        tokens = [
            {
                "field": "text", "text": question.text[start:end], "start": start, "end": end,
                "score": float(score),
            }
            for (start, end), score in zip(offsets, found.scores[1:-1], strict=True)
        ]  # fmt: skip
        shares = context_shares(tokens, "text", *offsets[position - 1])
        label = str(pieces.backend.id_to_token(token))
        return {**found.explanation(label, tokens), "context": shares}
