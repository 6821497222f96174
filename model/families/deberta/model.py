"""DeBERTa (He et al., 2021) and DeBERTaV3 (He et al., 2023): disentangled attention.

The enhanced mask decoder follows the authors' program (microsoft/DeBERTa, masked_language_model.py,
`EnhancedMaskDecoder`). The queries are the input of the last layer plus absolute positions; they
run through that layer twice, at masked positions only. Keys and values are computed from the
layer's input both times. transformers has no such decoder.

Version 3 is pretrained like ELECTRA. Its generator has equal width and half the layers, decodes
with absolute positions, and trains the word embeddings. The discriminator adds its own deltas
(`cloze.model.layers.embeddings.GdesEmbedding`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from cloze.model.families.bert import model as bert
from cloze.model.families.config import ModelConfig
from cloze.model.families.deberta.config import DebertaConfig
from cloze.model.families.electra.model import Electra
from cloze.model.families.models import PretrainingModel
from cloze.model.layers.attention import gather_positions
from cloze.model.layers.disentangled import ConvResidual, DisentangledAttention, RelativePositions
from cloze.model.layers.elementwise import ACTIVATIONS
from cloze.model.layers.embeddings import Embeddings, GdesEmbedding, GdesEmbeddingView
from cloze.model.layers.encoder import Encoder, EncoderLayer, FeedForward
from cloze.model.layers.heads import MaskedLMHead, Pooler, initialize
from cloze.model.layers.layout import BatchLayout

DECODER_STEPS = 2  # passes through the last layer


class DebertaLayer(EncoderLayer):
    """Layer with disentangled attention; the first one may have a parallel convolution.

    Args:
        convolved: adds the convolution of the layer's input to its output.
        others: arguments of `EncoderLayer`.
    """

    def __init__(
        self,
        attention: DisentangledAttention,
        *others: Any,
        convolved: ConvResidual | None,
        **options: Any,
    ) -> None:
        super().__init__(attention, *others, **options)
        self.convolved = convolved

    def forward(
        self, hidden: Tensor, layout: BatchLayout | None = None, chosen: Tensor | None = None
    ) -> Tensor:
        """Compute the layer; see `EncoderLayer.forward`."""
        leaving = super().forward(hidden, layout, chosen)
        if self.convolved is None:
            return leaving
        found: Tensor = self.convolved(hidden, leaving, layout, chosen)
        return found

    def forward_queries(
        self, hidden: Tensor, layout: BatchLayout, chosen: Tensor, asking: Tensor
    ) -> Tensor:
        """Compute the layer, without a convolution, for given queries at the chosen positions.

        Args:
            hidden, layout, chosen: as for `forward`.
            asking: float [P, D], queries at `chosen`.

        Returns:
            float [P, D].
        """
        got: Tensor = self.attention(hidden, layout, chosen, asking)
        return self.finished(asking, got)


class EnhancedMaskDecoder(nn.Module):
    """Decoder of masked tokens: the last layer with queries that contain absolute positions.

    Args:
        hidden_size: D.
        max_positions: maximum L.
    """

    def __init__(self, hidden_size: int, max_positions: int) -> None:
        super().__init__()
        self.position = nn.Embedding(max_positions, hidden_size)

    def forward(
        self, last: DebertaLayer, hidden: Tensor, layout: BatchLayout, chosen: Tensor
    ) -> Tensor:
        """Return decoded states, float [P, D].

        Args:
            last: last encoder layer.
            hidden: float [..., D], input of `last`.
            chosen: int64 [P], flat positions.
        """
        positions = layout.positions
        places = (
            chosen % hidden.shape[-2]
            if positions is None
            else positions.flatten().index_select(0, chosen)
        )
        states: Tensor = gather_positions(hidden, chosen) + self.position(places)
        for _ in range(DECODER_STEPS):
            states = last.forward_queries(hidden, layout, chosen, states)
        return states


class MaskedLM(PretrainingModel):
    """Masked language model.

    Args:
        decoder: computes the states that tokens are predicted from; None: the last layer's states.
    """

    def __init__(
        self, encoder: Encoder, masked_lm: MaskedLMHead, decoder: EnhancedMaskDecoder | None
    ) -> None:
        super().__init__(encoder, masked_lm)
        self.decoder = decoder

    def forward(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Compute logits; see `PretrainingModel.forward`."""
        if self.decoder is None or not self.predicts_all_positions:
            return super().forward(batch)
        states = self.encode(batch, batch["masked_positions"])
        return {**self.logits({"masked": states}, batch), "hidden": self.encode(batch)}

    def encode(self, batch: Mapping[str, Any], wanted: Tensor | None = None) -> Tensor:
        """Return hidden states [B, L, D], or decoded states [P, D] at the wanted positions."""
        if self.decoder is None or wanted is None:
            return super().encode(batch, wanted)
        inputs = (
            batch["input_ids"],
            batch.get("attention_mask"),
            batch["token_type_ids"],
            batch.get("layout"),
        )
        return self.encoder.through(self._decoded, *inputs, wanted)

    def _decoded(self, hidden: Tensor, layout: BatchLayout, chosen: Tensor | None) -> Tensor:
        assert self.decoder is not None
        decoded: Tensor = self.decoder(
            self.encoder.layers[-1], self.encoder.below(hidden, layout), layout, chosen
        )
        return decoded


