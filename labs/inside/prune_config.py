"""Config of the stage prune."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from cloze.core.config import InputPath, StageConfig


class PruneConfig(StageConfig):
    """Options of prune. Layers are dropped first, then heads, then single weights."""

    data: InputPath | None = None
    """Directory with the task's files, or its parent: heads are chosen on its train split, and
    scores are those of its dev split. Default: no scores."""

    keep_heads: float | None = Field(default=None, gt=0, le=1)
    """Share of the attention heads to keep, at least one per layer; needs --data."""

    heads_by: Literal["importance", "gates"] = "importance"
    """Choice of the heads: importance, the loss's gradient by a gate on each head (Michel et al.
    2019), or gates that learn to close (Voita et al. 2019)."""

    keep_layers: int | None = Field(default=None, ge=1)
    """Number of layers to keep."""

    layers_from: Literal["bottom", "top", "alternate"] = "bottom"
    """Layers to keep: the bottom ones, the top ones, or alternate ones, from the first."""

    sparsity: float | None = Field(default=None, gt=0, lt=1)
    """Share of the weights in the layers' matrices to set to zero, those of smallest magnitude."""

    examples: int = Field(default=2048, ge=1)
    """Number of training examples by which heads are chosen, a random sample."""

    epochs: int = Field(default=3, ge=1)
    """With gates: passes over these examples."""

    seed: int = Field(default=1, ge=0, lt=1 << 63)
    """Seed of the sample and of the gates."""

    @model_validator(mode="after")
    def _check_something(self) -> PruneConfig:
        if self.keep_heads is None and self.keep_layers is None and self.sparsity is None:
            raise ValueError(
                "keep_heads, keep_layers and sparsity (none is given) leave nothing to prune; give "
                "one of them"
            )
        if self.keep_heads is not None and self.data is None:
            raise ValueError(
                f"keep_heads ({self.keep_heads}) needs data (found none): heads are chosen on a "
                f"task's examples; name its directory"
            )
        return self
