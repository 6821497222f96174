"""The position-wise feed-forward block."""

from __future__ import annotations

from torch import Tensor, nn

from model.layers.activation import ACTIVATIONS


class FeedForward(nn.Module):
    """Up to `intermediate_size`, an activation, and down again.

    Args:
        activation: a name in `ACTIVATIONS`.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, *, activation: str) -> None:
        super().__init__()
        self.up = nn.Linear(hidden_size, intermediate_size)
        self.down = nn.Linear(intermediate_size, hidden_size)
        self.activation = ACTIVATIONS[activation]

    def forward(self, hidden: Tensor) -> Tensor:
        """Args: hidden: float [B, L, D]. Returns: float [B, L, D], before any residual."""
        output: Tensor = self.down(self.activation(self.up(hidden)))
        return output
