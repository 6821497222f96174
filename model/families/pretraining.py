"""What a family builds: an encoder with the heads that it is pretrained through.

Shapes: B batch, L length, D model, V vocabulary, M masked positions.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from model.layers.encoder import Encoder


class PretrainingModel(nn.Module):
    """An encoder, and a head for each thing that it must guess.

    Args:
        encoder: token ids to hidden states.
        masked_lm: names the tokens at the masked positions: maps (states [M, D], word embeddings [V, E]) to logits [M, V].
        pooler: hidden states to one vector a sequence; None where pretraining has no use for one.
        pair: tells the two kinds of pairs apart, from what the pooler gives; None where there is no pair task.
    """

    def __init__(
        self, encoder: Encoder, masked_lm: nn.Module, *, pooler: nn.Module | None = None, pair: nn.Linear | None = None
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooler = pooler
        self.masked_lm = masked_lm
        self.pair = pair

    def forward(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Hidden states, and the logits of the heads.

        Args:
            batch: input_ids and token_type_ids int64 [B, L]; attention_mask bool [B, L]; masked_positions int64 [M],
                indices into the flattened B * L; sequence_starts int32 [S + 1] where rows hold several sequences. Labels are not
                looked at.

        Returns:
            `hidden` [B, L, D]; `mlm_logits` [M, V], at the masked positions alone, which saves a fifth of BERT-base's
            arithmetic; `pair_logits` [B, 2] where there is a pair head.
        """
        hidden = self.encode(batch)
        masked_MD = hidden.flatten(0, 1)[batch["masked_positions"]]
        outputs = {"hidden": hidden, "mlm_logits": self.masked_lm(masked_MD, self.encoder.embeddings.word.weight)}
        if self.pair is not None and self.pooler is not None:
            outputs["pair_logits"] = self.pair(self.pooler(hidden))
        return outputs

    def encode(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The hidden states of a batch, float [B, L, D]."""
        hidden: Tensor = self.encoder(
            batch["input_ids"], batch.get("attention_mask"), batch["token_type_ids"], batch.get("sequence_starts")
        )
        return hidden
