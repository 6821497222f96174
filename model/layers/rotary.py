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
        cosine, sine = layout.once((self.theta, self.head_size, "rotary"), lambda: self._angles(query, layout.positions))
        return _turn(query, cosine, sine), _turn(key, cosine, sine)

    def _angles(self, like: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        """Cosines and sines, fp32 [..., 1, H / 2], to be broadcast over heads."""
        if positions is None:
            positions = torch.arange(like.shape[-3], device=like.device)
        even = torch.arange(0, self.head_size, 2, device=like.device, dtype=torch.float32)
        angle = positions[..., None, None].float() * (1.0 / self.theta ** (even / self.head_size))
        return angle.cos(), angle.sin()


def _turn(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = values.float().chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(values.dtype)
