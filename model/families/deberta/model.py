"""DeBERTa (He et al., 2021) and DeBERTaV3 (He et al., 2023): disentangled attention; an enhanced mask decoder; replaced tokens.

The enhanced mask decoder is that of the authors' program (microsoft/DeBERTa, masked_language_model.py, `EnhancedMaskDecoder`): what enters
the last layer, with embeddings of absolute positions added, asks that layer, and what comes out asks it again; both times keys and
values are of what entered it. Masked positions alone ask. transformers' classes have no such decoder.

Version 3 is pretrained as ELECTRA is. Its generator is as wide and half as deep, decodes with absolute positions, and learns the word
embeddings; the discriminator reads them moved by differences of its own (`model.layers.moved`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from model.families.bert import model as bert
from model.families.config import ModelConfig
from model.families.deberta.config import DebertaConfig
from model.families.electra.model import Electra
from model.families.pretraining import PretrainingModel
from model.layers.activation import ACTIVATIONS
from model.layers.attention import taken
from model.layers.convolution import Convolved
from model.layers.disentangled import DisentangledAttention, RelativePositions
from model.layers.embeddings import Embeddings
from model.layers.encoder import Encoder
from model.layers.encoder_layer import EncoderLayer
from model.layers.feed_forward import FeedForward
from model.layers.heads import MaskedLMHead, Pooler, initialize
from model.layers.layout import Layout
from model.layers.moved import BorrowedTable, MovedTable

DECODER_STEPS = 2  # how often the last layer is asked


class DebertaLayer(EncoderLayer):
    """A layer with disentangled attention; beside the first there may be a convolution.

    Args:
        convolved: adds the convolution of what enters to what leaves.
        others: as for `EncoderLayer`.
    """

    def __init__(self, attention: DisentangledAttention, *others: Any, convolved: Convolved | None, **options: Any) -> None:
        super().__init__(attention, *others, **options)
        self.convolved = convolved

    def forward(self, hidden: Tensor, layout: Layout | None = None, chosen: Tensor | None = None) -> Tensor:
        """As `EncoderLayer.forward`."""
        leaving = super().forward(hidden, layout, chosen)
        if self.convolved is None:
            return leaving
        found: Tensor = self.convolved(hidden, leaving, layout, chosen)
        return found

    def asked(self, hidden: Tensor, layout: Layout, chosen: Tensor, asking: Tensor) -> Tensor:
        """What the layer, without a convolution, makes of other states that look at those which enter it.

        Args:
            hidden, layout, chosen: as for `forward`.
            asking: float [P, D], the states at `chosen` instead of those there.

        Returns:
            float [P, D].
        """
        got: Tensor = self.attention(hidden, layout, chosen, asking)
        return self.finished(asking, got)


class EnhancedMaskDecoder(nn.Module):
    """What masked tokens are named from: the last layer, asked by states that know where they are.

    Args:
        hidden_size: D.
        max_positions: the longest L.
    """

    def __init__(self, hidden_size: int, max_positions: int) -> None:
        super().__init__()
        self.position = nn.Embedding(max_positions, hidden_size)

    def forward(self, last: DebertaLayer, hidden: Tensor, layout: Layout, chosen: Tensor) -> Tensor:
        """Args: hidden: float [..., D], what enters the layer `last`; chosen: int64 [P], flat positions. Returns: float [P, D]."""
        positions = layout.positions
        places = chosen % hidden.shape[-2] if positions is None else positions.flatten().index_select(0, chosen)
        states: Tensor = taken(hidden, chosen) + self.position(places)
        for _ in range(DECODER_STEPS):
            states = last.asked(hidden, layout, chosen, states)
        return states


class MaskedLM(PretrainingModel):
    """An encoder that names masked tokens.

    Args:
        decoder: gives the states that they are named from; None: the encoder's last layer does.
    """

    def __init__(self, encoder: Encoder, masked_lm: MaskedLMHead, decoder: EnhancedMaskDecoder | None) -> None:
        super().__init__(encoder, masked_lm)
        self.decoder = decoder

    def forward(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """As `PretrainingModel.forward`."""
        if self.decoder is None or not self.everywhere:
            return super().forward(batch)
        states = self.encode(batch, batch["masked_positions"])
        return {**self.logits({"masked": states}, batch), "hidden": self.encode(batch)}

    def encode(self, batch: Mapping[str, Any], wanted: Tensor | None = None) -> Tensor:
        """The hidden states of a batch, float [B, L, D]; or what tokens are named from at the wanted positions, [P, D]."""
        if self.decoder is None or wanted is None:
            return super().encode(batch, wanted)
        inputs = batch["input_ids"], batch.get("attention_mask"), batch["token_type_ids"], batch.get("layout")
        return self.encoder.through(self._decoded, *inputs, wanted)

    def _decoded(self, hidden: Tensor, layout: Layout, chosen: Tensor | None) -> Tensor:
        assert self.decoder is not None
        decoded: Tensor = self.decoder(self.encoder.layers[-1], self.encoder.below(hidden, layout), layout, chosen)
        return decoded


class ReplacedTokenHead(nn.Module):
    """One logit a token: was it replaced? The sum of its state and that of its sequence's first token, a norm, a dense layer, an
    activation, and a vector (microsoft/DeBERTa, replaced_token_detection_model.py, `LMMaskPredictionHead`).
    """

    def __init__(self, hidden_size: int, activation: str, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.activation = ACTIVATIONS[activation]
        self.output = nn.Linear(hidden_size, 1)

    def forward(self, hidden: Tensor, sequence_first: Tensor | None = None) -> Tensor:
        """Args: hidden: float [B, L, D]; sequence_first: bool [B, L], of packed rows: true where a sequence begins. Returns: [B, L]."""
        if sequence_first is None:
            first = hidden[:, :1]
        else:
            places = torch.arange(hidden.shape[1], device=hidden.device)
            begins = torch.where(sequence_first, places, 0).cummax(dim=1).values
            first = hidden.gather(1, begins[:, :, None].expand_as(hidden))
        logits: Tensor = self.output(self.activation(self.dense(self.norm(first + hidden)))).squeeze(-1)
        return logits


class ReplacedTokens(Electra):
    """Generator and discriminator of version 3. `encoder` is the discriminator's."""

    def filled(self, batch: Mapping[str, Any]) -> Tensor:
        logits: Tensor = self.generator(batch)["mlm_logits"]
        return logits

    def judged(self, hidden: Tensor, batch: Mapping[str, Any]) -> Tensor:
        logits: Tensor = self.discriminator(hidden, batch.get("sequence_first"))
        return logits


