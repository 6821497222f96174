"""GPT-2 (Radford et al., 2019): pre-norm causal decoder, learned positions, tied head.

In fine-tuning, a sequence's vector is the state of its last token.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from cloze.model.families.config import ModelConfig
from cloze.model.families.ltr.model import LeftToRight, last_state
from cloze.model.layers.attention import SelfAttention
from cloze.model.layers.cross_entropy import VocabularyHead
from cloze.model.layers.embeddings import Embeddings
from cloze.model.layers.encoder import Encoder, EncoderLayer, FeedForward
from cloze.model.layers.heads import initialize


class TiedHead(VocabularyHead):
    """Logits of the next token: states times word embeddings, without own weights."""

    def forward(self, hidden: Tensor, decoder_weight: Tensor) -> Any:
        """Map hidden, float [..., D], and decoder_weight, float [V, D], to logits [..., V]."""
        return self.project(hidden, decoder_weight)


class LastState(nn.Module):
    """Pooler without weights: the last token's state (`GPT2ForSequenceClassification`).

    Attributes:
        head_bias: a classifier on it has a bias.
    """

    head_bias: bool = False

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Map hidden, float [B, L, D], and attention_mask, bool [B, L], to float [B, D]."""
        return last_state(hidden, attention_mask).squeeze(1)


def new_model(config: ModelConfig) -> LeftToRight:
    """Build the model, initialized from torch's current random state.

    Output projections of blocks are divided by the square root of the number of blocks, two per
    layer (section 2.3).
    """
    embeddings = Embeddings(
        config.vocab_size,
        config.hidden_size,
        max_positions=config.max_position_embeddings,
        segments=0,
        norm=nn.Identity(),
        dropout=config.hidden_dropout,
    )
    layers = [_layer(config) for _ in range(config.num_hidden_layers)]
    model = LeftToRight(Encoder(embeddings, layers, _norm(config)), TiedHead())
    initialize(model, config.initializer_range)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("attention.output.weight", "feed_forward.down.weight")):
                parameter.div_(math.sqrt(2 * config.num_hidden_layers))
    return model


def new_pooler(config: ModelConfig) -> LastState:
    """Build the pooler for fine-tuning."""
    del config
    return LastState()


def _layer(config: ModelConfig) -> EncoderLayer:
    return EncoderLayer(
        SelfAttention(
            config.hidden_size,
            config.num_attention_heads,
            dropout=config.attention_dropout,
            fused=True,
            causal=True,
        ),
        FeedForward(config.hidden_size, config.intermediate_size, activation=config.hidden_act),
        dropout=config.hidden_dropout,
        attention_input_norm=_norm(config),
        feed_forward_input_norm=_norm(config),
    )


def _norm(config: ModelConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
