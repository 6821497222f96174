"""The config of DeBERTa, versions 2 and 3: disentangled attention, two pretraining methods.

No torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from cloze.core.config import UnionTag
from cloze.model.families.config import ModelConfig


class DebertaConfig(ModelConfig):
    """DeBERTaV3-base (He et al., 2023; microsoft/DeBERTa, language_model/rtd_base.json).

    Defaults are those of transformers' classes; presets set the pretraining method.
    """

    supports_compile: ClassVar[bool] = False  # not measured

    supports_causal: ClassVar[bool] = False

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
    def _fits_together(self) -> DebertaConfig:
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
        return (
            self.max_relative_positions
            if self.max_relative_positions > 0
            else self.max_position_embeddings
        )

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
        own = 0 if self.share_att_key else len(self.pos_att_type) * self.hidden_size**2
        return super().layer_weights + own

    @property
    def position_terms(self) -> int:
        return len(self.pos_att_type)

    @property
    def weights_beside_layers(self) -> int:
        """Number of weights outside the layers, with the generator; norms and biases excluded."""
        width, networks = self.hidden_size, 2 if self.pretraining == "rtd" else 1
        tables = self.vocab_size + networks * (2 * self.position_span + self.type_vocab_size)
        tables += networks * self.max_position_embeddings if self.position_biased_input else 0
        tables += (
            self.vocab_size if self.pretraining == "rtd" else 0
        )  # GDES deltas of the word embeddings
        tables += self.max_position_embeddings if self.enhanced_mask_decoder else 0
        matrices = networks + self.conv_kernel_size
        return width * tables + width**2 * matrices + self.vocab_size

    def default_objectives(self, pair_task: str | None) -> tuple[str, ...]:
        return ("mlm", "rtd") if self.pretraining == "rtd" else ("mlm",)

    def loss_weights(self) -> Mapping[str, float]:
        return {"rtd": self.discriminator_weight} if self.pretraining == "rtd" else {}


def _v3(layers: int, width: int, **changes: Any) -> ModelConfig:
    return DebertaConfig.of_size(
        layers, width, pretraining="rtd", enhanced_mask_decoder=True, **changes
    )


def _v2(layers: int, width: int, **changes: Any) -> ModelConfig:
    return DebertaConfig.of_size(layers, width, enhanced_mask_decoder=True, **changes)


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
