"""ModernBERT (Warner et al., "Smarter, Better, Faster, Longer", 2024).

Pre-norm blocks, rotary positions, gated feed-forward (GeGLU), no bias except in the decoder, and
local attention in two layers of three. Padding is removed, as in all encoders.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from cloze.model.families.config import ModelConfig
from cloze.model.families.models import PretrainingModel
from cloze.model.families.modern.config import ModernConfig
from cloze.model.layers.attention import Rotary, SelfAttention
from cloze.model.layers.cross_entropy import VocabularyHead
from cloze.model.layers.disentangled import ModuleReference
from cloze.model.layers.elementwise import ACTIVATIONS
from cloze.model.layers.embeddings import Embeddings
from cloze.model.layers.encoder import Encoder, EncoderLayer, FeedForward
from cloze.model.layers.heads import initialize, mean_state


class PredictionHead(nn.Module):
    """Dense layer, activation and norm, before the decoder in pretraining and before classifiers.

    Both use the same weights, as in transformers: fine-tuning starts from the pretrained head.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.norm = _norm(config)
        self._mean = cast(ModernConfig, config).classifier_pooling == "mean"

    def transform(self, hidden: Tensor) -> Tensor:
        """Map float [..., D] to float [..., D]."""
        transformed: Tensor = self.norm(self.activation(self.dense(hidden)))
        return transformed

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Pool hidden, float [B, L, D], to [B, D]; the mean needs attention_mask, bool [B, L]."""
        if not self._mean:
            return self.transform(hidden[:, 0])
        assert attention_mask is not None
        return self.transform(mean_state(hidden, attention_mask))


class Decoder(VocabularyHead):
    """Decoder of the prediction head's output: word embeddings and an own bias [V]."""

    per_piece = ("bias",)

    def __init__(self, head: PredictionHead, vocab_size: int) -> None:
        super().__init__()
        self.transform = ModuleReference(head.transform)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, hidden: Tensor, decoder_weight: Tensor) -> Any:
        """Map hidden, float [M, D], and decoder_weight, float [V, D], to logits [M, V]."""
        return self.project(self.transform(hidden), decoder_weight, self.bias)


def new_model(config: ModelConfig) -> PretrainingModel:
    """Build the model, initialized from torch's current random state.

    Output projections are divided by the square root of twice the number of layers (appendix A,
    "Megatron initialization"; transformers, ModernBertPreTrainedModel._init_weights).
    """
    config = cast(ModernConfig, config)
    embeddings = Embeddings(
        config.vocab_size,
        config.hidden_size,
        max_positions=0,
        segments=0,
        norm=_norm(config),
        dropout=config.hidden_dropout,
    )
    layers = [_layer(config, number) for number in range(config.num_hidden_layers)]
    head = new_pooler(config)
    model = PretrainingModel(
        Encoder(embeddings, layers, _norm(config)), Decoder(head, config.vocab_size), pooler=head
    )
    initialize(model, config.initializer_range)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(
                ("attention.output.weight", "feed_forward.down.weight", "pooler.dense.weight")
            ):
                parameter.div_(math.sqrt(2 * config.num_hidden_layers))
    return model


def new_pooler(config: ModelConfig) -> PredictionHead:
    """Build the pooler for fine-tuning: the pretraining head."""
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
        rotary=Rotary(
            config.head_size, config.global_rope_theta if everything else config.local_rope_theta
        ),
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
        attention_input_norm=_norm(config)
        if number
        else None,  # the embeddings are already normalized
        feed_forward_input_norm=_norm(config),
    )


def _norm(config: ModelConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=False)
