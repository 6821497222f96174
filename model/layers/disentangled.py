"""DeBERTa: disentangled attention, a convolution, and the enhanced mask decoder."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.model.layers.attention import SelfAttention, gather_positions
from cloze.model.layers.cpu import Dropout, Linear, ModuleReference, autocast_input
from cloze.model.layers.cpu import dropout as drop
from cloze.model.layers.encoder import EncoderLayer
from cloze.model.layers.layout import BatchLayout

# Disentangled attention (He et al., "DeBERTa", 2021, section 3.1): content and relative-position
# scores.


def log_buckets(distances: Tensor, buckets: int, farthest: int) -> Tensor:
    """Return the bucket of each relative position: exact for near ones, logarithmic for far ones.

    Source: microsoft/DeBERTa, da_utils.py, `make_log_bucket_position`.

    Args:
        distances: int64, query position minus key position.
        buckets: buckets per direction; 0 or less: one per distance.
        farthest: end of the last bucket, exclusive.

    Returns:
        int64 of the same shape, odd in `distances`.
    """
    if buckets <= 0:
        return distances
    middle = buckets // 2
    size = distances.abs().clamp(min=middle)  # smaller distances are exact
    wide = (
        torch.log(size / middle)
        / torch.log(size.new_tensor((farthest - 1) / middle, dtype=torch.float32))
        * (middle - 1)
    )
    return torch.where(
        distances.abs() <= middle, distances, ((wide.ceil() + middle) * distances.sign()).long()
    )


class RelativePositions(nn.Module):
    """Embeddings of relative positions, shared by all layers.

    Args:
        hidden_size: D.
        span: embeddings per direction; larger distances use the last one.
        buckets, farthest: as for `log_buckets`.
        longest: maximum length of a sequence.
    """

    rows: Tensor

    def __init__(
        self,
        hidden_size: int,
        *,
        span: int,
        buckets: int,
        farthest: int,
        longest: int,
        norm: nn.Module,
    ) -> None:
        super().__init__()
        self.table = nn.Embedding(2 * span, hidden_size)
        self.norm = norm
        # On the CPU, not on the meta device: distances are no weights.
        distances = torch.arange(1 - longest, longest, device="cpu")
        rows = (log_buckets(distances, buckets, farthest) + span).clamp(0, 2 * span - 1)
        self.register_buffer(
            "rows", rows, persistent=False
        )  # int64 [2 longest - 1], row of each distance
        self._rows: list[int] = rows.tolist()

    def forward(self, reach: int) -> tuple[Tensor, Tensor]:
        """Return the embeddings of distances below `reach`.

        Returns:
            Embeddings, float [K, D]; row of each distance from 1 - reach to reach - 1, int64 [2
            reach - 1].

        Raises:
            ValueError: `reach` is above `longest`.
        """
        middle = len(self._rows) // 2
        if reach > middle + 1:
            raise ValueError(
                f"a row of {reach} tokens is longer than max_position_embeddings ({middle + 1}); "
                f"cut it"
            )
        # From the list: reading the buffer would make the host wait for the device.
        first_row, last_row = self._rows[middle + 1 - reach], self._rows[middle + reach - 1]
        embedded = self.norm(
            self.table(torch.arange(first_row, last_row + 1, device=self.rows.device))
        )
        return embedded, self.rows[middle + 1 - reach : middle + reach] - first_row


@dataclass(frozen=True, slots=True)
class PositionScores:
    """Position terms of attention scores; a `Scores` function of a layout.

    Attributes:
        keys: float [2 R - 1, N, H], scaled, of key j for query i at j - i + R - 1; None for no
            term.
        queries: float [2 R - 1, N, H], scaled, of query i for key j at i - j + R - 1; None for no
            term.
    """

    keys: Tensor | None
    queries: Tensor | None

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """Return scores [B, N, L, L] for query and key, float [B, N, L, H], L at most R."""
        terms = []
        if self.keys is not None:
            terms.append(diagonals(query, self.keys))
        if self.queries is not None:
            # Key j meets query i at i - j + R - 1; transposed, that is query by key again.
            terms.append(diagonals(key, self.queries).transpose(-1, -2))
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]


def diagonals(contents: Tensor, positions: Tensor) -> Tensor:
    """Return products of `contents`, [B, N, L, H], and `positions`, [2 R - 1, N, H], by distance.

    Returns:
        float [B, N, L, L], a view: at (i, j) the product of content i and position R - 1 + j - i.
    """
    batch, heads, length, size = contents.shape
    width, middle = 2 * length - 1, len(positions) // 2
    in_range = positions[middle + 1 - length : middle + length].permute(1, 2, 0)
    # Shape: [N, B L, 2 L - 1].
    products = torch.matmul(contents.transpose(0, 1).reshape(heads, batch * length, size), in_range)
    # Content i begins one position earlier than i - 1, so the next row is width - 1 values on. A
    # gather would cost a scatter that accumulates in the backward pass.
    strides = (length * width, batch * length * width, width - 1, 1)
    return products.as_strided((batch, heads, length, length), strides, length - 1)


class DisentangledAttention(SelfAttention):
    """Self-attention whose scores also depend on relative positions.

    Args:
        hidden_size, num_heads, dropout: as for `SelfAttention`.
        relative: position embeddings, owned by another module.
        terms: "c2p", "p2c", or both.
        shares: project positions with the content's matrices (DeBERTa v2), else with separate ones.
        position_dropout: dropout of the position embeddings.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        dropout: float,
        relative: RelativePositions,
        terms: Sequence[str],
        shares: bool,
        position_dropout: float,
    ) -> None:
        super().__init__(hidden_size, num_heads, dropout=dropout)
        self.relative = ModuleReference(relative)
        self.terms = tuple(terms)
        self.shares = shares
        self.position_dropout = position_dropout
        if not shares and "c2p" in terms:
            self.position_key = Linear(hidden_size, hidden_size)
        if not shares and "p2c" in terms:
            self.position_query = Linear(hidden_size, hidden_size)

    def forward(
        self,
        hidden: Tensor,
        layout: BatchLayout | None = None,
        positions: Tensor | None = None,
        asking: Tensor | None = None,
    ) -> Tensor:
        """Compute attention at all positions or at chosen ones.

        Args:
            hidden, layout, positions: as for `SelfAttention.forward`.
            asking: float [P, D], queries at `positions` instead of `hidden`.

        Returns:
            As for `SelfAttention.forward`.
        """
        if layout is None:
            layout = BatchLayout((hidden.shape[0], hidden.shape[1]))
        if asking is None:
            query, key, value = self.project(hidden)
        else:
            assert positions is not None
            # Both steps of the decoder ask this layer for the same states.
            if self not in layout.asked:
                layout.asked[self] = self.key_and_value(hidden)
            key, value = layout.asked[self]
            states = self.split(self.query(autocast_input(asking)))
            query = (
                # In the arrangement of all tokens, as layouts want it; the other queries are not
                # read.
                torch.zeros_like(key).flatten(0, -3).index_copy(0, positions, states).view_as(key)
            )
        query = query * (1 + len(self.terms)) ** -0.5  # in addition to 1 / sqrt(H)
        dropout = self.dropout if self.training else 0.0
        mixed = layout.attend(
            query, key, value, self.pattern, dropout, self._position_scores(layout)
        )
        output: Tensor = self.output(gather_positions(mixed.flatten(-2), positions))
        return output

    def _position_scores(self, layout: BatchLayout) -> PositionScores:
        if layout.distances is None:
            layout.distances = self.relative(layout.max_distance)
        embedded, rows = layout.distances
        if self.training:
            embedded = drop(embedded, self.position_dropout)
        embedded, scale = autocast_input(embedded), 1 / math.sqrt(self.head_size)
        keys = queries = None
        if "c2p" in self.terms:
            projected = (
                self.split((self.key if self.shares else self.position_key)(embedded)) * scale
            )
            # `rows` are by i - j, and keys are asked by j - i.
            keys = projected.index_select(0, rows.flip(0))
        if "p2c" in self.terms:
            projected = self.split((self.query if self.shares else self.position_query)(embedded))
            # Only the query was scaled for the number of terms, and this term multiplies the key.
            queries = projected.index_select(0, rows) * (scale * (1 + len(self.terms)) ** -0.5)
        return PositionScores(keys, queries)


