"""The pretraining model of permutation language modelling (XLNet)."""

from __future__ import annotations

from torch import Tensor

from cloze.labs.xlnet.two_stream import TwoStreamEncoder
from cloze.model.families.pretraining import PretrainingModel
from cloze.model.layers.batch import Batch


class PermutationModel(PretrainingModel):
    """Model that predicts masked tokens by its query stream, if the batch has an order for them.

    Without `target_order` it is a masked language model on the content stream.
    """

    encoder: TwoStreamEncoder

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Compute logits; see `PretrainingModel.forward`. `hidden` is that of whole rows."""
        if "target_order" not in batch or not self.predicts_all_positions:
            return super().forward(batch)
        states = self.encode(batch, batch["masked_positions"])
        return {**self.logits({"masked": states}, batch), "hidden": self.encode(batch)}

    def encode(self, batch: Batch, positions: Tensor | None = None) -> Tensor:
        """Return hidden states [B, L, D], or the query stream's [P, D] at the wanted positions."""
        if positions is None or "target_order" not in batch:
            return super().encode(batch, positions)
        return self.encoder.predict(
            batch["input_ids"],
            batch.get("attention_mask"),
            batch["token_type_ids"],
            batch["target_order"],
            positions,
        )
