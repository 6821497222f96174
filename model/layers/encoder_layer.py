"""One encoder layer, assembled from parts that the family injects."""

from __future__ import annotations

from torch import Tensor, nn

from model.layers.attention import taken
from model.layers.dropout import Dropout
from model.layers.layout import Layout


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each with a residual, dropout, and a norm before it or after the sum.

    A family says where it normalises by the norms it passes; those it does not pass do nothing and own no parameters.

    Args:
        attention: maps (hidden, layout) to the shape of hidden.
        feed_forward: maps hidden to its shape.
        dropout: share of each block's output dropped before it is added, while training.
        attention_input_norm, feed_forward_input_norm: applied before the block (pre-norm).
        attention_norm, feed_forward_norm: applied to the sum after the block (post-norm, as in BERT).
    """

    def __init__(
        self,
        attention: nn.Module,
        feed_forward: nn.Module,
        *,
        dropout: float,
        attention_input_norm: nn.Module | None = None,
        attention_norm: nn.Module | None = None,
        feed_forward_input_norm: nn.Module | None = None,
        feed_forward_norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.attention_input_norm = attention_input_norm or nn.Identity()
        self.attention = attention
        self.attention_norm = attention_norm or nn.Identity()
        self.feed_forward_input_norm = feed_forward_input_norm or nn.Identity()
        self.feed_forward = feed_forward
        self.feed_forward_norm = feed_forward_norm or nn.Identity()
        self.dropout = Dropout(dropout)

    def forward(self, hidden: Tensor, layout: Layout | None = None, chosen: Tensor | None = None) -> Tensor:
        """Run the layer, for every position or for a few.

        Every position takes part as a key and value of the attention; where `chosen` is given, all that follows it (output
        projection, sums, norms, feed-forward) is computed at the chosen positions alone.

        Args:
            hidden, layout, chosen: as for `SelfAttention.forward`.

        Returns:
            The shape of `hidden`, or [P, D] at `chosen`.
        """
        attended = self.attention(self.attention_input_norm(hidden), layout, chosen)
        return self.finished(taken(hidden, chosen), attended)

    def finished(self, before: Tensor, attended: Tensor) -> Tensor:
        """What follows the attention. Args: before, attended: float [..., D], what asked and what it got. Returns: the same shape."""
        hidden = self.attention_norm(before + self.dropout(attended))
        transformed = self.feed_forward(self.feed_forward_input_norm(hidden))
        output: Tensor = self.feed_forward_norm(hidden + self.dropout(transformed))
        return output
