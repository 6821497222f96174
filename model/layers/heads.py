"""Heads on the vocabulary, replaced-token head, poolers, and initialization of weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cloze.model.layers.cpu import ACTIVATIONS, Linear, ModuleReference
from cloze.model.layers.cross_entropy import VocabularyHead


class Pooler(nn.Module):
    """Pooler: dense layer and activation on the first position's state.

    The default activation is tanh (google-research/bert, modeling.py).

    Attributes:
        reads_first: reads only the first position, so most of the last layer is computed only
            there.
    """

    reads_first: bool = True

    def __init__(self, hidden_size: int, activation: str = "tanh") -> None:
        super().__init__()
        self.dense = Linear(hidden_size, hidden_size)
        self.activation = ACTIVATIONS[activation]

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Map hidden, float [B, L, D], to float [B, D]; subclasses may use the attention mask."""
        del attention_mask
        return self.activation(self.dense(hidden[:, 0]))


def mean_state(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the mean state at chosen positions, float [B, D].

    Args:
        hidden: float [B, L, D]; values at other positions are ignored.
        mask: bool [B, L], at least one per row.
    """
    selected = mask[:, :, None]
    mean: Tensor = hidden.masked_fill(~selected, 0.0).sum(dim=1) / selected.sum(dim=1)
    return mean


class MeanState(nn.Module):
    """Pooler without weights: the mean state of the real tokens."""

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Map hidden, float [B, L, D], and attention_mask, bool [B, L], to float [B, D]."""
        if attention_mask is None:
            return hidden.mean(dim=1)
        return mean_state(hidden, attention_mask)


class MaskedLMHead(VocabularyHead):
    """Dense layer, activation, norm, tied decoder (google-research/bert, `get_masked_lm_output`).

    The decoder's weight is an argument of `forward`, so that it has one owner and one copy in a
    checkpoint; the head owns the bias [V].

    Args:
        hidden_size: D, width of the states.
        size: E, width of the word embeddings.
    """

    per_piece = ("bias",)  # parameters with one row per vocabulary token

    def __init__(
        self, hidden_size: int, size: int, vocab_size: int, *, activation: str, norm: nn.Module
    ) -> None:
        super().__init__()
        self.dense = Linear(hidden_size, size)
        self.activation = ACTIVATIONS[activation]
        self.norm = norm
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, hidden: Tensor, decoder_weight: Tensor) -> Any:
        """Map hidden, float [M, D], and decoder_weight, float [V, E], to logits [M, V]."""
        return self.project(
            self.norm(self.activation(self.dense(hidden))), decoder_weight, self.bias
        )


class SpanBoundaryHead(VocabularyHead):
    """Head that predicts masked tokens from span boundaries (Joshi et al., SpanBERT, 2020, 2.2).

    Two layers of dense, GELU and norm on [left; right; position]; the decoder is the word
    embedding.

    Args:
        positions: number of span positions with an embedding; later ones use the last.
        position_size: width of these embeddings.
    """

    per_piece = ("bias",)

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        positions: int,
        position_size: int,
        activation: str,
        eps: float,
    ) -> None:
        super().__init__()
        self.position = nn.Embedding(positions, position_size)
        self.first = Linear(2 * hidden_size + position_size, hidden_size)
        self.first_norm = nn.LayerNorm(hidden_size, eps=eps)
        self.second = Linear(hidden_size, hidden_size)
        self.second_norm = nn.LayerNorm(hidden_size, eps=eps)
        self.activation = ACTIVATIONS[activation]
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, left: Tensor, right: Tensor, offset: Tensor, decoder_weight: Tensor) -> Any:
        """Return logits [M, V].

        Args:
            left, right: float [M, D], states at the boundaries.
            offset: int64 [M], position in the span, from 0.
            decoder_weight: float [V, D].
        """
        position = self.position(offset.clamp(max=self.position.num_embeddings - 1))
        hidden = self.first_norm(
            self.activation(self.first(torch.cat([left, right, position], dim=-1)))
        )
        hidden = self.second_norm(self.activation(self.second(hidden)))
        return self.project(hidden, decoder_weight, self.bias)


