"""From token ids to the first hidden states: word + position + segment, normalised, with dropout."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import embedding

from model.layers.dropout import Dropout


class Embeddings(nn.Module):
    """The sum of word, learned absolute position and segment embeddings (Devlin et al., 2019, Figure 2).

    Args:
        size: E, the width of the embeddings.
        max_positions: the longest L; 0: no position embeddings.
        position_offset: rows of the position table before that of the first token (RoBERTa's: padding id + 1).
        segments: how many; of one, the ids are not looked at. 0: no segment embeddings.
        norm: applied to the sum.
        dropout: share of the sum's values dropped while training.
        projection: from E to the width of the layers, after the dropout (ALBERT, ELECTRA-small).
    """

    def __init__(
        self,
        vocab_size: int,
        size: int,
        *,
        max_positions: int,
        segments: int,
        norm: nn.Module,
        dropout: float,
        position_offset: int = 0,
        projection: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.position_offset = position_offset
        self.word = nn.Embedding(vocab_size, size)
        self.position = nn.Embedding(position_offset + max_positions, size) if max_positions else None
        self.segment = nn.Embedding(segments, size) if segments else None
        self.norm = norm
        self.dropout = Dropout(dropout)
        self.projection = projection

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """The first hidden states, float [..., D]. Args: as for `unprojected`."""
        hidden = self.unprojected(input_ids, token_type_ids, positions)
        return hidden if self.projection is None else self.projection(hidden)

    def unprojected(self, input_ids: Tensor, token_type_ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """What the embeddings sum up to, normalised, float [..., E].

        Args:
            input_ids, token_type_ids: int64 [B, L], or [T] of any arrangement.
            positions: int64 of the same shape, each token's in its sequence, below `max_positions`; None: 0 to L - 1 in every row.
        """
        hidden: Tensor = self.word(input_ids)
        if self.segment is not None:
            one = self.segment.num_embeddings == 1
            hidden = hidden + (self.segment.weight[0] if one else self.segment(token_type_ids))
        if self.position is not None:
            table, first = self.position.weight, self.position_offset
            length = input_ids.shape[-1]
            # not by calling the module: ranks of ZeRO-3 must run the same modules, whether padding was left out or not
            hidden = hidden + (table[first : first + length] if positions is None else embedding(positions + first, table))
        normed: Tensor = self.dropout(self.norm(hidden))
        return normed
