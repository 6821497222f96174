"""Embeddings: word, position and segment, normalized, with dropout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from cloze.model.layers.cpu import Dropout, ModuleReference, autocast_input, embedding_lookup


class EmbeddingTable(nn.Embedding):
    """Embedding table with a custom lookup in compiled graphs on a CPU.

    torch.compile fuses the gradient of torch's own lookup with its surroundings, and the result
    runs on one thread: 15 ms of a BERT-mini's 200.
    """

    def forward(self, ids: Tensor) -> Tensor:
        """Look up ids, int64 of any shape; return float [..., E]."""
        if torch.compiler.is_compiling() and ids.device.type == "cpu":
            embedded: Tensor = embedding_lookup(self.weight, ids)
            return embedded
        return super().forward(ids)


class Embeddings(nn.Module):
    """Sum of word, learned position and segment embeddings (Devlin et al., 2019, Figure 2).

    Args:
        size: E, width of the embeddings.
        max_positions: maximum L; 0: no position embeddings.
        segments: number of segments; with 1, ids are ignored; with 0, no segment embeddings.
        position_offset: rows of the position table before the first position (RoBERTa: padding id +
            1).
        projection: from E to D, after the dropout (ALBERT, ELECTRA-small).
        words: another network's word embeddings, to share instead of an own table.
        scale: factor of the word embeddings (Vaswani et al., 2017, 3.4: the square root of D).
        sinusoidal: positions are fixed sines and cosines of any length (section 3.5).
    """

    per_piece: tuple[str, ...] = ("word.weight",)  # parameters with one row per vocabulary token

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
        words: nn.Module | None = None,
        scale: float = 1.0,
        sinusoidal: bool = False,
    ) -> None:
        super().__init__()
        self.position_offset, self.scale, self.sinusoidal = position_offset, scale, sinusoidal
        # A reference has no weight: only the owner's table is an output matrix.
        self.word = (
            EmbeddingTable(vocab_size, size)
            if words is None
            else cast(EmbeddingTable, ModuleReference(words))
        )
        if words is not None:
            self.per_piece = ()
        self.position = (
            nn.Embedding(position_offset + max_positions, size)
            if max_positions and not sinusoidal
            else None
        )
        self.segment = EmbeddingTable(segments, size) if segments else None
        self.norm = norm
        self.dropout = Dropout(dropout)
        self.projection = projection

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        positions: Tensor | None = None,
        projected: bool = True,
    ) -> Tensor:
        """Return the first hidden states, float [..., D].

        Args:
            input_ids, token_type_ids: int64 [B, L], or [T] in any layout.
            positions: int64 of the same shape, position in the sequence; None: 0 to L - 1 in every
                row.
            projected: False for the normalized sum alone, float [..., E].
        """
        hidden: Tensor = self.word(input_ids)
        if self.scale != 1.0:
            hidden = hidden * self.scale
        if self.sinusoidal:
            hidden = hidden + sinusoids(input_ids, positions, hidden.shape[-1])
        if self.segment is not None:
            single_segment = self.segment.num_embeddings == 1
            hidden = hidden + (
                self.segment.weight[0] if single_segment else self.segment(token_type_ids)
            )
        if self.position is not None:
            table, start = self.position.weight, self.position_offset
            length = input_ids.shape[-1]
            # No call of the module: ranks of ZeRO-3 must run the same modules with and without
            # padding.
            hidden = hidden + (
                table[start : start + length]
                if positions is None
                else embedding(positions + start, table)
            )
        normed: Tensor = self.dropout(autocast_input(self.norm(hidden), stream=True))
        if projected and self.projection is not None:
            normed = self.projection(normed)
        return normed


def sinusoids(input_ids: Tensor, positions: Tensor | None, size: int) -> Tensor:
    """Return fixed position embeddings, fp32 [..., L, E]: sines, then cosines (tensor2tensor).

    Value i of a half is that of position / 10000^(2i / E). Arguments as for `Embeddings.forward`.
    """
    if positions is None:
        positions = torch.arange(input_ids.shape[-1], device=input_ids.device)
    even = torch.arange(0, size, 2, device=input_ids.device, dtype=torch.float32)
    angle = positions[..., None].float() / 10000.0 ** (even / size)
    # The paper's section 3.5 interleaves them: the same values in another order.
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


class ProjectedEmbeddings(nn.Module):
    """Another encoder's embeddings with an own projection."""

    def __init__(self, owner: Embeddings, projection: nn.Module) -> None:
        super().__init__()
        self._owner = (owner,)  # a tuple, so that torch does not register it
        self.projection = projection

    @property
    def word(self) -> nn.Embedding:
        return self._owner[0].word

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor, positions: Tensor | None = None
    ) -> Tensor:
        embedded = self._owner[0].forward(input_ids, token_type_ids, positions, projected=False)
        projected: Tensor = self.projection(embedded)
        return projected


# Gradient-disentangled embedding sharing, GDES (He et al., "DeBERTaV3", 2023, section 3.2).

DELTA = ".delta"  # suffix of parameters that are added to `….weight`


class GdesEmbedding(EmbeddingTable):
    """Table of one network, read by another as `weight` + `delta`; both float [V, E]."""

    def __init__(self, rows: int, size: int) -> None:
        super().__init__(rows, size)
        self.delta = nn.Parameter(torch.zeros(rows, size))

    def forward(self, ids: Tensor, moved: bool = True) -> Tensor:
        """Look up ids, int64; with `moved`, add `delta`, which alone has a gradient."""
        embedded = embedding(ids, self.weight)
        # sg(E_G) + E_delta: the discriminator's gradient must not move the generator's table.
        return embedded.detach() + embedding(ids, self.delta) if moved else embedded


class GdesEmbeddingView(nn.Module):
    """View of a `GdesEmbedding` for the network that trains `weight`; no own parameters."""

    def __init__(self, owner: GdesEmbedding) -> None:
        super().__init__()
        self._owner = (owner,)  # a tuple, so that torch does not register it

    @property
    def weight(self) -> Tensor:
        """Word embeddings, float [V, E]."""
        return self._owner[0].weight

    def forward(self, ids: Tensor) -> Tensor:
        """Look up ids, int64 of any shape; return float [..., E]."""
        embedded: Tensor = self._owner[0](ids, moved=False)
        return embedded


def merged(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights by name, with every `delta` added to its table and removed."""
    weights = {name: tensor for name, tensor in state.items() if not name.endswith(DELTA)}
    for name in state.keys() - weights.keys():
        table = name.removesuffix(DELTA) + ".weight"
        weights[table] = weights[table] + state[name]
    return weights
