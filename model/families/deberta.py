"""DeBERTa (He et al., 2021) and DeBERTaV3 (He et al., 2023): disentangled attention.

The enhanced mask decoder follows the authors' program (microsoft/DeBERTa, masked_language_model.py,
`EnhancedMaskDecoder`). The queries are the input of the last layer plus absolute positions; they
run through that layer twice, at masked positions only, with keys and values of the layer's input.

Version 3 is pretrained like ELECTRA. Its generator has equal width and half the layers, decodes
with absolute positions, and trains the word embeddings. The discriminator adds deltas to these.

transformers has no enhanced mask decoder and no discriminator head. A model with either is exported
as an encoder (`DebertaV2Model`); a plain masked language model is exported in full, with the head
of the authors' files (`lm_predictions`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

from pydantic import Field, model_validator

from cloze.core.config import UnionTag
from cloze.core.errors import DataError
from cloze.model.families import bert
from cloze.model.families.config import ModelConfig
from cloze.model.families.hub_format import HubFormat, Row, fine_tuned, same
from cloze.model.families.key_map import Drop, KeyMap

if TYPE_CHECKING:
    from cloze.model.families.pretraining import DecoderModel, ReplacedTokenModel
    from cloze.model.layers.disentangled import RelativePositions
    from cloze.model.layers.embeddings import Embeddings, GdesEmbedding
    from cloze.model.layers.encoder import Encoder


class DebertaConfig(ModelConfig):
    """DeBERTaV3-base (He et al., 2023; microsoft/DeBERTa, language_model/rtd_base.json), with the
    defaults of transformers' classes; presets set the pretraining method.
    """

    pooler_activation: ClassVar[str] = "gelu"  # transformers' `ContextPooler`
    supports_compile: ClassVar[bool] = False  # not measured
    supports_causal: ClassVar[bool] = False
    supports_pruned_heads: ClassVar[bool] = False  # positions are projected by all together
    default_vocab_size: ClassVar[int] = 128_100
    default_batch_size: ClassVar[int] = 8192  # DeBERTaV3, Table 8: base; 2,048 in version 2

    family: UnionTag[Literal["deberta"]] = "deberta"
    type_vocab_size: Annotated[int, Field(ge=0)] = 0
    layer_norm_eps: Annotated[float, Field(gt=0.0)] = 1e-7

    pretraining: Literal["mlm", "rtd"] = "mlm"
    """Pretraining objective: mlm (version 2) or rtd, replaced-token detection with a generator that
    shares its embeddings (version 3)."""

    enhanced_mask_decoder: bool = False
    """Predict masked tokens with an enhanced mask decoder: the last layer runs twice, with absolute
    positions (He et al., 2021, section 3.2)."""

    generator_layers: Annotated[int, Field(ge=0)] = 0
    """With rtd: layers of the generator, which has the same width. 0: half the layers of the
    discriminator (DeBERTaV3, section 3)."""

    discriminator_weight: Annotated[float, Field(ge=0.0)] = 10.0
    """With rtd: weight of the replaced-token loss relative to the generator's loss
    (microsoft/DeBERTa, `rtd_lambda`)."""

    position_buckets: Annotated[int, Field(ge=-1)] = 256
    """Buckets of relative positions per direction; the far half is logarithmic. -1: one bucket per
    distance."""

    max_relative_positions: Annotated[int, Field(ge=-1)] = -1
    """Maximum relative position; larger distances are clipped. -1: max_position_embeddings."""

    pos_att_type: tuple[Literal["c2p", "p2c"], ...] = ("p2c", "c2p")
    """Terms that attention scores add to content-to-content: c2p (content to position), p2c
    (position to content)."""

    share_att_key: bool = True
    """Project positions with the content's own matrices."""

    norm_rel_ebd: Literal["none", "layer_norm"] = "layer_norm"
    """Normalization of the relative-position embeddings before they are projected."""

    position_biased_input: bool = False
    """Add absolute position embeddings to the input embeddings."""

    conv_kernel_size: Annotated[int, Field(ge=0)] = 0
    """Kernel size of a convolution parallel to the first layer, an odd number. 0: no convolution;
    version 2 uses 3."""

    conv_act: Literal["gelu", "gelu_new", "relu", "tanh"] = "tanh"
    """Activation of the convolution."""

    @model_validator(mode="after")
    def _check_compatible(self) -> DebertaConfig:
        if len(set(self.pos_att_type)) != len(self.pos_att_type) or not self.pos_att_type:
            raise ValueError(
                f"pos_att_type ({list(self.pos_att_type)}) must name c2p, p2c, or both, each once"
            )
        if self.conv_kernel_size and self.conv_kernel_size % 2 == 0:
            raise ValueError(
                f"conv_kernel_size ({self.conv_kernel_size}) must be odd; use "
                f"{self.conv_kernel_size + 1}, or 0 for none"
            )
        middle = self.position_buckets // 2
        if self.position_buckets > 0 and self.max_position_embeddings > middle + 1 >= self.farthest:
            raise ValueError(
                f"max_relative_positions ({self.farthest}) is too few for position_buckets "
                f"({self.position_buckets}), of which half"
                f" have a distance each; use {middle + 2} or more, or fewer buckets"
            )
        if self.enhanced_mask_decoder and self.position_biased_input:
            raise ValueError(
                "enhanced_mask_decoder is for models whose input has no positions; leave out "
                "position_biased_input"
            )
        return self

    @property
    def heads(self) -> Mapping[str, Any]:  # type: ignore[override]
        """Heads as in `ModelConfig.heads`, by pretraining method."""
        if self.pretraining == "rtd":
            return {"masked_lm": {}, "discriminator": {}}
        return {"masked_lm": {}, "decoder": {}} if self.enhanced_mask_decoder else {"masked_lm": {}}

    @property
    def farthest(self) -> int:
        """Maximum distance; larger distances are clipped to it."""
        farthest = self.max_relative_positions
        return farthest if farthest > 0 else self.max_position_embeddings

    @property
    def position_span(self) -> int:
        """Number of relative-position embeddings per direction."""
        return self.position_buckets if self.position_buckets > 0 else self.farthest

    @property
    def backbone(self) -> DebertaConfig:
        return self.model_copy(update={"pretraining": "mlm", "enhanced_mask_decoder": False})

    @property
    def generator(self) -> DebertaConfig:
        """Config of the generator: equal width, half the layers."""
        layers = self.generator_layers or max(1, self.num_hidden_layers // 2)
        return self.model_copy(
            update={"pretraining": "mlm", "num_hidden_layers": layers, "conv_kernel_size": 0}
        )

    @property
    def auxiliary_models(self) -> tuple[ModelConfig, ...]:
        return (self.generator,) if self.pretraining == "rtd" else ()

    @property
    def layer_weights(self) -> int:
        terms = 0 if self.share_att_key else len(self.pos_att_type)
        return super().layer_weights + terms * self.hidden_size**2

    @property
    def position_terms(self) -> int:  # type: ignore[override]
        return len(self.pos_att_type)

    @property
    def weights_outside_layers(self) -> int:
        """Number of weights outside the layers, with the generator; norms and biases excluded."""
        width, networks = self.hidden_size, 2 if self.pretraining == "rtd" else 1
        tables = self.vocab_size + networks * (2 * self.position_span + self.type_vocab_size)
        tables += networks * self.max_position_embeddings if self.position_biased_input else 0
        # GDES deltas of the word embeddings
        tables += self.vocab_size if self.pretraining == "rtd" else 0
        tables += self.max_position_embeddings if self.enhanced_mask_decoder else 0
        matrices = networks + self.conv_kernel_size
        return width * tables + width**2 * matrices + self.vocab_size

    def default_objectives(self, pair_task: str | None) -> tuple[str, ...]:
        return ("mlm", "rtd") if self.pretraining == "rtd" else ("mlm",)

    def loss_weights(self) -> Mapping[str, float]:
        return {"rtd": self.discriminator_weight} if self.pretraining == "rtd" else {}


def _v2(layers: int, width: int, **changes: Any) -> ModelConfig:
    return DebertaConfig.of_size(layers, width, enhanced_mask_decoder=True, **changes)


def _v3(layers: int, width: int, **changes: Any) -> ModelConfig:
    return _v2(layers, width, pretraining="rtd", **changes)


CONFIG = DebertaConfig

# Sizes of version 3 (He et al., 2023, section 4, Table 5; microsoft/DeBERTa,
# experiments/language_model/rtd_*.json, README.md) and version 2 (deberta_*.json). Counts exclude
# the 128,100 word embeddings.
PRESETS: dict[str, ModelConfig] = {
    "deberta-tiny": _v2(2, 128, position_buckets=64, conv_kernel_size=3, conv_act="gelu"),
    "deberta-base": _v2(12, 768),  # version 2's attention and vocabulary at BERT-base's size: 86M
    # 688M; the authors say 710M
    "deberta-v2-xlarge": _v2(24, 1536, conv_kernel_size=3, conv_act="gelu"),
    # 1,368M; the authors say 1,320M
    "deberta-v2-xxlarge": _v2(48, 1536, conv_kernel_size=3, conv_act="gelu"),
    "deberta-v3-tiny": _v3(2, 128, position_buckets=64),
    "deberta-v3-xsmall": _v3(12, 384),  # 22M
    "deberta-v3-small": _v3(6, 768),  # 44M
    "deberta-v3-base": _v3(12, 768),  # 86M
    "deberta-v3-large": _v3(24, 1024),  # 304M
}


def build_model(config: DebertaConfig) -> DecoderModel | ReplacedTokenModel:
    if config.pretraining == "rtd":
        return _build_replaced_tokens(config)
    return _build_masked_lm(config, _build_embeddings(config))


def _build_masked_lm(config: DebertaConfig, embeddings: Embeddings) -> DecoderModel:
    from cloze.model.families.models import masked_lm
    from cloze.model.families.pretraining import DecoderModel
    from cloze.model.layers.disentangled import EnhancedMaskDecoder

    decoder = None
    if config.enhanced_mask_decoder:
        decoder = EnhancedMaskDecoder(config.hidden_size, config.max_position_embeddings)
    return DecoderModel(_build_encoder(config, embeddings), masked_lm(config), decoder)


def _build_replaced_tokens(config: DebertaConfig) -> ReplacedTokenModel:
    from cloze.model.families.models import norm
    from cloze.model.families.pretraining import ReplacedTokenModel
    from cloze.model.layers.embeddings import GdesEmbedding, GdesEmbeddingView
    from cloze.model.layers.heads import ReplacedTokenHead

    embeddings = _build_embeddings(config)
    generator_embeddings = _build_embeddings(config.generator)
    embeddings.word = GdesEmbedding(config.vocab_size, config.hidden_size)
    embeddings.per_piece = ("word.weight", "word.delta")
    generator_embeddings.word = cast("GdesEmbedding", GdesEmbeddingView(embeddings.word))
    generator_embeddings.per_piece = ()
    generator = _build_masked_lm(config.generator, generator_embeddings)
    head = ReplacedTokenHead(config.hidden_size, config.hidden_act, norm(config))
    return ReplacedTokenModel(_build_encoder(config, embeddings), head, generator)


def _build_embeddings(config: DebertaConfig) -> Embeddings:
    """Build the word embeddings and `relative`, the position embeddings that the layers read."""
    from torch import nn

    from cloze.model.families.models import embeddings, norm
    from cloze.model.layers.disentangled import RelativePositions

    relative = RelativePositions(
        config.hidden_size,
        span=config.position_span,
        buckets=config.position_buckets,
        farthest=config.farthest,
        longest=config.max_position_embeddings,
        norm=norm(config) if config.norm_rel_ebd == "layer_norm" else nn.Identity(),
    )
    table = embeddings(config, max_positions=None if config.position_biased_input else 0)
    table.add_module("relative", relative)
    return table


def _build_encoder(config: DebertaConfig, embeddings: Embeddings) -> Encoder:
    from cloze.model.families.models import layer, norm
    from cloze.model.layers.cpu import ACTIVATIONS
    from cloze.model.layers.disentangled import ConvResidual, DebertaLayer, DisentangledAttention
    from cloze.model.layers.encoder import Encoder

    layers = []
    for number in range(config.num_hidden_layers):
        attention = DisentangledAttention(
            config.hidden_size,
            config.num_attention_heads,
            dropout=config.attention_dropout,
            relative=cast("RelativePositions", embeddings.relative),
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
                norm=norm(config),
            )
        layers.append(layer(config, attention, kind=DebertaLayer, convolved=convolved))
    return Encoder(embeddings, layers)


_ATTENTION = "deberta.encoder.layer.{n}.attention.self"
_ROWS: list[Row] = [
    *(
        (name, hf_name.replace(".{p}", "_proj.{p}") if hf_name.startswith(_ATTENTION) else hf_name)
        for name, hf_name in bert.encoder_rows("deberta")
    ),
    ("encoder.layers.{n}.attention.position_key.{p}", f"{_ATTENTION}.pos_key_proj.{{p}}"),
    ("encoder.layers.{n}.attention.position_query.{p}", f"{_ATTENTION}.pos_query_proj.{{p}}"),
    ("encoder.embeddings.relative.table.weight", "deberta.encoder.rel_embeddings.weight"),
    ("encoder.embeddings.relative.norm.{p}", "deberta.encoder.LayerNorm.{p}"),
    ("encoder.layers.0.convolved.convolution.{p}", "deberta.encoder.conv.conv.{p}"),
    ("encoder.layers.0.convolved.norm.{p}", "deberta.encoder.conv.LayerNorm.{p}"),
    ("masked_lm.dense.{p}", "lm_predictions.lm_head.dense.{p}"),
    ("masked_lm.norm.{p}", "lm_predictions.lm_head.LayerNorm.{p}"),
    ("masked_lm.bias", "lm_predictions.lm_head.bias"),
    ("pooler.dense.{p}", "pooler.dense.{p}"),
    ("classifier.{p}", "classifier.{p}"),
]


class DebertaFormat(HubFormat):
    family = "deberta"
    model_type = "deberta-v2"
    keys = KeyMap(_ROWS)
    fields = {
        **bert.HUB.fields,
        **same("position_buckets", "max_relative_positions", "pos_att_type", "share_att_key"),
        **same("norm_rel_ebd", "position_biased_input", "conv_kernel_size", "conv_act"),
    }
    fixed = {"conv_groups": 1, "pooler_hidden_act": "gelu", "tie_word_embeddings": True}
    architectures = {
        frozenset({"masked_lm"}): "DebertaV2ForMaskedLM",
        frozenset({"masked_lm", "decoder"}): "DebertaV2Model",
        frozenset({"masked_lm", "discriminator"}): "DebertaV2Model",
        **fine_tuned("DebertaV2"),
    }
    encoder_alone = ("decoder", "discriminator")
    drops = (
        Drop("cls.predictions.decoder.weight", "deberta.embeddings.word_embeddings.weight"),
        Drop("cls.predictions.decoder.bias", "lm_predictions.lm_head.bias"),
        Drop("mask_predictions.*", named=True),  # discriminator head in the authors' files
        # The authors' files have absolute positions, even if the input has none.
        Drop(
            "deberta.embeddings.position_embeddings.weight",
            named=True,
            when=lambda model, head: not model.position_biased_input,
        ),
    )
    legacy = {  # transformers' head, and its copy of the bias
        "cls.predictions.transform.": "lm_predictions.lm_head.",
        "cls.predictions.bias": "lm_predictions.lm_head.bias",
    }
    # transformers' defaults are those of DeBERTa-v2-xlarge, without relative positions
    defaults = {
        "hidden_size": 1536,
        "num_hidden_layers": 24,
        "num_attention_heads": 24,
        "intermediate_size": 6144,
        "relative_attention": False,
        "position_buckets": -1,
        "share_att_key": False,
        "norm_rel_ebd": "none",
        "position_biased_input": True,
        "pos_att_type": [],
    }

    def write(self, config: dict[str, Any]) -> dict[str, Any]:
        width = config["hidden_size"]
        return {**config, "relative_attention": True, "legacy": False, "pooler_hidden_size": width}

    def read(self, config: dict[str, Any]) -> dict[str, Any]:
        """Convert Hugging Face's values to those of `DebertaConfig`.

        Raises:
            DataError: the model has no relative positions, or another width of embeddings or heads.
        """
        if not config["relative_attention"]:
            raise DataError(
                "relative_attention is false, and DeBERTa without it is a BERT; use a model with "
                "relative positions"
            )
        width, heads = config["hidden_size"], config["num_attention_heads"]
        for name, expected in (("embedding_size", width), ("attention_head_size", width // heads)):
            if config.get(name, expected) != expected:
                raise DataError(
                    f"{name} ({config[name]}) must be {expected}, to fit hidden_size ({width}); "
                    f"use another model"
                )
        terms, norms = config["pos_att_type"] or [], config["norm_rel_ebd"]
        config["pos_att_type"] = (
            [term.strip() for term in terms.lower().split("|")] if isinstance(terms, str) else terms
        )
        config["norm_rel_ebd"] = "layer_norm" if "layer_norm" in norms.lower() else "none"
        return config


HUB = DebertaFormat()
