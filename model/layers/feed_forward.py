"""The position-wise feed-forward block."""

from __future__ import annotations

from torch import Tensor, nn

from model.layers.activation import ACTIVATIONS
from model.layers.dropout import Dropout


class FeedForward(nn.Module):
    """Up to `intermediate_size`, an activation, and down again.

    Args:
        activation: a name in `ACTIVATIONS`.
        gated: go up twice, in one matrix, and multiply the activated half with the other (Shazeer, "GLU Variants", 2020; with
            gelu: GeGLU).
        bias: whether the projections have biases.
        dropout: share of what goes down dropped while training.

    Attributes:
        stacked: projections that are several, one upon another.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        activation: str,
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.gated = gated
        self.stacked = {"up": 2} if gated else {}
        self.up = nn.Linear(hidden_size, intermediate_size * (2 if gated else 1), bias=bias)
        self.down = nn.Linear(intermediate_size, hidden_size, bias=bias)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Args: hidden: float [..., D]. Returns: float [..., D], before any residual."""
        raised = self.up(hidden)
        if self.gated:
            value, gate = raised.chunk(2, dim=-1)
            raised = self.activation(value) * gate
        else:
            raised = self.activation(raised)
        output: Tensor = self.down(self.dropout(raised))
        return output
