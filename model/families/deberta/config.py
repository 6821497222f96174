"""The config of DeBERTa, versions 2 and 3: disentangled attention, and one of two ways of pretraining. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from model.families.config import ModelConfig
from pipeline.core.config import Tag


class DebertaConfig(ModelConfig):
    """Defaults are those of DeBERTaV3-base (He et al., 2023; microsoft/DeBERTa, experiments/language_model/rtd_base.json) as
    transformers' classes know it; how it is pretrained, the presets say.
    """

    compiles: ClassVar[bool] = False  # not measured

    both_ways: ClassVar[bool] = False

    usual_vocabulary: ClassVar[int] = 128_100
    usual_batch: ClassVar[int] = 8192  # DeBERTaV3, Table 8: base; 2,048 in version 2

    family: Tag[Literal["deberta"]] = "deberta"
    type_vocab_size: Annotated[int, Field(ge=0)] = 0
    layer_norm_eps: Annotated[float, Field(gt=0.0)] = 1e-7

    pretraining: Literal["mlm", "rtd"] = "mlm"
    """Masked tokens (version 2), or replaced tokens beside a generator whose embeddings it shares (version 3)."""

    enhanced_mask_decoder: bool = False
    """Name masked tokens from the last layer asked twice, with absolute positions (He et al., 2021, section 3.2)."""

    generator_layers: Annotated[int, Field(ge=0)] = 0
    """With rtd, layers of the generator, which is as wide; 0: half as many as the model's (DeBERTaV3, section 3)."""

    discriminator_weight: Annotated[float, Field(ge=0.0)] = 10.0
    """With rtd, the weight of the replaced-token loss beside the generator's (microsoft/DeBERTa, rtd_task.py, `rtd_lambda`)."""

    position_buckets: Annotated[int, Field(ge=-1)] = 256
    """Buckets of relative positions to either side, of which the far half widens by the logarithm; -1: one a distance."""

    max_relative_positions: Annotated[int, Field(ge=-1)] = -1
    """The relative position that all farther ones are taken for; -1: max_position_embeddings."""

    pos_att_type: tuple[Literal["c2p", "p2c"], ...] = ("p2c", "c2p")
    """What attention scores have beside contents: content to position (c2p), position to content (p2c)."""

    share_att_key: bool = True
    """Positions are projected by the contents' own matrices."""

    norm_rel_ebd: Literal["none", "layer_norm"] = "layer_norm"
    """What is done with the relative positions' embeddings before they are projected."""

    position_biased_input: bool = False
    """Absolute positions are added to the embeddings."""

    conv_kernel_size: Annotated[int, Field(ge=0)] = 0
    """Tokens that a convolution beside the first layer sees, an odd number; 0: there is none (3 in version 2)."""

    conv_act: Literal["gelu", "gelu_new", "relu", "tanh"] = "tanh"
    """The convolution's activation."""

    @model_validator(mode="after")
    def _fits_together(self) -> DebertaConfig:
        if len(set(self.pos_att_type)) != len(self.pos_att_type) or not self.pos_att_type:
            raise ValueError(f"pos_att_type ({list(self.pos_att_type)}) must name c2p, p2c, or both, each once")
        if self.conv_kernel_size and self.conv_kernel_size % 2 == 0:
            raise ValueError(
                f"conv_kernel_size ({self.conv_kernel_size}) must be odd; use {self.conv_kernel_size + 1}, or 0 for none"
            )
        middle = self.position_buckets // 2
        if self.position_buckets > 0 and self.max_position_embeddings > middle + 1 >= self.farthest:
            raise ValueError(
                f"max_relative_positions ({self.farthest}) is too few for position_buckets ({self.position_buckets}), of which half"
                f" have a distance each; use {middle + 2} or more, or fewer buckets"
            )
        if self.enhanced_mask_decoder and self.position_biased_input:
            raise ValueError(
                "enhanced_mask_decoder is for models whose input has no positions; leave out position_biased_input"
            )
        return self

    @property
    def heads(self) -> Mapping[str, Any]:  # type: ignore[override]
        """As `ModelConfig.heads`, by how it is pretrained."""
        if self.pretraining == "rtd":
            return {"masked_lm": {}, "discriminator": {}}
        return {"masked_lm": {}, "decoder": {}} if self.enhanced_mask_decoder else {"masked_lm": {}}

    @property
    def farthest(self) -> int:
        """The distance that all farther ones are taken for."""
        return self.max_relative_positions if self.max_relative_positions > 0 else self.max_position_embeddings

    @property
    def position_span(self) -> int:
        """Embeddings of relative positions, of one direction."""
        return self.position_buckets if self.position_buckets > 0 else self.farthest

    @property
    def backbone(self) -> DebertaConfig:
        return self.model_copy(update={"pretraining": "mlm", "enhanced_mask_decoder": False})

    @property
    def generator(self) -> DebertaConfig:
        """The network that fills the masks: as wide, and half as deep."""
        layers = self.generator_layers or max(1, self.num_hidden_layers // 2)
        return self.model_copy(update={"pretraining": "mlm", "num_hidden_layers": layers, "conv_kernel_size": 0})

    @property
    def beside(self) -> tuple[ModelConfig, ...]:
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
        """Of embeddings, the convolution and the heads, the generator's with them; without biases of width D, and norms."""
        width, networks = self.hidden_size, 2 if self.pretraining == "rtd" else 1
        tables = self.vocab_size + networks * (2 * self.position_span + self.type_vocab_size)
        tables += networks * self.max_position_embeddings if self.position_biased_input else 0
        tables += self.vocab_size if self.pretraining == "rtd" else 0  # what moves the word embeddings
        tables += self.max_position_embeddings if self.enhanced_mask_decoder else 0
        matrices = networks + self.conv_kernel_size
        return width * tables + width**2 * matrices + self.vocab_size

    def own_objectives(self, pair_task: str | None) -> tuple[str, ...]:
        return ("mlm", "rtd") if self.pretraining == "rtd" else ("mlm",)

    def loss_weights(self) -> Mapping[str, float]:
        return {"rtd": self.discriminator_weight} if self.pretraining == "rtd" else {}


CONFIG = DebertaConfig
