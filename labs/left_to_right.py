"""Parts of models that read from left to right: model, head and pooler, which labs share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cloze.model.families.pretraining import encode
from cloze.model.layers.batch import Batch, unmask
from cloze.model.layers.cross_entropy import VocabularyHead
from cloze.model.layers.encoder import Encoder
from cloze.model.layers.heads import Pooler


class LeftToRightModel(nn.Module):
    """Causal encoder and next-token head.

    Args:
        lm: maps (states [..., D], word embeddings [V, D]) to logits [..., V].
    """

    pooler = None

    def __init__(self, encoder: Encoder, lm: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.lm = lm

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return `hidden` [B, L, D] and `lm_logits` [B, L, V], after removing the batch's masks."""
        hidden = encode(self.encoder, unmask(batch), batch)
        return {"hidden": hidden, "lm_logits": self.lm(hidden, self.encoder.embeddings.word.weight)}


class TiedHead(VocabularyHead):
    """Logits: states times word embeddings, without own matrices.

    Args:
        scale: factor of the states (T5: 1 / sqrt(D) with tied embeddings).
        bias: V, size of a bias of the logits; 0: none.
    """

    def __init__(self, scale: float = 1.0, bias: int = 0) -> None:
        super().__init__()
        self.scale = scale
        self.bias = nn.Parameter(torch.zeros(bias)) if bias else None
        self.per_piece = ("bias",) if bias else ()

    def forward(self, hidden: Tensor, decoder_weight: Tensor) -> Any:
        """Map hidden, float [..., D], and decoder_weight, float [V, D], to logits [..., V]."""
        hidden = hidden * self.scale if self.scale != 1.0 else hidden
        return self.project(hidden, decoder_weight, self.bias)


class LastPooler(Pooler):
    """Pooler on the last token's state."""

    reads_first = False

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return super().forward(last_state(hidden, attention_mask))


def last_state(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Return the last real token's state of every row: [B, L, D] to [B, 1, D]."""
    if attention_mask is None:
        return hidden[:, -1:]
    last_index = attention_mask.sum(dim=1).clamp(min=1) - 1
    return hidden[torch.arange(len(hidden), device=hidden.device), last_index].unsqueeze(1)
