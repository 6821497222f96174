"""The modern encoder: ModernBERT (Warner et al., "Smarter, Better, Faster, Longer", 2024).

Norms stand before the blocks, positions are rotary, the feed-forward block is gated (GeGLU), nothing but the decoder has a
bias, and of three layers two see a window alone. Padding is left out on the way, as in every encoder here.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from model.families.config import ModelConfig
from model.families.modern.config import ModernConfig
from model.families.pretraining import PretrainingModel
from model.layers.activation import ACTIVATIONS
from model.layers.attention import SelfAttention
from model.layers.embeddings import Embeddings
from model.layers.encoder import Encoder
from model.layers.encoder_layer import EncoderLayer
from model.layers.feed_forward import FeedForward
from model.layers.heads import initialize, mean_state
from model.layers.lazy_logits import VocabularyHead
from model.layers.rotary import Rotary
from model.layers.shared import Shared


class PredictionHead(nn.Module):
    """Dense, activation, norm: before the decoder in pretraining, and before a classifier on the first token's state or the mean of all.

    Both read the same weights, as in transformers: fine-tuning starts from the head that pretraining has left.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.norm = _norm(config)
        self._mean = cast(ModernConfig, config).classifier_pooling == "mean"

    def transform(self, hidden: Tensor) -> Tensor:
        """Args: hidden: float [..., D]. Returns: float [..., D]."""
        transformed: Tensor = self.norm(self.activation(self.dense(hidden)))
        return transformed

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Args: hidden: float [B, L, D]; attention_mask: bool [B, L], which the mean needs. Returns: float [B, D]."""
        if not self._mean:
            return self.transform(hidden[:, 0])
        assert attention_mask is not None
        return self.transform(mean_state(hidden, attention_mask))


class Decoder(VocabularyHead):
    """Logits from what the prediction head gives; the weight is the word embedding, only the bias [V] lives here."""

    per_piece = ("bias",)

    def __init__(self, head: PredictionHead, vocab_size: int) -> None:
        super().__init__()
        self.transform = Shared(head.transform)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, hidden: Tensor, decoder_weight: Tensor) -> Any:
        """Args: hidden: float [M, D]; decoder_weight: float [V, D]. Returns: logits, float [M, V]."""
        return self.named(self.transform(hidden), decoder_weight, self.bias)


def new_model(config: ModelConfig) -> PretrainingModel:
    """The model of the given sizes, initialised from torch's current random state.

    What leads out of a block starts smaller by the square root of twice the number of layers (appendix A: "Megatron
    initialization"; transformers, ModernBertPreTrainedModel._init_weights).
    """
    config = cast(ModernConfig, config)
    embeddings = Embeddings(
        config.vocab_size, config.hidden_size, max_positions=0, segments=0, norm=_norm(config), dropout=config.hidden_dropout
    )
    layers = [_layer(config, number) for number in range(config.num_hidden_layers)]
    head = new_pooler(config)
    model = PretrainingModel(Encoder(embeddings, layers, _norm(config)), Decoder(head, config.vocab_size), pooler=head)
    initialize(model, config.initializer_range)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("attention.output.weight", "feed_forward.down.weight", "pooler.dense.weight")):
                parameter.div_(math.sqrt(2 * config.num_hidden_layers))
    return model


def new_pooler(config: ModelConfig) -> PredictionHead:
    """What gives one vector a sequence in fine-tuning: the head of pretraining on the first token."""
    return PredictionHead(config)


def _layer(config: ModernConfig, number: int) -> EncoderLayer:
    everything = config.is_global(number)
    attention = SelfAttention(
        config.hidden_size,
        config.num_attention_heads,
        dropout=config.attention_dropout,
        output_dropout=config.output_dropout,
        bias=False,
        fused=True,
        window=None if everything else config.local_attention // 2,
        rotary=Rotary(config.head_size, config.global_rope_theta if everything else config.local_rope_theta),
    )
    feed_forward = FeedForward(
        config.hidden_size,
        config.intermediate_size,
        activation=config.hidden_act,
        gated=True,
        bias=False,
        dropout=config.mlp_dropout,
    )
    return EncoderLayer(
        attention,
        feed_forward,
        dropout=0.0,
        attention_input_norm=_norm(config) if number else None,  # the embeddings have just been normalised
        feed_forward_input_norm=_norm(config),
    )


def _norm(config: ModelConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=False)
