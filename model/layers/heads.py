"""What sits on top of an encoder: the pooler, and the heads that name masked tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from model.layers.activation import ACTIVATIONS
from model.layers.lazy_logits import VocabularyHead


class Pooler(nn.Module):
    """One vector a sequence: a dense layer and an activation on the first position's state.

    The activation is tanh (google-research/bert, modeling.py) where a family does not say otherwise.

    Attributes:
        reads_first: whether it looks at no other position; then most of the last layer need not be computed elsewhere.
    """

    reads_first: bool = True

    def __init__(self, hidden_size: int, activation: str = "tanh") -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.activation = ACTIVATIONS[activation]

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Args: hidden: float [B, L, D]; attention_mask: bool [B, L], for poolers that look for the last token.
        Returns: float [B, D].
        """
        del attention_mask
        return self.activation(self.dense(hidden[:, 0]))


def mean_state(hidden: Tensor, chosen: Tensor) -> Tensor:
    """The mean state of some places of each row; what stands at the others is not looked at.

    Args: hidden: float [B, L, D]; chosen: bool [B, L], one or more a row. Returns: float [B, D].
    """
    places = chosen[:, :, None]
    mean: Tensor = hidden.masked_fill(~places, 0.0).sum(dim=1) / places.sum(dim=1)
    return mean


class MaskedLMHead(VocabularyHead):
    """Dense, activation, norm, then a decoder whose weight is the word embedding (run_pretraining.py, `get_masked_lm_output`).

    The decoder's weight comes as an argument of `forward`, so that it has one owner, one name and one copy in a checkpoint;
    only the bias [V] lives here.

    Args:
        hidden_size: D, of the states.
        size: E, of the word embeddings.
        norm: over E.
    """

    per_piece = ("bias",)  # parameters with a row for each piece of the vocabulary

    def __init__(self, hidden_size: int, size: int, vocab_size: int, *, activation: str, norm: nn.Module) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, size)
        self.activation = ACTIVATIONS[activation]
        self.norm = norm
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, hidden: Tensor, decoder_weight: Tensor) -> Any:
        """Args: hidden: float [M, D]; decoder_weight: float [V, E]. Returns: logits, float [M, V]."""
        return self.named(self.norm(self.activation(self.dense(hidden))), decoder_weight, self.bias)


class SpanBoundaryHead(VocabularyHead):
    """Names a masked token from the states on both sides of its span and its place in it (Joshi et al., SpanBERT, 2020, 2.2).

    Two layers, each dense, GELU and norm, on [left; right; position]; the decoder is the word embedding.

    Args:
        positions: how many places in a span have an embedding; what lies beyond has the last one's.
        position_size: the width of these embeddings.
    """

    per_piece = ("bias",)

    def __init__(
        self, hidden_size: int, vocab_size: int, *, positions: int, position_size: int, activation: str, eps: float
    ) -> None:
        super().__init__()
        self.position = nn.Embedding(positions, position_size)
        self.first = nn.Linear(2 * hidden_size + position_size, hidden_size)
        self.first_norm = nn.LayerNorm(hidden_size, eps=eps)
        self.second = nn.Linear(hidden_size, hidden_size)
        self.second_norm = nn.LayerNorm(hidden_size, eps=eps)
        self.activation = ACTIVATIONS[activation]
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, left: Tensor, right: Tensor, place: Tensor, decoder_weight: Tensor) -> Any:
        """Args: left, right: float [M, D]; place: int64 [M], from 0; decoder_weight: float [V, D]. Returns: logits [M, V]."""
        position = self.position(place.clamp(max=self.position.num_embeddings - 1))
        hidden = self.first_norm(self.activation(self.first(torch.cat([left, right, position], dim=-1))))
        hidden = self.second_norm(self.activation(self.second(hidden)))
        return self.named(hidden, decoder_weight, self.bias)


def initialize(module: nn.Module, standard_deviation: float) -> None:
    """Start weights from BERT's distribution, in place.

    Matrices and embeddings: a normal truncated at two standard deviations (google-research/bert, modeling.py,
    `create_initializer`; Hugging Face does not truncate). Biases: 0. LayerNorm: 1 and 0.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding | nn.Conv1d):
            _truncated_normal(part.weight, standard_deviation)
        if isinstance(part, nn.Linear | nn.Conv1d) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


@torch.no_grad()
def _truncated_normal(tensor: Tensor, standard_deviation: float) -> None:
    """Draw again what falls outside two deviations, as TensorFlow's `truncated_normal` does. Meta tensors are left alone."""
    if tensor.is_meta:
        return
    values = tensor.normal_().view(-1)
    outside = (values.abs() > 2.0).nonzero().squeeze(1)
    while len(outside):
        drawn = torch.randn(len(outside), dtype=values.dtype, device=values.device)
        values[outside] = drawn
        outside = outside[drawn.abs() > 2.0]
    tensor.mul_(standard_deviation)
