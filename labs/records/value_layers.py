"""Layers of the family modern-values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cloze.model.layers.attention import SelfAttention
from cloze.model.layers.encoder import Encoder
from cloze.model.layers.layout import BatchLayout

START = 0.5  # of each layer's share


class ValueEncoder(Encoder):
    """Encoder whose layers read the first states in their layout's memory."""

    def run(self, hidden: Tensor, layout: BatchLayout, positions: Tensor | None = None) -> Tensor:
        """Run the layers and the final norm, as `Encoder.run`."""
        layout.memory = hidden
        return super().run(hidden, layout, positions)


class ValueAttention(SelfAttention):
    """Self-attention with a learned share of the first states in its values."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.share = nn.Parameter(torch.full((1,), START))

    def project(
        self, hidden: Tensor, layout: BatchLayout | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Project [..., D] to query, key and value, [..., N, H] each."""
        query, key, value = super().project(hidden, layout)
        assert layout is not None, "the encoder's layout carries the first states"
        return query, key, value + self.split(self.share * layout.memory).to(value.dtype)
