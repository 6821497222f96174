"""What sits on top of an encoder: the pooler, and the head that names masked tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.layers.activation import ACTIVATIONS


class Pooler(nn.Module):
    """One vector a sequence: a dense layer and tanh on the first position's state (google-research/bert, modeling.py)."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Args: hidden: float [B, L, D]. Returns: float [B, D]."""
        return torch.tanh(self.dense(hidden[:, 0]))


class MaskedLMHead(nn.Module):
    """Dense, activation, norm, then a decoder whose weight is the word embedding (run_pretraining.py, `get_masked_lm_output`).

    The decoder's weight comes as an argument of `forward`, so that it has one owner, one name and one copy in a checkpoint;
    only the bias [V] lives here.
    """

    def __init__(self, hidden_size: int, vocab_size: int, *, activation: str, norm: nn.Module) -> None:
        super().__init__()
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.activation = ACTIVATIONS[activation]
        self.norm = norm
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, hidden: Tensor, decoder_weight: Tensor) -> Tensor:
        """Args: hidden: float [M, D]; decoder_weight: float [V, D]. Returns: logits, float [M, V]."""
        return functional.linear(self.norm(self.activation(self.dense(hidden))), decoder_weight, self.bias)


def initialize(module: nn.Module, standard_deviation: float) -> None:
    """Start weights from BERT's distribution, in place.

    Matrices and embeddings: a normal truncated at two standard deviations (google-research/bert, modeling.py,
    `create_initializer`; Hugging Face does not truncate). Biases: 0. LayerNorm: 1 and 0.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            _truncated_normal(part.weight, standard_deviation)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
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
