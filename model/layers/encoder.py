"""Embeddings and a stack of layers: token ids to hidden states."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from model.layers.embeddings import Embeddings, additive_mask


class Encoder(nn.Module):
    """Embeddings, a stack of layers, and a norm at the end where the family has one."""

    def __init__(self, embeddings: Embeddings, layers: Sequence[nn.Module], norm: nn.Module) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor) -> Tensor:
        """Args: input_ids, token_type_ids: int64 [B, L]; attention_mask: bool [B, L], true where there is a token, or None for
        rows without padding. Returns: the last layer's states, float [B, L, D].
        """
        hidden: Tensor = self.embeddings(input_ids, token_type_ids)
        bias = additive_mask(attention_mask, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, bias)
        normed: Tensor = self.norm(hidden)
        return normed
