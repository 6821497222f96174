"""Disentangled attention (He et al., "DeBERTa", 2021, section 3.1): scores of contents, and of contents with relative positions.

The score of query i and key j is (Qc_i Kc_j + Qc_i Kr_δ + Kc_j Qr_δ) / sqrt(3 H), where Kr and Qr are projections of an embedding of
the relative position δ = i - j: content to content, content to position ("c2p"), position to content ("p2c").

Both terms of position are products with as many vectors as there are distances within the longest sequence, one matrix product a head for
the whole batch, and a score is read off the product along its diagonals. So nothing is gathered score by score, and no distance that
cannot occur is computed: of rows of 128 tokens 255 of DeBERTa's 512 embeddings are projected, once a layer and step.

Shapes: B batch, L length, N heads, H per head, R reach: tokens of the longest sequence, K relative positions within it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.layers.attention import SelfAttention, once_cast, taken
from model.layers.dropout import dropout as drop
from model.layers.layout import Layout, Rows
from model.layers.shared import Shared


def log_buckets(distances: Tensor, buckets: int, farthest: int) -> Tensor:
    """Relative positions in buckets: half of them a distance each, the others wider and wider (microsoft/DeBERTa, da_utils.py,
    `make_log_bucket_position`).

    Args:
        distances: int64, query's place minus key's.
        buckets: of one direction; 0 or less: every distance is its own.
        farthest: the distance that the last bucket ends before.

    Returns:
        int64 of the same shape, odd in `distances`.
    """
    if buckets <= 0:
        return distances
    middle = buckets // 2
    size = distances.abs().clamp(min=middle)  # nearer ones keep their distance
    wide = torch.log(size / middle) / torch.log(size.new_tensor((farthest - 1) / middle, dtype=torch.float32)) * (middle - 1)
    return torch.where(distances.abs() <= middle, distances, ((wide.ceil() + middle) * distances.sign()).long())


class RelativePositions(nn.Module):
    """Embeddings of relative positions, of which all layers project the same.

    Args:
        hidden_size: D.
        span: how many rows there are for each direction; what is farther has the last one's.
        buckets, farthest: as for `log_buckets`.
        longest: tokens of the longest sequence there will be.
        norm: over D.
    """

    rows: Tensor

    def __init__(self, hidden_size: int, *, span: int, buckets: int, farthest: int, longest: int, norm: nn.Module) -> None:
        super().__init__()
        self.table = nn.Embedding(2 * span, hidden_size)
        self.norm = norm
        distances = torch.arange(1 - longest, longest, device="cpu")  # never on the meta device: it is no weight
        rows = (log_buckets(distances, buckets, farthest) + span).clamp(0, 2 * span - 1)
        self.register_buffer("rows", rows, persistent=False)  # int64 [2 longest - 1], of each distance
        self._rows: list[int] = rows.tolist()

    def forward(self, reach: int) -> tuple[Tensor, Tensor]:
        """What distances below `reach` need.

        Returns:
            Their embeddings, float [K, D]; and of the distances 1 - R to R - 1 the number of each one's, int64 [2 R - 1].

        Raises:
            ValueError: sequences are longer than they were said to be.
        """
        middle = len(self._rows) // 2
        if reach > middle + 1:
            raise ValueError(f"a row of {reach} tokens is longer than max_position_embeddings ({middle + 1}); cut it")
        first, last = self._rows[middle + 1 - reach], self._rows[middle + reach - 1]
        embedded = self.norm(self.table(torch.arange(first, last + 1, device=self.rows.device)))
        return embedded, self.rows[middle + 1 - reach : middle + reach] - first


@dataclass(frozen=True, slots=True)
class PositionScores:
    """What positions add to the scores of queries and keys: `Scores` of a layout.

    Attributes:
        keys: float [2 R - 1, N, H], of key j for query i at j - i + R - 1, scaled; None: nothing depends on them.
        queries: float [2 R - 1, N, H], of query i for key j at i - j + R - 1, scaled; None: likewise.
    """

    keys: Tensor | None
    queries: Tensor | None

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        """Args: query, key: float [B, N, L, H], L at most R. Returns: float [B, N, L, L]."""
        terms = []
        if self.keys is not None:
            terms.append(_diagonals(query, self.keys))
        if self.queries is not None:
            terms.append(_diagonals(key, self.queries).transpose(-1, -2))
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]


def _diagonals(contents: Tensor, positions: Tensor) -> Tensor:
    """Row i of the products of `contents`, [B, N, L, H], with `positions`, [2 R - 1, N, H], from the one for distance -i on.

    Returns:
        float [B, N, L, L]: at (i, j) the product of content i and position R - 1 + j - i. It is a view of the products.
    """
    batch, heads, length, size = contents.shape
    width, middle = 2 * length - 1, len(positions) // 2
    near = positions[middle + 1 - length : middle + length].permute(1, 2, 0)
    products = torch.matmul(contents.transpose(0, 1).reshape(heads, batch * length, size), near)  # [N, B L, 2 L - 1]
    strides = (length * width, batch * length * width, width - 1, 1)
    return products.as_strided((batch, heads, length, length), strides, length - 1)


class DisentangledAttention(SelfAttention):
    """`SelfAttention` whose scores also depend on relative positions.

    Args:
        hidden_size, num_heads, dropout: as for `SelfAttention`.
        relative: whose embeddings are projected; another module owns them.
        terms: "c2p", "p2c", or both.
        shares: contents' own projections serve for positions, too (DeBERTa v2); else there are others.
        position_dropout: share of the embeddings' values dropped while training.
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
        self.relative = Shared(relative)
        self.terms = tuple(terms)
        self.shares = shares
        self.position_dropout = position_dropout
        if not shares and "c2p" in terms:
            self.position_key = nn.Linear(hidden_size, hidden_size)
        if not shares and "p2c" in terms:
            self.position_query = nn.Linear(hidden_size, hidden_size)

    def forward(
        self, hidden: Tensor, layout: Layout | None = None, chosen: Tensor | None = None, asking: Tensor | None = None
    ) -> Tensor:
        """Attend, everywhere or at a few positions.

        Args:
            hidden, layout, chosen: as for `SelfAttention.forward`.
            asking: float [P, D], the states at `chosen` that look at `hidden`, instead of those there.

        Returns:
            As `SelfAttention.forward`.
        """
        if layout is None:
            layout = Rows((hidden.shape[0], hidden.shape[1]))
        if asking is None:
            query, key, value = self.project(hidden)
        else:
            assert chosen is not None
            key, value = layout.once((self, "asked"), lambda: self._asked(hidden))
            states = self.split(self.query(once_cast(asking)))
            query = torch.zeros_like(key).flatten(0, -3).index_copy(0, chosen, states).view_as(key)
        query = query * (1 + len(self.terms)) ** -0.5  # beside 1 / sqrt(H)
        dropout = self.dropout if self.training else 0.0
        mixed = layout.attend(query, key, value, self.pattern, dropout, self._position_scores(layout))
        output: Tensor = self.output(taken(mixed.flatten(-2), chosen))
        return output

    def _asked(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        hidden = once_cast(hidden)
        return self.split(self.key(hidden)), self.split(self.value(hidden))

    def _position_scores(self, layout: Layout) -> PositionScores:
        embedded, rows = layout.once("relative positions", lambda: self.relative(layout.reach))
        if self.training:
            embedded = drop(embedded, self.position_dropout)
        embedded, scale = once_cast(embedded), 1 / math.sqrt(self.head_size)
        keys = queries = None
        if "c2p" in self.terms:
            projected = self.split((self.key if self.shares else self.position_key)(embedded)) * scale
            keys = projected.index_select(0, rows.flip(0))
        if "p2c" in self.terms:
            projected = self.split((self.query if self.shares else self.position_query)(embedded))
            queries = projected.index_select(0, rows) * (scale * (1 + len(self.terms)) ** -0.5)
        return PositionScores(keys, queries)
