"""Two-stream attention with relative positions and memory (Yang et al., "XLNet", 2019, section 2).

Positions and memory are those of Transformer-XL (Dai et al., 2019, section 3): scores add terms of
content, distance and segment, each with a bias of its own on the query. The *content stream* is a
token's state; the *query stream* knows a target's position and what precedes it in the order of
prediction, and not the target itself. Both have the same weights, so layers run over both at once.

Shapes: B batch, L length, D model, N heads, H per head, P targets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cloze.core.errors import UsageError
from cloze.model.layers.attention import SelfAttention, gather_positions
from cloze.model.layers.cpu import Linear, autocast_input
from cloze.model.layers.cpu import dropout as drop
from cloze.model.layers.disentangled import diagonals
from cloze.model.layers.encoder import Encoder
from cloze.model.layers.layout import BatchLayout, PaddedLayout, additive


@dataclass(eq=False, kw_only=True)
class TwoStreamLayout(PaddedLayout):
    """Padded rows; with targets, states are both streams, [B * L + P, D].

    Args:
        shape, real, maps: as for `PaddedLayout`.
        segments: int64 [B, L], segment of each token; None: one segment.
        order: int64 [B, L], `Batch.target_order`; None: every token sees every other.
        targets: int64 [P], flat positions in B * L of the query stream.
    """

    segments: Tensor | None = None
    order: Tensor | None = None
    targets: Tensor | None = None


class RelativeAttention(SelfAttention):
    """Self-attention by content, distance and segment, of the content stream or of both.

    Args:
        hidden_size, num_heads, dropout: as for `SelfAttention`.
        position_dropout: dropout of the sinusoids of the distances.
    """

    def __init__(
        self, hidden_size: int, num_heads: int, *, dropout: float, position_dropout: float
    ) -> None:
        super().__init__(hidden_size, num_heads, dropout=dropout, bias=False)
        self.position_dropout = position_dropout
        self.position = Linear(hidden_size, hidden_size, bias=False)
        self.segment = nn.Embedding(2, hidden_size)  # of a key in the query's segment; in another
        self.content_bias, self.position_bias, self.segment_bias = (
            nn.Parameter(torch.zeros(hidden_size)) for _ in range(3)
        )

    def forward(
        self, hidden: Tensor, layout: BatchLayout | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Compute attention; arguments and result as for `SelfAttention.forward`.

        Raises:
            UsageError: the batch is packed or unpadded.
        """
        if not isinstance(layout, TwoStreamLayout):
            raise UsageError(
                f"xlnet models read padded rows of one text each, and not packed ones "
                f"({type(layout).__name__}); make the dataset with --recipe roberta or spanbert"
            )
        states, targets = autocast_input(hidden), layout.targets
        content, asking = states, None
        if targets is not None:
            content = states[: -len(targets)].view(*layout.shape, states.shape[-1])
            asking = states[-len(targets) :]
        known = content
        if layout.order is not None:  # memory has no gradient
            known = torch.where((layout.order < 0)[..., None], content.detach(), content)
        query = self.split(self.query(content))
        key, value = self.split(self.key(known)), self.split(self.value(known))
        distance = self.split(self.position(self._sinusoids(layout, query)))
        mixed = self._mixed(query, (key, value, distance), layout, itself=False)
        if asking is not None and targets is not None:
            asked = self.split(self.query(asking))
            # Queries at the targets' places, so that distances are read as in the content stream.
            asked = torch.zeros_like(query).flatten(0, 1).index_copy(0, targets, asked)
            queried = self._mixed(asked.view_as(query), (key, value, distance), layout, itself=True)
            mixed = torch.cat([mixed.flatten(0, 1), gather_positions(queried, targets)])
        output: Tensor = self.output(gather_positions(mixed, positions))
        return output

    def _sinusoids(self, layout: TwoStreamLayout, query: Tensor) -> Tensor:
        """Return sinusoids of the distances from L - 1 down to 1 - L, float [2 L - 1, D]."""
        if layout.shared.sinusoids is None:
            size, length = self.query.in_features, query.shape[1]
            even = torch.arange(0, size, 2, device=query.device, dtype=torch.float32)
            # `diagonals` reads row L - 1 + j - i, and that has the distance i - j.
            distances = torch.arange(length - 1, -length, -1, device=query.device)
            angle = distances[:, None] * (1 / 10000 ** (even / size))
            sinusoids = torch.cat([angle.sin(), angle.cos()], dim=-1)
            # Dropped once a pass: all layers read the same ones, as in transformers' XLNet.
            dropped = drop(sinusoids, self.position_dropout if self.training else 0.0)
            layout.shared.sinusoids = dropped.to(query.dtype)
        return layout.shared.sinusoids

    def _mixed(
        self,
        query: Tensor,
        keys: tuple[Tensor, Tensor, Tensor],
        layout: TwoStreamLayout,
        *,
        itself: bool,
    ) -> Tensor:
        """Mix values for queries, float [B, L, N, H]; return float [B, L, N H].

        Args:
            keys: keys and values, float [B, L, N, H]; projected distances, [2 L - 1, N, H].
            itself: hide the target itself: the query stream.
        """
        key, value, distance = keys
        scale, ids = 1 / math.sqrt(self.head_size), layout.segments

        def biased(bias: Tensor) -> Tensor:
            return (query + self.split(bias)).to(query.dtype)

        def scores(_query: Tensor, _key: Tensor) -> Tensor:
            # The kernel divides scores of content by the root of H; added terms come divided.
            total = diagonals((biased(self.position_bias) * scale).transpose(1, 2), distance)
            if ids is not None:
                other = (ids[:, :, None] != ids[:, None])[:, None]
                asked = (biased(self.segment_bias) * scale).transpose(1, 2)
                terms = asked @ self.split(self.segment.weight).permute(1, 2, 0).to(asked.dtype)
                total = total + torch.where(other, terms[..., 1:], terms[..., :1])
            if layout.order is None:
                return total
            own, others = layout.order[:, :, None], layout.order[:, None]
            # The query stream reads z_<t, the content stream z_<=t (section 2.3).
            visible = others < own if itself else others <= own
            return total + additive(visible[:, None], total.dtype)

        dropout, content = self.dropout if self.training else 0.0, biased(self.content_bias)
        return layout.attend(content, key, value, self.pattern, dropout, scores).flatten(-2)


class TwoStreamEncoder(Encoder):
    """Encoder of padded rows; `predict` runs both streams.

    Its embeddings have a module `target`, an embedding of one row: where the query stream begins.
    """

    supports_unpadding = False

    def rows(
        self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None = None
    ) -> TwoStreamLayout:
        shape = (input_ids.shape[0], input_ids.shape[1])
        return TwoStreamLayout(shape, attention_mask, segments=token_type_ids)

    def predict(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor,
        order: Tensor,
        positions: Tensor,
    ) -> Tensor:
        """Return the last states of the query stream, float [P, D].

        Args:
            input_ids, attention_mask, token_type_ids: as for `Encoder.forward`; targets have their
                own tokens.
            order: int64 [B, L], `Batch.target_order`.
            positions: int64 [P], flat positions of the targets.
        """
        layout = self.rows(input_ids, attention_mask, token_type_ids)
        layout.order, layout.targets = order, positions
        hidden = self.embeddings(input_ids, token_type_ids).flatten(0, 1)
        target = self.embeddings.get_submodule("target")
        asking = self.embeddings.dropout(target(torch.zeros_like(positions)))
        asked = torch.arange(len(hidden), len(hidden) + len(positions), device=hidden.device)
        return self.run(torch.cat([hidden, asking]), layout, asked)
