"""Left-to-right model: BERT with causal attention (Devlin et al., 2019, Table 5, "LTR & No NSP").

The masked LM head predicts the next token. In fine-tuning, a sequence's vector is computed from its
last token, which attends to all others, or with `bilstm` from the first state of a bidirectional
LSTM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from cloze.model.families.bert import model as bert
from cloze.model.families.config import ModelConfig
from cloze.model.families.ltr.config import LtrConfig
from cloze.model.families.models import encoded
from cloze.model.layers.encoder import Encoder
from cloze.model.layers.heads import Pooler, initialize
from cloze.model.layers.kv_cache import unmask


class LeftToRight(nn.Module):
    """Causal encoder and next-token head.

    Args:
        lm: maps (states [..., D], word embeddings [V, D]) to logits [..., V].
    """

    pooler = None

    def __init__(self, encoder: Encoder, lm: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.lm = lm

    def forward(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return `hidden` [B, L, D] and `lm_logits` [B, L, V], after removing the batch's masks."""
        hidden = encoded(self.encoder, unmask(batch), batch)
        return {"hidden": hidden, "lm_logits": self.lm(hidden, self.encoder.embeddings.word.weight)}


class LastPooler(Pooler):
    """Pooler on the last token's state."""

    reads_first = False

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return super().forward(last_state(hidden, attention_mask))


class LstmPooler(Pooler):
    """Pooler on the first state of a bidirectional LSTM over the row.

    Args:
        hidden_size: D; each direction has D / 2.
    """

    reads_first = False

    def __init__(self, hidden_size: int) -> None:
        super().__init__(hidden_size)
        self.lstm = nn.LSTM(hidden_size, hidden_size // 2, batch_first=True, bidirectional=True)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        rows, length = hidden.shape[:2]
        lengths = (
            torch.full((rows,), length)
            if attention_mask is None
            else attention_mask.sum(dim=1).cpu()
        )
        packed = pack_padded_sequence(
            hidden.float(), lengths, batch_first=True, enforce_sorted=False
        )
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return super().forward(states.to(hidden.dtype))


def new_model(config: ModelConfig) -> LeftToRight:
    """Build the model, initialized from torch's current random state."""
    model = LeftToRight(bert.encoder(config, causal=True), bert.masked_lm(config))
    initialize(model, config.initializer_range)
    return model


def new_pooler(config: ModelConfig) -> Pooler:
    """Build the pooler for fine-tuning."""
    return (
        LstmPooler(config.hidden_size)
        if cast(LtrConfig, config).bilstm
        else LastPooler(config.hidden_size)
    )


def last_state(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Return the last real token's state of every row: [B, L, D] to [B, 1, D]."""
    if attention_mask is None:
        return hidden[:, -1:]
    last = attention_mask.sum(dim=1).clamp(min=1) - 1
    return hidden[torch.arange(len(hidden), device=hidden.device), last].unsqueeze(1)
