"""What a family builds: an encoder with the heads that it is pretrained through.

Shapes: B batch, L length, D model, V vocabulary, M masked positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from model.layers.attention import taken
from model.layers.encoder import Encoder


class PretrainingModel(nn.Module):
    """An encoder, and a head for each thing that it must guess.

    Attributes:
        everywhere: whether the last layer's states are computed, and given, at every position. Where nobody looks at them but the
            heads, which read one position in six, most of the last layer is computed there alone: a tenth of a BERT-mini's
            arithmetic, a twentieth of BERT-base's.

    Args:
        encoder: token ids to hidden states.
        masked_lm: names the tokens at the masked positions: maps (states [M, D], word embeddings [V, E]) to logits [M, V].
        pooler: hidden states to one vector a sequence; None where pretraining has no use for one.
        pair: tells the two kinds of pairs apart, from what the pooler gives; None where there is no pair task.
    """

    everywhere: bool = True

    def __init__(
        self, encoder: Encoder, masked_lm: nn.Module, *, pooler: nn.Module | None = None, pair: nn.Linear | None = None
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooler = pooler
        self.masked_lm = masked_lm
        self.pair = pair

    def forward(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """The logits of the heads, and hidden states.

        Args:
            batch: input_ids and token_type_ids int64 [B, L]; attention_mask bool [B, L]; masked_positions int64 [M],
                indices into the flattened B * L; layout, as for `Encoder.forward`, or none. Labels are not looked at. There may be
                masked_places int64 [M], where masked tokens are named if not where they stand; and causal_positions int64 [C],
                where next tokens are.

        Returns:
            `mlm_logits` [M, V], at the masked positions alone, which saves a fifth of BERT-base's arithmetic; `pair_logits` [B, 2]
            where there is a pair head; `clm_logits` [C, V], of the same head as those of masked tokens, where next tokens are named;
            `hidden` [B, L, D] if `everywhere`.
        """
        places = self.places(batch)
        if self.everywhere:
            hidden = self.encode(batch)
            states = [taken(hidden, chosen) for chosen in places.values()]
        else:
            read = self.encode(batch, torch.cat(list(places.values())))
            states = list(torch.split(read, [len(chosen) for chosen in places.values()]))
        outputs = self.logits(dict(zip(places, states, strict=True)), batch)
        return {**outputs, "hidden": hidden} if self.everywhere else outputs

    def places(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """What the heads read: by name, int64 positions among the flattened B * L."""
        found = {"masked": batch.get("masked_places", batch["masked_positions"])}
        if "causal_positions" in batch:
            found["causal"] = batch["causal_positions"]
        if self.pair is not None:
            rows, length = batch["input_ids"].shape
            found["first"] = torch.arange(0, rows * length, length, device=batch["input_ids"].device)
        return found

    def logits(self, states: Mapping[str, Tensor], batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """The heads' logits. Args: states: by the names of `places`, float [P, D] each; batch: as for `forward`."""
        words = self.encoder.embeddings.word.weight
        outputs = {"mlm_logits": self.masked_lm(states["masked"], words)}
        if "causal" in states:
            outputs["clm_logits"] = self.masked_lm(states["causal"], words)
        if self.pair is not None and self.pooler is not None:
            outputs["pair_logits"] = self.pair(self.pooler(states["first"][:, None]))
        return outputs

    def encode(self, batch: Mapping[str, Any], wanted: Tensor | None = None) -> Tensor:
        """The hidden states of a batch, float [B, L, D], or [P, D] at the wanted positions among the flattened B * L."""
        return encoded(self.encoder, batch["input_ids"], batch, wanted)


def encoded(encoder: nn.Module, ids: Tensor, batch: Mapping[str, Any], wanted: Tensor | None = None) -> Tensor:
    """What an encoder makes of a batch with these ids: float [B, L, D], or [P, D] at the wanted positions."""
    hidden: Tensor = encoder(ids, batch.get("attention_mask"), batch["token_type_ids"], batch.get("layout"), wanted)
    return hidden
