"""BERT (Devlin et al., 2019): post-norm encoder, pooler, masked-token and sentence-pair heads."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from cloze.model.families.config import ModelConfig
from cloze.model.families.models import PretrainingModel
from cloze.model.layers.attention import SelfAttention
from cloze.model.layers.embeddings import Embeddings
from cloze.model.layers.encoder import Encoder, EncoderLayer, FeedForward
from cloze.model.layers.heads import MaskedLMHead, Pooler, initialize


def new_model(config: ModelConfig, *, pre_norm: bool = False) -> PretrainingModel:
    """Build BERT, initialized from torch's current random state; `pre_norm` as for `encoder`."""
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
    """Build the encoder that most families share, without initialization.

    Args:
        pre_norm: normalize the input of each block and the encoder's output, instead of embeddings
            and sums.
        position_offset: rows of the position table before the first position.
        causal: use causal attention.
        embedding_size: E, width of embeddings that are projected to D; None: D, no projection.
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
    layers = [
        layer(config, pre_norm=pre_norm, causal=causal) for _ in range(config.num_hidden_layers)
    ]
    return Encoder(embeddings, layers, _of(_norm if pre_norm else None, config))


def layer(config: ModelConfig, *, pre_norm: bool = False, causal: bool = False) -> EncoderLayer:
    """Build one encoder layer."""
    before, after = (_norm, None) if pre_norm else (None, _norm)
    return EncoderLayer(
        SelfAttention(
            config.hidden_size,
            config.num_attention_heads,
            dropout=config.attention_dropout,
            causal=causal,
        ),
        FeedForward(config.hidden_size, config.intermediate_size, activation=config.hidden_act),
        dropout=config.hidden_dropout,
        attention_input_norm=_of(before, config),
        attention_norm=_of(after, config),
        feed_forward_input_norm=_of(before, config),
        feed_forward_norm=_of(after, config),
    )


def masked_lm(config: ModelConfig, size: int | None = None) -> MaskedLMHead:
    """Build the masked LM head; `size` is the width of the word embeddings if it is not D."""
    width = size or config.hidden_size
    norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
    return MaskedLMHead(
        config.hidden_size, width, config.vocab_size, activation=config.hidden_act, norm=norm
    )


def new_pooler(config: ModelConfig) -> Pooler:
    """Build the pooler for the pair task and for fine-tuning."""
    return Pooler(config.hidden_size)


def _norm(config: ModelConfig) -> nn.Module:
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)


def _of(norm: Callable[[ModelConfig], nn.Module] | None, config: ModelConfig) -> nn.Module:
    return nn.Identity() if norm is None else norm(config)
