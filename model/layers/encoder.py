"""Embeddings and a stack of layers: token ids to hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from model.layers.attention import SelfAttention, once_cast
from model.layers.embeddings import Embeddings
from model.layers.layout import Layout, Rows, Tokens, begins, buckets, packed
from model.layers.varlen import runs_varlen

Unpad = Literal["auto", "always", "never"]
WORTH = 0.85  # of a padded batch must remain at most this share, or unpadding costs more than it saves


class Encoder(nn.Module):
    """Embeddings, a stack of layers, and a norm at the end where the family has one.

    Attributes:
        unpad: whether padding is left out on the way through the layers, which changes no result but by rounding. `auto`: where
            that is faster, that is with enough padding, and not in a compiled model, whose shapes are fixed.
    """

    unpad: Unpad = "auto"

    def __init__(self, embeddings: Embeddings, layers: Sequence[nn.Module], norm: nn.Module) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor,
        sequence_starts: Tensor | None = None,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """The last layer's states, float [B, L, D]; what stands at padding means nothing. Or [P, D], those that are wanted.

        Args:
            input_ids, token_type_ids: int64 [B, L].
            attention_mask: bool [B, L], true where there is a token; None: everywhere. Tokens stand before padding.
            sequence_starts: int32 [S + 1], where each sequence of packed rows begins among the real tokens, row after row, and how
                many these are. Sequences do not see each other, and positions begin anew with each. None: a row is one sequence.
            wanted: int64 [P], positions among the flattened B * L. Most of the last layer is then computed there alone, which
                changes nothing at them but by rounding.
        """
        attention_mask, starts = _starts(input_ids, attention_mask, sequence_starts)
        tokens = self._tokens(attention_mask, starts)
        if tokens is not None:
            embedded = self.embeddings(tokens.take(input_ids), tokens.take(token_type_ids), tokens.positions)
            if wanted is not None:
                return self.run(embedded, tokens, tokens.find(wanted))
            return tokens.put_back(self.run(embedded, tokens))
        rows = Rows((input_ids.shape[0], input_ids.shape[1]), attention_mask, starts)
        return self.run(self.embeddings(input_ids, token_type_ids, rows.positions), rows, wanted)

    def run(self, hidden: Tensor, layout: Layout, chosen: Tensor | None = None) -> Tensor:
        """The layers and the last norm, in whatever layout; `chosen` as for the layers, of which it concerns the last."""
        for layer in self.layers[:-1]:
            hidden = layer(hidden, layout)
        hidden = self.layers[-1](hidden, layout, chosen)
        normed: Tensor = self.norm(hidden)
        return normed

    @torch.no_grad()
    def attention_maps(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor,
        sequence_starts: Tensor | None = None,
    ) -> list[Tensor]:
        """What each layer attends to: its probabilities before dropout, float [B, N, L, L], rows are queries. For analysis.

        Args: as for `forward`.
        """
        maps: list[Tensor] = []
        attention_mask, starts = _starts(input_ids, attention_mask, sequence_starts)
        rows = Rows((input_ids.shape[0], input_ids.shape[1]), attention_mask, starts, maps)
        self.run(self.embeddings(input_ids, token_type_ids, rows.positions), rows)
        return maps

    def _tokens(self, real: Tensor | None, starts: Tensor | None) -> Tokens | None:
        """The layout without padding, where that is wanted."""
        if self.unpad == "never" or torch.compiler.is_compiling() or real is None:
            return None
        weight = self.embeddings.word.weight
        dtype = once_cast(weight[:0]).dtype
        if weight.device.type == "cuda" and not runs_varlen(weight.device, dtype, self.head_size):
            return None
        if self.unpad == "auto" and starts is None and int(real.sum()) > WORTH * real.numel():
            return None
        return packed(real, starts) if weight.device.type == "cuda" else buckets(real, starts)

    @cached_property
    def head_size(self) -> int:
        """H of the widest attention, looked for once: the layers do not change."""
        return max((part.head_size for part in self.modules() if isinstance(part, SelfAttention)), default=0)


def _starts(ids: Tensor, real: Tensor | None, sequence_starts: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Which positions are real, and where sequences begin, bool [B, L] each."""
    if sequence_starts is None:
        return real, None
    real = torch.ones_like(ids, dtype=torch.bool) if real is None else real
    return real, begins(sequence_starts, real)
