"""BERT (Devlin et al., 2019): post-norm encoder, pooler, masked-token and sentence-pair heads.

Shapes: B batch, L length, D model, V vocabulary, M masked positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import Tensor, nn

from model.config import ModelConfig
from model.layers.attention import SelfAttention
from model.layers.embeddings import Embeddings, additive_mask
from model.layers.encoder_layer import EncoderLayer
from model.layers.feed_forward import FeedForward
from model.layers.heads import MaskedLMHead, Pooler, initialize


class Encoder(nn.Module):
    """Embeddings, a stack of layers, and a norm at the end where the family has one: token ids to hidden states."""

    def __init__(self, embeddings: Embeddings, layers: list[EncoderLayer], norm: nn.Module) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor) -> Tensor:
        """Args: input_ids, token_type_ids: int64 [B, L]; attention_mask: bool [B, L], true where there is a token, or None for
        rows without padding. Returns: the last layer's states, float [B, L, D].
        """
        hidden: Tensor = self.embeddings(input_ids, token_type_ids)
        bias = additive_mask(attention_mask, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, bias)
        normed: Tensor = self.norm(hidden)
        return normed


class PretrainingModel(nn.Module):
    """An encoder with the two heads that it is pretrained through."""

    def __init__(self, encoder: Encoder, pooler: Pooler, masked_lm: MaskedLMHead, pair: nn.Linear) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooler = pooler
        self.masked_lm = masked_lm
        self.pair = pair

    def forward(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Hidden states, and the logits of both heads.

        Args:
            batch: input_ids and token_type_ids int64 [B, L]; attention_mask bool [B, L]; masked_positions int64 [M],
                indices into the flattened B * L. Labels are not looked at.

        Returns:
            `hidden` [B, L, D]; `mlm_logits` [M, V], at the masked positions alone, which saves a fifth of BERT-base's
            arithmetic; `pair_logits` [B, 2].
        """
        hidden = self.encoder(batch["input_ids"], batch.get("attention_mask"), batch["token_type_ids"])
        masked_MD = hidden.flatten(0, 1)[batch["masked_positions"]]
        return {
            "hidden": hidden,
            "mlm_logits": self.masked_lm(masked_MD, self.encoder.embeddings.word.weight),
            "pair_logits": self.pair(self.pooler(hidden)),
        }


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
        Pooler(config.hidden_size),
        MaskedLMHead(config.hidden_size, config.vocab_size, activation=config.hidden_act, norm=norm()),
        nn.Linear(config.hidden_size, 2),
    )
    initialize(model, config.initializer_range)
    return model