class ReplacedTokenHead(nn.Module):
    """Replaced-token logits: first token's state added, norm, dense layer, activation, projection.

    Source: microsoft/DeBERTa, replaced_token_detection_model.py, `LMMaskPredictionHead`.
    """

    def __init__(self, hidden_size: int, activation: str, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.activation = ACTIVATIONS[activation]
        self.output = nn.Linear(hidden_size, 1)

    def forward(self, hidden: Tensor, sequence_first: Tensor | None = None) -> Tensor:
        """Return logits [B, L].

        Args:
            hidden: float [B, L, D].
            sequence_first: bool [B, L], true where a sequence begins; packed rows only.
        """
        if sequence_first is None:
            first = hidden[:, :1]
        else:
            places = torch.arange(hidden.shape[1], device=hidden.device)
            begins = torch.where(sequence_first, places, 0).cummax(dim=1).values
            first = hidden.gather(1, begins[:, :, None].expand_as(hidden))
        logits: Tensor = self.output(
            self.activation(self.dense(self.norm(first + hidden)))
        ).squeeze(-1)
        return logits


class ReplacedTokenModel(Electra):
    """Generator and discriminator of version 3; `encoder` is the discriminator's."""

    def generate(self, batch: Mapping[str, Any]) -> Tensor:
        logits: Tensor = self.generator(batch)["mlm_logits"]
        return logits

    def discriminate(self, hidden: Tensor, batch: Mapping[str, Any]) -> Tensor:
        logits: Tensor = self.discriminator(hidden, batch.get("sequence_first"))
        return logits


def new_model(config: ModelConfig) -> nn.Module:
    """Build a `MaskedLM` or `ReplacedTokenModel`, initialized from torch's current random state."""
    config = cast(DebertaConfig, config)
    model = (
        _replaced_tokens(config)
        if config.pretraining == "rtd"
        else _masked_lm(config, _embeddings(config))
    )
    initialize(model, config.initializer_range)
    return model


def new_pooler(config: ModelConfig) -> Pooler:
    """Build the pooler: a dense layer and GELU (transformers' `ContextPooler`)."""
    return Pooler(config.hidden_size, "gelu")


def _masked_lm(config: DebertaConfig, embeddings: DebertaEmbeddings) -> MaskedLM:
    enhanced = config.enhanced_mask_decoder
    decoder = (
        EnhancedMaskDecoder(config.hidden_size, config.max_position_embeddings)
        if enhanced
        else None
    )
    return MaskedLM(_encoder(config, embeddings), bert.masked_lm(config), decoder)


def _replaced_tokens(config: DebertaConfig) -> ReplacedTokenModel:
    own, generators = _embeddings(config), _embeddings(config.generator)
    own.word = GdesEmbedding(config.vocab_size, config.hidden_size)
    own.per_piece = ("word.weight", "word.delta")
    generators.word = cast(GdesEmbedding, GdesEmbeddingView(own.word))
    generators.per_piece = ()
    generator = _masked_lm(config.generator, generators)
    generator.predicts_all_positions = False
    head = ReplacedTokenHead(config.hidden_size, config.hidden_act, _norm(config))
    return ReplacedTokenModel(_encoder(config, own), head, generator)


class DebertaEmbeddings(Embeddings):
    """Word embeddings, and the relative positions that the layers read.

    Args:
        relative: embeddings of the relative positions.
        others: arguments of `Embeddings`.
    """

    def __init__(self, *others: Any, relative: RelativePositions, **options: Any) -> None:
        super().__init__(*others, **options)
        self.relative = relative


def _embeddings(config: DebertaConfig) -> DebertaEmbeddings:
    normed = config.norm_rel_ebd == "layer_norm"
    relative = RelativePositions(
        config.hidden_size,
        span=config.position_span,
        buckets=config.position_buckets,
        farthest=config.farthest,
        longest=config.max_position_embeddings,
        norm=_norm(config) if normed else nn.Identity(),
    )
    return DebertaEmbeddings(
        config.vocab_size,
        config.hidden_size,
        max_positions=config.max_position_embeddings if config.position_biased_input else 0,
        segments=config.type_vocab_size,
        norm=_norm(config),
        dropout=config.hidden_dropout,
        relative=relative,
    )


def _encoder(config: DebertaConfig, embeddings: DebertaEmbeddings) -> Encoder:
    layers = [
        _layer(config, embeddings.relative, number) for number in range(config.num_hidden_layers)
    ]
    return Encoder(embeddings, layers, nn.Identity())


def _layer(config: DebertaConfig, relative: RelativePositions, number: int) -> DebertaLayer:
    attention = DisentangledAttention(
        config.hidden_size,
        config.num_attention_heads,
        dropout=config.attention_dropout,
        relative=relative,
        terms=config.pos_att_type,
        shares=config.share_att_key,
        position_dropout=config.hidden_dropout,
    )
    convolved = None
    if config.conv_kernel_size and number == 0:
        convolved = ConvResidual(
            config.hidden_size,
            config.conv_kernel_size,
            activation=ACTIVATIONS[config.conv_act],
            dropout=config.hidden_dropout,
            norm=_norm(config),
        )
    return DebertaLayer(
        attention,
        FeedForward(config.hidden_size, config.intermediate_size, activation=config.hidden_act),
        dropout=config.hidden_dropout,
        attention_norm=_norm(config),
        feed_forward_norm=_norm(config),
        convolved=convolved,
    )


def _norm(config: ModelConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