class ReplacedTokenHead(nn.Module):
    """Replaced-token logits: dense layer, activation, projection.

    Source: google-research/electra, run_pretraining.py, `_get_discriminator_output`.

    Args:
        norm: if given, the state of each sequence's first token is added to the states, and the
            sum is normalized (microsoft/DeBERTa, replaced_token_detection_model.py,
            `LMMaskPredictionHead`).
    """

    def __init__(self, hidden_size: int, activation: str, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.norm = norm
        self.dense = Linear(hidden_size, hidden_size)
        self.activation = ACTIVATIONS[activation]
        self.output = Linear(hidden_size, 1)

    def forward(self, hidden: Tensor, sequence_first: Tensor | None = None) -> Tensor:
        """Return logits [B, L].

        Args:
            hidden: float [B, L, D].
            sequence_first: bool [B, L], true where a sequence begins; packed rows only.
        """
        if self.norm is not None:
            hidden = self.norm(_first_states(hidden, sequence_first) + hidden)
        logits: Tensor = self.output(self.activation(self.dense(hidden))).squeeze(-1)
        return logits


def _first_states(hidden: Tensor, sequence_first: Tensor | None) -> Tensor:
    """Return the state of each token's first token, broadcast to [B, L, D]."""
    if sequence_first is None:
        return hidden[:, :1]
    positions = torch.arange(hidden.shape[1], device=hidden.device)
    # The running maximum of the starts so far is the start of a token's own sequence.
    starts = torch.where(sequence_first, positions, 0).cummax(dim=1).values
    return hidden.gather(1, starts[:, :, None].expand_as(hidden))


class PredictionHead(nn.Module):
    """Dense layer, activation and norm, before the decoder in pretraining and before classifiers.

    Both use the same weights, as in transformers: fine-tuning starts from the pretrained head
    (ModernBERT).

    Args:
        mean: pool the mean of all states instead of the first state.
    """

    def __init__(self, hidden_size: int, activation: str, *, norm: nn.Module, mean: bool) -> None:
        super().__init__()
        self.dense = Linear(hidden_size, hidden_size, bias=False)
        self.activation = ACTIVATIONS[activation]
        self.norm = norm
        self._mean = mean

    def transform(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Map float [..., D] to float [..., D]."""
        transformed: Tensor = self.norm(self.activation(self.dense(hidden)))
        return transformed

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Pool hidden, float [B, L, D], to [B, D]; the mean needs attention_mask, bool [B, L]."""
        if not self._mean:
            return self.transform(hidden[:, 0])
        assert attention_mask is not None
        return self.transform(mean_state(hidden, attention_mask))


class PredictionDecoder(VocabularyHead):
    """Decoder of the prediction head's output: word embeddings and an own bias [V]."""

    per_piece = ("bias",)

    def __init__(self, head: PredictionHead, vocab_size: int) -> None:
        super().__init__()
        self.transform = ModuleReference(head.transform)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, hidden: Tensor, decoder_weight: Tensor) -> Any:
        """Map hidden, float [M, D], and decoder_weight, float [V, D], to logits [M, V]."""
        return self.project(self.transform(hidden), decoder_weight, self.bias)


def initialize(module: nn.Module, standard_deviation: float) -> None:
    """Initialize weights from BERT's distribution, in place.

    Matrices and embeddings: normal, truncated at two standard deviations (google-research/bert,
    modeling.py, `create_initializer`; Hugging Face does not truncate). Biases: 0. LayerNorm: 1 and
    0. A module with `initialize_own` then does that.
    """
    for submodule in module.modules():
        if isinstance(submodule, nn.Linear | nn.Embedding | nn.Conv1d):
            _truncated_normal(submodule.weight, standard_deviation)
        if isinstance(submodule, nn.Linear | nn.Conv1d) and submodule.bias is not None:
            nn.init.zeros_(submodule.bias)
        if isinstance(submodule, nn.LayerNorm | nn.RMSNorm):
            nn.init.ones_(submodule.weight)
        if isinstance(submodule, nn.LayerNorm) and submodule.bias is not None:
            nn.init.zeros_(submodule.bias)
    for submodule in module.modules():
        own = getattr(submodule, "initialize_own", None)
        if own is not None:
            own()


@torch.no_grad()
def _truncated_normal(tensor: Tensor, standard_deviation: float) -> None:
    """Redraw values beyond two deviations, as TensorFlow does; skip meta tensors."""
    if tensor.is_meta:
        return
    values = tensor.normal_().view(-1)
    outside = (values.abs() > 2.0).nonzero().squeeze(1)
    while len(outside):
        redrawn = torch.randn(len(outside), dtype=values.dtype, device=values.device)
        values[outside] = redrawn
        outside = outside[redrawn.abs() > 2.0]
    # Truncated at a deviation of 1 and then scaled, so one comparison serves all deviations.
    tensor.mul_(standard_deviation)
