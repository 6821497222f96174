"""Options of learning from a teacher, in pretraining and on a task. No torch: part of configs."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

Weight = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class DistillOptions(BaseModel):
    """Weights of the losses of a student with a teacher; 0 leaves a loss out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    labels: Weight = 0.5
    """Weight of the loss without a teacher: masked tokens, or the task's labels."""

    soft: Weight = 0.5
    """Weight of the divergence from the teacher's distributions (Hinton et al. 2015)."""

    hidden: Weight = 0.0
    """Weight of the squared distance between hidden states: embeddings, and student layer i beside
    teacher layer i T/S (Jiao et al. 2020). Where widths differ, a learned matrix maps the student's
    states."""

    relations: Weight = 0.0
    """Weight of the divergence between relations of queries, keys and values of the last layer
    (MiniLM: Wang et al. 2021), for any widths and numbers of heads."""

    temperature: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 2.0
    """Temperature of both distributions of `soft`; its square multiplies the loss."""

    relation_heads: Annotated[int, Field(ge=1)] | None = None
    """Heads of `relations`; must divide both widths. Default: the teacher's attention heads."""

    @model_validator(mode="after")
    def _learns_something(self) -> DistillOptions:
        if not (self.soft or self.hidden or self.relations):
            raise ValueError(
                "distill has no loss against the teacher (soft, hidden and relations are 0); give "
                "one of them a weight, or leave the teacher out"
            )
        return self

    def loss_weights(self) -> dict[str, float]:
        """Return the weight of each loss of pretraining that is in use, by objective."""
        weights = {
            "mlm": self.labels,
            "distillation": self.soft,
            "states": self.hidden,
            "relations": self.relations,
        }
        return {name: weight for name, weight in weights.items() if weight}
