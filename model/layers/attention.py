"""Multi-head self-attention (Vaswani et al., 2017), with rotary positions."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from cloze.model.layers.cpu import Linear, ModuleReference, autocast_input, linear, rotary_factors
from cloze.model.layers.cpu import dropout as drop
from cloze.model.layers.layout import AttentionPattern, BatchLayout


class Rotary(nn.Module):
    """Rotary position embeddings (Su et al., "RoFormer", 2021); no parameters.

    Queries and keys are rotated by angles proportional to their position, so their product depends
    on the distance only. Value i of a head's first half and value i of its second half are rotated
    by position / theta^(2i / H), as in GPT-NeoX and ModernBERT. The paper pairs adjacent values,
    which differs only in the order of weights.

    Args:
        head_size: H, even.
        theta: base of the wavelengths.
    """

    def __init__(self, head_size: int, theta: float) -> None:
        super().__init__()
        self.head_size, self.theta = head_size, theta

    def forward(self, query: Tensor, key: Tensor, layout: BatchLayout) -> tuple[Tensor, Tensor]:
        """Rotate query and key, float [..., L, N, H] or [T, N, H], in fp32; return their dtype."""
        known, factors = (self.theta, self.head_size), layout.rotary
        if known not in factors:
            factors[known] = self._factors(layout, query.device)
        cosine, sine = factors[known]
        return _turn(query, cosine, sine), _turn(key, cosine, sine)

    def _factors(self, layout: BatchLayout, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the cosine and signed sine factors, fp32 [..., 1, H], broadcast over heads."""
        positions = (
            torch.arange(layout.max_distance, device=device)
            if layout.positions is None
            else layout.positions
        )
        even = torch.arange(0, self.head_size, 2, device=device, dtype=torch.float32)
        angle = positions[..., None, None].float() * (1.0 / self.theta ** (even / self.head_size))
        return rotary_factors(angle)


def _turn(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate whole heads at once: operations on halves took a CPU twice the time."""
    fp32_values = values.float()
    swapped = fp32_values.roll(values.shape[-1] // 2, dims=-1)
    return (fp32_values * cosine).add_(swapped.mul_(sine)).to(values.dtype)


class SelfAttention(nn.Module):
    """Multi-head self-attention: query, key and value projections, attention, output projection.

    Args:
        hidden_size: D.
        num_heads: N.
        head_size: H. Default: D / N.
        dropout: dropout of the attention probabilities.
        output_dropout: dropout of the output projection's result.
        fused: store query, key and value as one matrix, `qkv` [3 N H, D], as the family's
            checkpoints do.
        window: maximum distance of visible tokens.
        causal: hide later tokens.
        rotary: rotates queries and keys by their positions.
        relative: maps (layout, query, key) to a bias of the scores; owned by another module.
        query_scale: factor of the scores, which are also divided by the square root of H.

    Attributes:
        stacked: number of projections in each stacked matrix, by module name.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        head_size: int | None = None,
        dropout: float,
        output_dropout: float = 0.0,
        bias: bool = True,
        fused: bool = False,
        window: int | None = None,
        causal: bool = False,
        rotary: Rotary | None = None,
        relative: nn.Module | None = None,
        query_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_size = head_size or hidden_size // num_heads
        self.dropout = dropout
        self.output_dropout = output_dropout
        self.pattern = AttentionPattern(window=window, causal=causal)
        self.rotary = rotary
        # A reference, so that checkpoints and optimizers see the shared table once.
        self.relative_bias = None if relative is None else ModuleReference(relative)
        # The kernels always divide; so queries of unscaled attention are multiplied before.
        self.query_scale = query_scale
        self.fused = fused
        self.stacked = {"qkv": 3} if fused else {}
        width = num_heads * self.head_size
        if fused:
            self.qkv = Linear(hidden_size, 3 * width, bias=bias)
        else:
            self.query = Linear(hidden_size, width, bias=bias)
            self.key = Linear(hidden_size, width, bias=bias)
            self.value = Linear(hidden_size, width, bias=bias)
        self.output = Linear(width, hidden_size, bias=bias)

    def forward(
        self, hidden: Tensor, layout: BatchLayout | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Compute attention at all positions or at chosen ones.

        Args:
            hidden: float [B, L, D], or [T, D] in a layout without padding.
            layout: batch layout. Default: rows without padding.
            positions: int64 [P], flat positions among B * L or T to compute; None: all.

        Returns:
            The shape of `hidden`, or [P, D], before any residual.
        """
        if layout is None:
            layout = BatchLayout((hidden.shape[0], hidden.shape[1]))
        query, key, value = self.project(hidden, layout)
        if self.rotary is not None:
            query, key = self.rotary(query, key, layout)
        if self.query_scale != 1.0:
            query = query * self.query_scale
        added = None if self.relative_bias is None else partial(self.relative_bias, layout)
        mixed = layout.attend(
            query, key, value, self.pattern, self.dropout if self.training else 0.0, added
        )
        # All tokens are keys and values; only those that are asked for pay the output projection.
        output: Tensor = self.output(gather_positions(mixed.flatten(-2), positions))
        return drop(output, self.output_dropout) if self.training else output

    def project(
        self, hidden: Tensor, layout: BatchLayout | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Project [..., D] to query, key and value, [..., N, H] each."""
        del layout  # what a derived class reads beside the layer's input
        hidden = autocast_input(hidden)
        if self.fused:
            query, key, value = self.qkv(hidden).chunk(3, dim=-1)
        elif torch.compiler.is_compiling():  # one matrix product instead of three
            layers = (self.query, self.key, self.value)
            weight = torch.cat([layer.weight for layer in layers])
            bias = None if self.query.bias is None else torch.cat([layer.bias for layer in layers])
            query, key, value = linear(hidden, weight, bias).chunk(3, dim=-1)
        else:
            query, key, value = self.query(hidden), self.key(hidden), self.value(hidden)
        heads = (self.num_heads, -1)
        return query.unflatten(-1, heads), key.unflatten(-1, heads), value.unflatten(-1, heads)

    def key_and_value(self, states: Tensor) -> tuple[Tensor, Tensor]:
        states = autocast_input(states)
        return self.split(self.key(states)), self.split(self.value(states))

    def split(self, projected: Tensor) -> Tensor:
        """Split heads: [..., N H] to [..., N, H]."""
        return torch.unflatten(projected, -1, (self.num_heads, -1))


def gather_positions(hidden: Tensor, positions: Tensor | None) -> Tensor:
    """Select states at flat positions, [..., D] to [P, D]; None selects all, unchanged."""
    return hidden if positions is None else hidden.flatten(0, -2).index_select(0, positions)
