"""GPT-2 (Radford et al., 2019): a decoder with the norms before the blocks, learned positions, and the word embedding as its head.

No token sees what comes after it. In fine-tuning, a sequence's vector is the state of its last token, as it is.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from model.families.config import ModelConfig
from model.families.ltr.model import LeftToRight, last_state
from model.layers.attention import SelfAttention
from model.layers.embeddings import Embeddings
from model.layers.encoder import Encoder
from model.layers.encoder_layer import EncoderLayer
from model.layers.feed_forward import FeedForward
from model.layers.heads import initialize
from model.layers.lazy_logits import VocabularyHead


class TiedHead(VocabularyHead):
    """Logits of the next token: states times word embeddings. It has no weights of its own."""

    def forward(self, hidden: Tensor, decoder_weight: Tensor) -> Any:
        """Args: hidden: float [..., D]; decoder_weight: float [V, D]. Returns: logits, float [..., V]."""
        return self.named(hidden, decoder_weight)


class LastState(nn.Module):
    """One vector a sequence: the state of its last token (transformers, `GPT2ForSequenceClassification`). It has no weights.

    Attributes:
        head_bias: whether a classifier on it has a bias.
    """

    head_bias: bool = False

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Args: hidden: float [B, L, D]; attention_mask: bool [B, L]. Returns: float [B, D]."""
        return last_state(hidden, attention_mask).squeeze(1)


def new_model(config: ModelConfig) -> LeftToRight:
    """The model of the given sizes, initialised from torch's current random state.

    What leads out of a block starts smaller by the square root of the number of blocks that add to the residual path, two a layer
    (section 2.3).
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
    """What gives one vector a sequence in fine-tuning."""
    del config
    return LastState()


def _layer(config: ModelConfig) -> EncoderLayer:
    return EncoderLayer(
        SelfAttention(
            config.hidden_size, config.num_attention_heads, dropout=config.attention_dropout, fused=True, causal=True
        ),
        FeedForward(config.hidden_size, config.intermediate_size, activation=config.hidden_act),
        dropout=config.hidden_dropout,
        attention_input_norm=_norm(config),
        feed_forward_input_norm=_norm(config),
    )


def _norm(config: ModelConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
