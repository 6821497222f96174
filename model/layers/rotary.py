"""Rotary position embeddings (Su et al., "RoFormer", 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model.layers.layout import Layout


class Rotary(nn.Module):
    """Turns each query and key by angles that grow with its position, so that their product depends on the distance alone.

    Value i of a head's first half and value i of its second half form a pair, turned by position / theta^(2i / H), as in GPT-NeoX
    and ModernBERT (the paper pairs neighbours; the two differ by an order of the weights). No parameters.

    Args:
        head_size: H, even.
        theta: the base of the wavelengths.
    """

    def __init__(self, head_size: int, theta: float) -> None:
        super().__init__()
        self.head_size, self.theta = head_size, theta

    def forward(self, query: Tensor, key: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Args: query, key: float [..., L, N, H], or [T, N, H]. Returns: both turned, in their dtype; computed in fp32."""
        return self.turn(query, layout), self.turn(key, layout)

    def turn(self, values: Tensor, layout: Layout, place: Tensor | None = None) -> Tensor:
        """As `forward` for queries or keys alone; place: int64 [B], of one value a row, float [B, N, H], where it stands."""
        made = layout.once((self.theta, self.head_size, "rotary"), lambda: self._factors(layout, values.device))
        cosine, sine = made if place is None else (factor.index_select(0, place) for factor in made)
        return _turn(values, cosine, sine)

    def _factors(self, layout: Layout, device: torch.device) -> tuple[Tensor, Tensor]:
        """What a head is multiplied with and what its swapped halves are: fp32 [..., 1, H], to be broadcast over heads."""
        positions = torch.arange(layout.reach, device=device) if layout.positions is None else layout.positions
        even = torch.arange(0, self.head_size, 2, device=device, dtype=torch.float32)
        angle = positions[..., None, None].float() * (1.0 / self.theta ** (even / self.head_size))
        cosine, sine = angle.cos(), angle.sin()
        return torch.cat([cosine, cosine], dim=-1), torch.cat([-sine, sine], dim=-1)


def _turn(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Whole heads at once: by halves, each operation is twice, on pieces too short for a CPU, which took double the time."""
    wide = values.float()
    swapped = wide.roll(values.shape[-1] // 2, dims=-1)
    return (wide * cosine).add_(swapped.mul_(sine)).to(values.dtype)
