"""BERT (Devlin et al., 2019): post-norm encoder, pooler, masked-token and sentence-pair heads."""

from __future__ import annotations

from functools import partial

from torch import nn

from model.config import ModelConfig
from model.families.pretraining import PretrainingModel
from model.layers.attention import SelfAttention
from model.layers.embeddings import Embeddings
from model.layers.encoder import Encoder
from model.layers.encoder_layer import EncoderLayer
from model.layers.feed_forward import FeedForward
from model.layers.heads import MaskedLMHead, Pooler, initialize


def build(config: ModelConfig, *, pre_norm: bool = False) -> PretrainingModel:
    """BERT of the given sizes, initialised from torch's current random state.

    Args:
        pre_norm: normalise what enters each block and what leaves the last, instead of embeddings and every sum.
    """
    norm = partial(nn.LayerNorm, config.hidden_size, eps=config.layer_norm_eps)
    before, after = (norm, nn.Identity) if pre_norm else (nn.Identity, norm)
    embeddings = Embeddings(
        config.vocab_size,
        config.hidden_size,
        max_positions=config.max_position_embeddings,
        segments=config.type_vocab_size,
        norm=after(),
        dropout=config.hidden_dropout,
    )
    layers = [
        EncoderLayer(
            SelfAttention(config.hidden_size, config.num_attention_heads, dropout=config.attention_dropout),
            FeedForward(config.hidden_size, config.intermediate_size, activation=config.hidden_act),
            dropout=config.hidden_dropout,
            attention_input_norm=before(),
            attention_norm=after(),
            feed_forward_input_norm=before(),
            feed_forward_norm=after(),
        )
        for _ in range(config.num_hidden_layers)
    ]
    model = PretrainingModel(
        Encoder(embeddings, layers, before()),
        MaskedLMHead(config.hidden_size, config.vocab_size, activation=config.hidden_act, norm=norm()),
        pooler=pooler(config),
        pair=nn.Linear(config.hidden_size, 2),
    )
    initialize(model, config.initializer_range)
    return model


def pooler(config: ModelConfig) -> Pooler:
    """What gives one vector a sequence, in the pair task and in fine-tuning."""
    return Pooler(config.hidden_size)
