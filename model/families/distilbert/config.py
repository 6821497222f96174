"""The config of DistilBERT: no segments, no pair head, and how it learns from a teacher. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from model.families.config import ModelConfig
from pipeline.core.config import Tag

Weight = Annotated[float, Field(ge=0.0)]


class DistilBertConfig(ModelConfig):
    """DistilBERT (Sanh et al., 2019). The losses' weights are those of transformers' research_projects/distillation/README.md."""

    heads: ClassVar[Mapping[str, Any]] = {"masked_lm": {}}
    learns_from_teacher: ClassVar[bool] = True

    family: Tag[Literal["distilbert"]] = "distilbert"
    type_vocab_size: Literal[0] = 0

    temperature: Annotated[float, Field(gt=0.0)] = 2.0
    """Temperature of both distributions of the distillation loss (section 3)."""

    distillation_weight: Weight = 5.0
    """Weight of the distillation loss, where there is a teacher."""

    mlm_weight: Weight = 2.0
    """Weight of the masked-token loss, where there is a teacher."""

    cosine_weight: Weight = 1.0
    """Weight of the loss between hidden states, where there is a teacher."""

    def own_objectives(self, pair_task: str | None) -> tuple[str, ...]:
        return ("mlm",)

    def taught_objectives(self, teacher: ModelConfig) -> tuple[str, ...]:
        """Hidden states can be compared where they are equally wide."""
        return ("mlm", "distillation", "cosine") if teacher.hidden_size == self.hidden_size else ("mlm", "distillation")

    def teacher_temperature(self) -> float:
        return self.temperature

    def loss_weights(self) -> Mapping[str, float]:
        return {"mlm": self.mlm_weight, "distillation": self.distillation_weight, "cosine": self.cosine_weight}


CONFIG = DistilBertConfig
