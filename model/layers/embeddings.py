"""From token ids to the first hidden states: word + position + segment, normalised, with dropout."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Embeddings(nn.Module):
    """The sum of word, learned absolute position and segment embeddings (Devlin et al., 2019, Figure 2).

    Args:
        norm: applied to the sum.
        dropout: share of the sum's values dropped while training.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        *,
        max_positions: int,
        segments: int,
        norm: nn.Module,
        dropout: float,
    ) -> None:
        super().__init__()
        self.word = nn.Embedding(vocab_size, hidden_size)
        self.position = nn.Embedding(max_positions, hidden_size)
        self.segment = nn.Embedding(segments, hidden_size)
        self.norm = norm
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """Args: input_ids, token_type_ids: int64 [B, L], L at most `max_positions`. Returns: float [B, L, D]."""
        position_LD = self.position.weight[: input_ids.shape[1]]
        hidden: Tensor = self.norm(self.word(input_ids) + self.segment(token_type_ids) + position_LD)
        dropped: Tensor = self.dropout(hidden)
        return dropped


def additive_mask(attention_mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What to add to attention scores so that padding is not attended to.

    The value -10000 is the reference program's (google-research/bert, modeling.py, `adder`): its exponential is
    exactly 0 in fp32, it fits fp16 and bf16, and a row of nothing but padding stays finite, which -inf would not.

    Args:
        attention_mask: bool [B, L], true where there is a token; None: everywhere.

    Returns:
        `dtype` [B, 1, 1, L], broadcast over heads and queries; or None.
    """
    if attention_mask is None:
        return None
    return attention_mask.logical_not().to(dtype)[:, None, None, :] * -10000.0