def new_model(config: ModelConfig) -> nn.Module:
    """The model of the given sizes, initialised from torch's current random state: a `MaskedLM`, or `ReplacedTokens`."""
    config = cast(DebertaConfig, config)
    model = _replaced_tokens(config) if config.pretraining == "rtd" else _masked_lm(config, _embeddings(config))
    initialize(model, config.initializer_range)
    return model


def new_pooler(config: ModelConfig) -> Pooler:
    """What stands before the classifier: a dense layer and GELU (transformers, modeling_deberta_v2.py, `ContextPooler`)."""
    return Pooler(config.hidden_size, "gelu")


def _masked_lm(config: DebertaConfig, embeddings: DebertaEmbeddings) -> MaskedLM:
    enhanced = config.enhanced_mask_decoder
    decoder = EnhancedMaskDecoder(config.hidden_size, config.max_position_embeddings) if enhanced else None
    return MaskedLM(_encoder(config, embeddings), bert.masked_lm(config), decoder)


def _replaced_tokens(config: DebertaConfig) -> ReplacedTokens:
    own, generators = _embeddings(config), _embeddings(config.generator)
    own.word = MovedTable(config.vocab_size, config.hidden_size)
    own.per_piece = ("word.weight", "word.delta")
    generators.word = cast(MovedTable, BorrowedTable(own.word))
    generators.per_piece = ()
    generator = _masked_lm(config.generator, generators)
    generator.everywhere = False
    head = ReplacedTokenHead(config.hidden_size, config.hidden_act, _norm(config))
    return ReplacedTokens(_encoder(config, own), head, generator)


class DebertaEmbeddings(Embeddings):
    """Embeddings of words, and of relative positions, which the layers read.

    Args:
        relative: of the positions.
        others: as for `Embeddings`.
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
    layers = [_layer(config, embeddings.relative, number) for number in range(config.num_hidden_layers)]
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
        convolved = Convolved(
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
