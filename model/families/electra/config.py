"""The config of ELECTRA: the discriminator's sizes, and the generator's as a share of them. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from model.families.config import ModelConfig, Size
from pipeline.core.config import Tag


class ElectraConfig(ModelConfig):
    """ELECTRA (Clark et al., 2020)."""

    heads: ClassVar[Mapping[str, Any]] = {"masked_lm": {}, "discriminator": {}}
    both_ways: ClassVar[bool] = False

    family: Tag[Literal["electra"]] = "electra"

    embedding_size: Size = 768
    """Width of the embeddings; where it is not the hidden size, a projection follows (google-research/electra, `embeddings_project`)."""

    generator_size: Annotated[float, Field(gt=0.0, le=1.0)] = 0.25
    """The generator's width, heads and feed-forward block as a share of the discriminator's (Table 6); it has as many layers."""

    discriminator_weight: Annotated[float, Field(ge=0.0)] = 50.0
    """Weight of the replaced-token loss beside the generator's (λ in section 3.2 and Table 6)."""

    @field_validator("generator_size")
    @classmethod
    def _generator_has_whole_heads(cls, share: float, info: ValidationInfo) -> float:
        width, heads = info.data.get("hidden_size"), info.data.get("num_attention_heads")
        if width and heads and int(width * share) % max(1, int(heads * share)):
            raise ValueError(
                f"a generator of width {int(width * share)} cannot have {max(1, int(heads * share))} heads; take another share"
            )
        return share

    @property
    def generator(self) -> ModelConfig:
        """The generator's sizes (google-research/electra, run_pretraining.py, `get_generator_config`)."""
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
    def beside(self) -> tuple[ModelConfig, ...]:
        return (self.generator,)

    def own_objectives(self, pair_task: str | None) -> tuple[str, ...]:
        return ("mlm", "rtd")

    def loss_weights(self) -> Mapping[str, float]:
        return {"rtd": self.discriminator_weight}


CONFIG = ElectraConfig