class Convolution(nn.Conv1d):
    """Convolution that keeps the length; positions outside a sequence and padding are zeros.

    Args:
        hidden_size: D.
        kernel_size: odd number of tokens, the token itself included.
    """

    def __init__(self, hidden_size: int, kernel_size: int) -> None:
        super().__init__(hidden_size, hidden_size, kernel_size)

    def forward(self, hidden: Tensor, layout: BatchLayout | None = None) -> Tensor:
        """Convolve float [B, L, D], or [T, D] in a layout without padding; keeps the shape."""
        size = self.kernel_size[0]
        if layout is not None and layout.flat_positions is None and layout.real is not None:
            hidden = hidden * layout.real[..., None]
        neighbours = [self._shifted(hidden, layout, offset - size // 2) for offset in range(size)]
        # The kernel's weight is [D, D, K]; its inputs are in the order of the neighbours.
        return functional.linear(
            torch.cat(neighbours, dim=-1), self.weight.transpose(1, 2).flatten(1), self.bias
        )

    def _shifted(self, hidden: Tensor, layout: BatchLayout | None, offset: int) -> Tensor:
        """Return the state `offset` tokens later in each token's sequence, zeros outside."""
        if not offset:
            return hidden
        token_dimension = hidden.dim() - 2  # dimension of the tokens
        shifted = hidden.roll(-offset, token_dimension)
        positions = None if layout is None else layout.positions
        if positions is None:
            positions = torch.arange(hidden.shape[token_dimension], device=hidden.device)
        # False across sequence borders.
        same_sequence = positions.roll(-offset, -1) == positions + offset
        return torch.where(same_sequence[..., None], shifted, 0.0)


class ConvResidual(nn.Module):
    """Convolution of a layer's input, added to its output (microsoft/DeBERTa, `ConvLayer`).

    Args:
        hidden_size, kernel_size: as for `Convolution`.
        activation: activation of the convolution's result.
        dropout: dropout before the activation.
    """

    def __init__(
        self,
        hidden_size: int,
        kernel_size: int,
        *,
        activation: Callable[[Tensor], Tensor],
        dropout: float,
        norm: nn.Module,
    ) -> None:
        super().__init__()
        self.convolution = Convolution(hidden_size, kernel_size)
        self.activation = activation
        self.dropout = Dropout(dropout)
        self.norm = norm

    def forward(
        self,
        entering: Tensor,
        leaving: Tensor,
        layout: BatchLayout | None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return float [..., D] like `entering`, or [P, D] at `positions`, as `leaving`."""
        convolved = gather_positions(self.convolution(entering, layout), positions)
        normed: Tensor = self.norm(leaving + self.activation(self.dropout(convolved)))
        return normed


class DebertaLayer(EncoderLayer):
    """Layer with disentangled attention; the first one may have a parallel convolution.

    Args:
        convolved: adds the convolution of the layer's input to its output.
    """

    def __init__(
        self,
        attention: DisentangledAttention,
        *others: Any,
        convolved: ConvResidual | None,
        **options: Any,
    ) -> None:
        super().__init__(attention, *others, **options)
        self.convolved = convolved

    def forward(
        self, hidden: Tensor, layout: BatchLayout | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Compute the layer; see `EncoderLayer.forward`."""
        attended = super().forward(hidden, layout, positions)
        if self.convolved is None:
            return attended
        output: Tensor = self.convolved(hidden, attended, layout, positions)
        return output

    def forward_queries(
        self, hidden: Tensor, layout: BatchLayout, positions: Tensor, asking: Tensor
    ) -> Tensor:
        """Compute the layer, without a convolution, for given queries at the chosen positions.

        Args:
            hidden, layout, positions: as for `forward`.
            asking: float [P, D], queries at `positions`.

        Returns:
            float [P, D].
        """
        attended: Tensor = self.attention(hidden, layout, positions, asking)
        return self.finished(asking, attended)


DECODER_STEPS = 2  # passes of the enhanced mask decoder through the last layer


class EnhancedMaskDecoder(nn.Module):
    """Decoder of masked tokens: the last layer with queries that contain absolute positions.

    Args:
        hidden_size: D.
        max_positions: maximum L.
    """

    def __init__(self, hidden_size: int, max_positions: int) -> None:
        super().__init__()
        self.position = nn.Embedding(max_positions, hidden_size)

    def forward(
        self, last: DebertaLayer, hidden: Tensor, layout: BatchLayout, positions: Tensor
    ) -> Tensor:
        """Return decoded states, float [P, D].

        Args:
            hidden: float [..., D], input of `last`.
            positions: int64 [P], flat positions.
        """
        token_positions = layout.positions
        row_positions = (
            positions % hidden.shape[-2]
            if token_positions is None
            else token_positions.flatten().index_select(0, positions)
        )
        states: Tensor = gather_positions(hidden, positions) + self.position(row_positions)
        for _ in range(DECODER_STEPS):
            states = last.forward_queries(hidden, layout, positions, states)
        return states
