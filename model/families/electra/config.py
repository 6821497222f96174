"""The config of ELECTRA: the discriminator's sizes, and the generator's relative to them.

No torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from cloze.core.config import UnionTag
from cloze.model.families.config import ModelConfig, Size


class ElectraConfig(ModelConfig):
    """ELECTRA (Clark et al., 2020)."""

    heads: ClassVar[Mapping[str, Any]] = {"masked_lm": {}, "discriminator": {}}
    supports_causal: ClassVar[bool] = False

    family: UnionTag[Literal["electra"]] = "electra"

    embedding_size: Size = 768
    """Width of the embeddings, projected to hidden_size if it differs (google-research/electra,
    `embeddings_project`)."""

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
        return (self.generator,)

    def default_objectives(self, pair_task: str | None) -> tuple[str, ...]:
        return ("mlm", "rtd")

    def loss_weights(self) -> Mapping[str, float]:
        return {"rtd": self.discriminator_weight}


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
