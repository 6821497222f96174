"""The config of DistilBERT: no segments, no pair head, distillation losses. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from cloze.core.config import UnionTag
from cloze.model.families.config import ModelConfig

Weight = Annotated[float, Field(ge=0.0)]


class DistilBertConfig(ModelConfig):
    """DistilBERT (Sanh et al., 2019).

    Loss weights are those of transformers' research_projects/distillation/README.md.
    """

    heads: ClassVar[Mapping[str, Any]] = {"masked_lm": {}}
    learns_from_teacher: ClassVar[bool] = True

    family: UnionTag[Literal["distilbert"]] = "distilbert"
    type_vocab_size: Literal[0] = 0

    temperature: Annotated[float, Field(gt=0.0)] = 2.0
    """Temperature of both distributions in the distillation loss (section 3)."""

    distillation_weight: Weight = 5.0
    """With a teacher: weight of the distillation loss."""

    mlm_weight: Weight = 2.0
    """With a teacher: weight of the masked-token loss."""

    cosine_weight: Weight = 1.0
    """With a teacher: weight of the cosine loss between hidden states."""

    def default_objectives(self, pair_task: str | None) -> tuple[str, ...]:
        return ("mlm",)

    def distillation_objectives(self, teacher: ModelConfig) -> tuple[str, ...]:
        """Add the cosine loss only if teacher and student have equal width."""
        return (
            ("mlm", "distillation", "cosine")
            if teacher.hidden_size == self.hidden_size
            else ("mlm", "distillation")
        )

    def teacher_temperature(self) -> float:
        return self.temperature

    def loss_weights(self) -> Mapping[str, float]:
        return {
            "mlm": self.mlm_weight,
            "distillation": self.distillation_weight,
            "cosine": self.cosine_weight,
        }


CONFIG = DistilBertConfig

# DistilBERT's size (Sanh et al., 2019, Table 3): half of BERT-base's layers.
PRESETS: dict[str, ModelConfig] = {
    "distilbert-tiny": DistilBertConfig.of_size(2, 128),
    # 66M parameters: 66.4M in the encoder, 67.0M with the LM head
    "distilbert-base": DistilBertConfig.of_size(6, 768),
}
