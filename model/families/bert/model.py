"""BERT (Devlin et al., 2019): post-norm encoder, pooler, masked-token and sentence-pair heads."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from model.families.config import ModelConfig
from model.families.pretraining import PretrainingModel
from model.layers.attention import SelfAttention
from model.layers.embeddings import Embeddings
from model.layers.encoder import Encoder
from model.layers.encoder_layer import EncoderLayer
from model.layers.feed_forward import FeedForward
from model.layers.heads import MaskedLMHead, Pooler, initialize


def new_model(config: ModelConfig, *, pre_norm: bool = False) -> PretrainingModel:
    """BERT of the given sizes, initialised from torch's current random state.

    Args:
        pre_norm: see `encoder`.
    """
    model = PretrainingModel(
        encoder(config, pre_norm=pre_norm),
        masked_lm(config),
        pooler=new_pooler(config),
        pair=nn.Linear(config.hidden_size, 2),
    )
    initialize(model, config.initializer_range)
    return model


def encoder(
    config: ModelConfig,
    *,
    pre_norm: bool = False,
    position_offset: int = 0,
    causal: bool = False,
    embedding_size: int | None = None,
) -> Encoder:
    """The encoder that most families share, uninitialised.

    Args:
        pre_norm: normalise what enters each block and what leaves the last, instead of embeddings and every sum.
        position_offset: rows of the position table before the first token's.
        causal: no token sees what comes after it.
        embedding_size: E, of embeddings that are projected to the width of the layers; None: the same, and no projection.
    """
    size = embedding_size or config.hidden_size
    embeddings = Embeddings(
        config.vocab_size,
        size,
        max_positions=config.max_position_embeddings,
        segments=config.type_vocab_size,
        norm=nn.Identity() if pre_norm else nn.LayerNorm(size, eps=config.layer_norm_eps),
        dropout=config.hidden_dropout,
        position_offset=position_offset,
        projection=None if size == config.hidden_size else nn.Linear(size, config.hidden_size),
    )
    layers = [layer(config, pre_norm=pre_norm, causal=causal) for _ in range(config.num_hidden_layers)]
    return Encoder(embeddings, layers, _of(_norm if pre_norm else None, config))


def layer(config: ModelConfig, *, pre_norm: bool = False, causal: bool = False) -> EncoderLayer:
    """One layer of the encoder."""
    before, after = (_norm, None) if pre_norm else (None, _norm)
    return EncoderLayer(
        SelfAttention(config.hidden_size, config.num_attention_heads, dropout=config.attention_dropout, causal=causal),
        FeedForward(config.hidden_size, config.intermediate_size, activation=config.hidden_act),
        dropout=config.hidden_dropout,
        attention_input_norm=_of(before, config),
        attention_norm=_of(after, config),
        feed_forward_input_norm=_of(before, config),
        feed_forward_norm=_of(after, config),
    )


def masked_lm(config: ModelConfig, size: int | None = None) -> MaskedLMHead:
    """The head that names masked tokens; `size` is that of the word embeddings where it is not the encoder's."""
    width = size or config.hidden_size
    norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
    return MaskedLMHead(config.hidden_size, width, config.vocab_size, activation=config.hidden_act, norm=norm)


def new_pooler(config: ModelConfig) -> Pooler:
    """What gives one vector a sequence, in the pair task and in fine-tuning."""
    return Pooler(config.hidden_size)


def _norm(config: ModelConfig) -> nn.Module:
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)


def _of(norm: Callable[[ModelConfig], nn.Module] | None, config: ModelConfig) -> nn.Module:
    return nn.Identity() if norm is None else norm(config)
