"""From token ids to the first hidden states: word + position + segment, normalised, with dropout."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from model.layers.dropout import Dropout


class Table(nn.Embedding):
    """An embedding table, which in a compiled graph on a CPU is looked up by an operation of its own.

    Of torch's own, torch.compile fuses the gradient, which adds to rows in whatever order, with everything around it, and what it
    makes of that runs on one thread: 15 ms of a BERT-mini's 200.
    """

    def forward(self, ids: Tensor) -> Tensor:
        """Args: ids: int64, any shape. Returns: float [..., E]."""
        if torch.compiler.is_compiling() and ids.device.type == "cpu":
            found: Tensor = _looked_up(self.weight, ids)
            return found
        return super().forward(ids)


@torch.library.custom_op("cloze::looked_up", mutates_args=())
def _looked_up(weight: Tensor, ids: Tensor) -> Tensor:
    return embedding(ids, weight)


@torch.library.custom_op("cloze::looked_up_backward", mutates_args=())
def _looked_up_backward(gradient: Tensor, ids: Tensor, rows: int) -> Tensor:
    return cast(Tensor, torch.ops.aten.embedding_dense_backward(gradient, ids, rows, -1, False))


@_looked_up.register_fake
def _(weight: Tensor, ids: Tensor) -> Tensor:
    return weight.new_empty(*ids.shape, weight.shape[1])


@_looked_up_backward.register_fake
def _(gradient: Tensor, ids: Tensor, rows: int) -> Tensor:
    return gradient.new_empty(rows, gradient.shape[-1])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.rows = len(inputs[0])


def _backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return _looked_up_backward(gradient, context.saved_tensors[0], context.rows), None


_looked_up.register_autograd(_backward, setup_context=_keep)


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

    per_piece: tuple[str, ...] = ("word.weight",)  # parameters with a row for each piece of the vocabulary

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
        self.word = Table(vocab_size, size)
        self.position = nn.Embedding(position_offset + max_positions, size) if max_positions else None
        self.segment = Table(segments, size) if segments else None
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
