"""A convolution over the tokens of a sequence, in any layout."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.layers.attention import taken
from model.layers.dropout import Dropout
from model.layers.layout import Layout, Rows


class Convolution(nn.Conv1d):
    """A convolution that leaves a sequence's length as it is: beyond its ends, and at padding, there are zeros.

    Args:
        hidden_size: D.
        kernel_size: odd: how many neighbours take part, the token itself among them.
    """

    def __init__(self, hidden_size: int, kernel_size: int) -> None:
        super().__init__(hidden_size, hidden_size, kernel_size)

    def forward(self, hidden: Tensor, layout: Layout | None = None) -> Tensor:
        """Args: hidden: float [B, L, D], or [T, D] in a layout without padding. Returns: the same shape."""
        size = self.kernel_size[0]
        if isinstance(layout, Rows) and layout.real is not None:
            hidden = hidden * layout.real[..., None]
        around = [self._shifted(hidden, layout, offset - size // 2) for offset in range(size)]
        return functional.linear(torch.cat(around, dim=-1), self.weight.transpose(1, 2).flatten(1), self.bias)

    def _shifted(self, hidden: Tensor, layout: Layout | None, offset: int) -> Tensor:
        """At each token the state of the one that comes `offset` later in its sequence, or zeros."""
        if not offset:
            return hidden
        sequence = hidden.dim() - 2  # the tokens' dimension
        moved = hidden.roll(-offset, sequence)
        positions = None if layout is None else layout.positions
        if positions is None:
            positions = torch.arange(hidden.shape[sequence], device=hidden.device)
        same = positions.roll(-offset, -1) == positions + offset  # another sequence begins anew
        return torch.where(same[..., None], moved, 0.0)


class Convolved(nn.Module):
    """Adds a convolution of what enters a layer to what leaves it (DeBERTa v2; microsoft/DeBERTa, bert.py, `ConvLayer`).

    Args:
        hidden_size, kernel_size: as for `Convolution`.
        activation: of the convolution's result.
        dropout: share of it dropped before that, while training.
        norm: of the sum.
    """

    def __init__(
        self, hidden_size: int, kernel_size: int, *, activation: Callable[[Tensor], Tensor], dropout: float, norm: nn.Module
    ) -> None:
        super().__init__()
        self.convolution = Convolution(hidden_size, kernel_size)
        self.activation = activation
        self.dropout = Dropout(dropout)
        self.norm = norm

    def forward(self, entering: Tensor, leaving: Tensor, layout: Layout | None, chosen: Tensor | None = None) -> Tensor:
        """Args: entering: float [..., D]; leaving: the same shape, or [P, D] at `chosen`. Returns: the shape of `leaving`."""
        found = taken(self.convolution(entering, layout), chosen)
        normed: Tensor = self.norm(leaving + self.activation(self.dropout(found)))
        return normed
