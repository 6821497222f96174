"""Options of distillation, in pretraining and on a task. Imports no torch: part of configs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from cloze.core.config import Values

Weight = Annotated[float, Field(ge=0.0)]


class DistillOptions(Values):
    """Weights of a student's losses; 0 leaves a loss out."""

    labels: Weight = 0.5
    """Weight of the loss without a teacher: masked tokens, or the task's labels."""

    soft: Weight = 0.5
    """Weight of the divergence from the teacher's distributions (Hinton et al. 2015)."""

    hidden: Weight = 0.0
    """Weight of the squared distance between hidden states: of the embeddings, and of student layer
    i and teacher layer i·T/S, for S and T layers (Jiao et al. 2020). If widths differ, a learned
    matrix maps the student's states."""

    relations: Weight = 0.0
    """Weight of the divergence between the last layers' relations of queries, keys and values
    (MiniLMv2: Wang et al. 2021); widths and attention heads may differ."""

    temperature: Annotated[float, Field(gt=0.0)] = 2.0
    """Temperature of both distributions of `soft`; its square multiplies the loss."""

    relation_heads: Annotated[int, Field(ge=1)] | None = None
    """Heads of `relations`; must divide both widths. Default: the teacher's attention heads."""

    @model_validator(mode="after")
    def _has_loss_against_teacher(self) -> DistillOptions:
        if not (self.soft or self.hidden or self.relations):
            raise ValueError(
                "distill has no loss against the teacher (soft, hidden and relations are 0); give "
                "one of them a weight, or leave the teacher out"
            )
        return self

    def loss_weights(self) -> dict[str, float]:
        """Return the weights above 0, by objective of pretraining."""
        weights = {
            "mlm": self.labels,
            "distillation": self.soft,
            "states": self.hidden,
            "relations": self.relations,
        }
        return {name: weight for name, weight in weights.items() if weight}
