"""ELECTRA (Clark et al., 2020): a small generator fills masks, the encoder detects replaced tokens.

The encoder is the discriminator; fine-tuning and export keep it. The generator is a masked language
model that shares the discriminator's embeddings (section 3.2). The discriminator's gradient reaches
the generator only through these embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

from pydantic import Field, ValidationInfo, field_validator

from cloze.core.config import UnionTag
from cloze.core.errors import DataError
from cloze.model.families import bert
from cloze.model.families.config import ModelConfig, Size
from cloze.model.families.hub_format import TASK_ROWS, fine_tuned, same
from cloze.model.families.key_map import Drop, KeyMap

if TYPE_CHECKING:
    from cloze.model.families.pretraining import PretrainingModel, ReplacedTokenModel
    from cloze.model.layers.embeddings import Embeddings


class ElectraConfig(ModelConfig):
    """ELECTRA (Clark et al., 2020)."""

    supports_causal: ClassVar[bool] = False
    pooler_activation: ClassVar[str] = "gelu"  # transformers' `ElectraClassificationHead`

    family: UnionTag[Literal["electra"]] = "electra"

    embedding_size: Size = 768
    """Width of the embeddings, projected to hidden_size if it differs (google-research/electra,
    `embeddings_project`)."""

    pretraining: Literal["rtd", "mlm"] = "rtd"
    """Pretraining objective: rtd, replaced-token detection with a generator; or mlm, the model is a
    generator alone, a masked language model."""

    generator_size: Annotated[float, Field(gt=0.0, le=1.0)] = 0.25
    """Width, heads and feed-forward size of the generator as a share of the discriminator's (Table
    6). The number of layers is equal."""

    discriminator_weight: Annotated[float, Field(ge=0.0)] = 50.0
    """Weight of the replaced-token loss relative to the generator's loss (λ in section 3.2 and
    Table 6)."""

    @field_validator("generator_size")
    @classmethod
    def _generator_has_whole_heads(cls, share: float, info: ValidationInfo) -> float:
        width, heads = info.data.get("hidden_size"), info.data.get("num_attention_heads")
        if width and heads and int(width * share) % max(1, int(heads * share)):
            raise ValueError(
                f"a generator of width {int(width * share)} cannot have "
                f"{max(1, int(heads * share))} heads; take another share"
            )
        return share

    @property
    def heads(self) -> Mapping[str, Any]:  # type: ignore[override]
        """Heads as in `ModelConfig.heads`, by pretraining objective."""
        rtd = self.pretraining == "rtd"
        return {"masked_lm": {}, "discriminator": {}} if rtd else {"masked_lm": {}}

    def default_objectives(self, pair_task: str | None) -> tuple[str, ...]:
        del pair_task
        return ("mlm", "rtd") if self.pretraining == "rtd" else ("mlm",)

    @property
    def generator(self) -> ModelConfig:
        """Config of the generator (google-research/electra, `get_generator_config`)."""
        share = self.generator_size
        return self.model_copy(
            update={
                "hidden_size": int(self.hidden_size * share),
                "num_attention_heads": max(1, int(self.num_attention_heads * share)),
                "intermediate_size": int(self.intermediate_size * share),
            }
        )

    @property
    def word_width(self) -> int:
        return self.embedding_size

    @property
    def auxiliary_models(self) -> tuple[ModelConfig, ...]:
        return (self.generator,) if self.pretraining == "rtd" else ()

    def loss_weights(self) -> Mapping[str, float]:
        return {"rtd": self.discriminator_weight} if self.pretraining == "rtd" else {}


CONFIG = ElectraConfig

# ELECTRA's sizes (Clark et al., 2020, Table 6). Counts are of the discriminator without its head.
PRESETS: dict[str, ModelConfig] = {
    "electra-tiny": ElectraConfig.of_size(2, 128, embedding_size=128, generator_size=0.5),
    # 14M (also Table 1)
    "electra-small": ElectraConfig.of_size(12, 256, embedding_size=128, generator_size=0.25),
    # 110M
    "electra-base": ElectraConfig.of_size(12, 768, embedding_size=768, generator_size=1 / 3),
    # 335M
    "electra-large": ElectraConfig.of_size(24, 1024, embedding_size=1024, generator_size=0.25),
}


def build_model(config: ElectraConfig) -> ReplacedTokenModel | PretrainingModel:
    from torch import nn

    from cloze.model.families.models import encoder, masked_lm
    from cloze.model.families.pretraining import PretrainingModel, ReplacedTokenModel
    from cloze.model.layers.cpu import Linear
    from cloze.model.layers.embeddings import ProjectedEmbeddings
    from cloze.model.layers.heads import ReplacedTokenHead

    generator_config, size = config.generator, config.embedding_size
    if config.pretraining == "mlm":
        head = masked_lm(config, size, activation="gelu")  # whatever hidden_act is
        return PretrainingModel(encoder(config, embedding_size=size), head)
    discriminator, generator = encoder(config, embedding_size=size), encoder(generator_config)
    projection = (
        nn.Identity()
        if generator_config.hidden_size == size
        else Linear(size, generator_config.hidden_size)
    )
    generator.embeddings = cast(
        "Embeddings", ProjectedEmbeddings(discriminator.embeddings, projection)
    )
    return ReplacedTokenModel(
        discriminator,
        ReplacedTokenHead(config.hidden_size, config.hidden_act),
        PretrainingModel(generator, masked_lm(generator_config, size)),
    )


SUMMARY = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}


class ElectraFormat(bert.BertFormat):
    family = "electra"
    model_type = "electra"
    keys = KeyMap(
        [
            *bert.encoder_rows("electra"),
            ("encoder.embeddings.projection.{p}", "electra.embeddings_project.{p}"),
            ("discriminator.dense.{p}", "discriminator_predictions.dense.{p}"),
            ("discriminator.output.{p}", "discriminator_predictions.dense_prediction.{p}"),
            ("pooler.dense.{p}", "classifier.dense.{p}"),
            ("classifier.{p}", "classifier.out_proj.{p}"),
        ]
    )
    fields = {**bert.HUB.fields, **same("embedding_size", "pretraining")}
    fixed = {"is_decoder": False}
    architectures = {frozenset({"discriminator"}): "ElectraForPreTraining", **fine_tuned("Electra")}
    # ElectraForMultipleChoice pools by a summary, by default the classifier's dense layer and GELU.
    task_rows = {
        **TASK_ROWS,
        "choice": (*TASK_ROWS["choice"], ("pooler.dense.{p}", "sequence_summary.summary.{p}")),
    }
    drops = (Drop("generator_predictions.*", named=True), Drop("generator_lm_head.*", named=True))
    unexported: tuple[str, ...] = ("masked_lm", "generator")
    # transformers' defaults are those of ELECTRA-small
    defaults = {
        "embedding_size": 128,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    }

    def write(self, config: dict[str, Any]) -> dict[str, Any]:
        """Leave out the pretraining objective, which the class tells."""
        return {name: value for name, value in config.items() if name != "pretraining"}

    def read(self, config: dict[str, Any]) -> dict[str, Any]:
        """Refuse multiple choice by another vector than the classifier's.

        Raises:
            DataError: it is one.
        """
        for name, value in SUMMARY.items():
            found = config.get(name, value)
            if found != value and "ElectraForMultipleChoice" in (config.get("architectures") or ()):
                raise DataError(
                    f"{name} ({found!r}) must be {value!r}, as Cloze's electra chooses; import the "
                    f"pretrained model, and fine-tune it"
                )
        return {**config, "pretraining": "rtd"}


HUB = ElectraFormat()


class GeneratorFormat(ElectraFormat):
    keys = KeyMap(
        [
            *HUB.keys.rows,
            ("masked_lm.dense.{p}", "generator_predictions.dense.{p}"),
            ("masked_lm.norm.{p}", "generator_predictions.LayerNorm.{p}"),
            ("masked_lm.bias", "generator_lm_head.bias"),
        ]
    )
    fixed = {**HUB.fixed, "tie_word_embeddings": True}
    architectures = {frozenset({"masked_lm"}): "ElectraForMaskedLM"}
    drops = (
        Drop("generator_lm_head.weight", "electra.embeddings.word_embeddings.weight"),
        Drop("discriminator_predictions.*", named=True),
    )
    unexported = ()

    def read(self, config: dict[str, Any]) -> dict[str, Any]:
        return {**config, "pretraining": "mlm"}


GENERATOR_HUB = GeneratorFormat()
