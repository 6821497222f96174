"""Multi-head self-attention (Vaswani et al., 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.layers.dropout import dropout as drop
from model.layers.layout import Layout, Pattern, Rows
from model.layers.rotary import Rotary


class SelfAttention(nn.Module):
    """Every position looks at those that it may see: projections to query, key and value, attention, an output projection.

    Args:
        hidden_size: D, a multiple of `num_heads`.
        num_heads: N.
        dropout: share of the attention probabilities dropped while training.
        output_dropout: share of what leaves the output projection dropped while training.
        bias: whether the projections have biases.
        fused: hold query, key and value as one matrix, `qkv` [3D, D], as the family's checkpoints do.
        window: see only tokens at most this far away.
        causal: see only tokens that do not come later.
        rotary: turns queries and keys by their positions.

    Attributes:
        stacked: projections that are several, one upon another.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        dropout: float,
        output_dropout: float = 0.0,
        bias: bool = True,
        fused: bool = False,
        window: int | None = None,
        causal: bool = False,
        rotary: Rotary | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_size = hidden_size // num_heads
        self.dropout = dropout
        self.output_dropout = output_dropout
        self.pattern = Pattern(window=window, causal=causal)
        self.rotary = rotary
        self.fused = fused
        self.stacked = {"qkv": 3} if fused else {}
        if fused:
            self.qkv = nn.Linear(hidden_size, 3 * hidden_size, bias=bias)
        else:
            self.query = nn.Linear(hidden_size, hidden_size, bias=bias)
            self.key = nn.Linear(hidden_size, hidden_size, bias=bias)
            self.value = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.output = nn.Linear(hidden_size, hidden_size, bias=bias)

    def forward(self, hidden: Tensor, layout: Layout | None = None, chosen: Tensor | None = None) -> Tensor:
        """Attend, everywhere or at a few positions.

        Args:
            hidden: float [B, L, D], or [T, D] in a layout without padding.
            layout: by default rows without padding.
            chosen: int64 [P], flat positions among the B * L or T: where the result is wanted; None: everywhere.

        Returns:
            The shape of `hidden`, or [P, D], before any residual.
        """
        if layout is None:
            layout = Rows((hidden.shape[0], hidden.shape[1]))
        if chosen is not None and isinstance(layout, Rows) and layout.one_each and not self.training:
            single: Tensor = self.output(self._attend_once(hidden, layout, chosen))
            return single
        query, key, value = self.project(hidden)
        if self.rotary is not None:
            query, key = self.rotary(query, key, layout)
        mixed = layout.attend(query, key, value, self.pattern, self.dropout if self.training else 0.0)
        output: Tensor = self.output(taken(mixed.flatten(-2), chosen))
        return drop(output, self.output_dropout) if self.training else output

    def _attend_once(self, hidden: Tensor, layout: Rows, chosen: Tensor) -> Tensor:
        """What one position a row gets, [B, D], before the output projection: no query is computed but its own."""
        hidden, place = once_cast(hidden), chosen % layout.shape[1]
        own = taken(hidden, chosen)
        if self.fused:
            cut, bias = hidden.shape[-1], self.qkv.bias
            query = functional.linear(own, self.qkv.weight[:cut], None if bias is None else bias[:cut])
            both = functional.linear(hidden, self.qkv.weight[cut:], None if bias is None else bias[cut:])
            key, value = both.chunk(2, dim=-1)
        else:
            query, key, value = self.query(own), self.key(hidden), self.value(hidden)
        query, key, value = self.split(query), self.split(key), self.split(value)
        if self.rotary is not None:
            query, key = self.rotary.turn(query, layout, place), self.rotary.turn(key, layout)
        return layout.attend_once(query, key, value, self.pattern, place).flatten(-2)

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value: [..., D] to [..., N, H] each."""
        hidden = once_cast(hidden)
        if self.fused:
            query, key, value = self.qkv(hidden).chunk(3, dim=-1)
        else:
            query, key, value = self.query(hidden), self.key(hidden), self.value(hidden)
        return self.split(query), self.split(key), self.split(value)

    def split(self, projected: Tensor) -> Tensor:
        """[..., D] to [..., N, H]."""
        return torch.unflatten(projected, -1, (self.num_heads, -1))


def taken(hidden: Tensor, chosen: Tensor | None) -> Tensor:
    """The states at flat positions: [..., D] to [P, D]; None: all, as they are."""
    return hidden if chosen is None else hidden.flatten(0, -2).index_select(0, chosen)


def once_cast(hidden: Tensor) -> Tensor:
    """Under autocast, `hidden` in its dtype: cast once for all projections, which would else each cast it for themselves."""
    device = hidden.device.type
    return hidden.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else hidden
