"""Config of the stage pretrain: dataset -> trained encoder. Imports no torch: the command line reads it at every start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from model.families.config import ModelConfig
from model.families.presets import model_config
from model.train.schedules import SCHEDULES
from pipeline.core.config import StageConfig, Watching
from pipeline.core.errors import did_you_mean

VERSION = 2
OPTIMIZERS = ("adamw",)  # the rows of model.train.optimizers.OPTIMIZERS, named here without torch

BASE_LEARNING_RATE, BASE_HIDDEN_SIZE = 1e-4, 768  # BERT-base: Devlin et al., 2019, appendix A.2
LONGEST_WARMUP, WARMUP_SHARE = 10_000, 10  # 10,000 steps there; at most a tenth of a shorter run


class PretrainConfig(StageConfig):
    """What is trained, for how long, and how hard. The defaults are those of BERT (Devlin et al., 2019, appendix A.2;
    google-research/bert, run_pretraining.py and optimization.py), with warm-up and logging scaled to the run's length.

    Attributes:
        model: a preset's name, a mapping of config values (with `preset` to start from one), or a `ModelConfig`; None: that of
            the checkpoint to go on from, or BERT-base.
        steps: optimizer steps.
        global_batch: sequences a step, over all processes and micro-batches.
        objectives: names in `model.objectives.OBJECTIVES`; None: the model family's own, for the dataset at hand.
        learning_rate: the peak; None: BERT-base's, inversely to the width (see `peak_learning_rate`).
        warmup_steps: linear rise from 0; None: 10,000, at most a tenth of the steps.
        schedule: after the warm-up; a name in `model.train.schedules.SCHEDULES`.
        eps: added to Adam's denominator.
        weight_decay: decoupled, on matrices alone: not on biases and norms.
        clip: the gradient's greatest norm; 0: no clipping.
        seed: of weights, order and dropout.
        dynamic: every epoch draws masks of its own, instead of going round the dataset's stored copies.
        length_group: of a dataset in length bins, rows of one bin that follow each other; None: 32, at most global_batch.
        precision: bf16 is autocast over fp32 weights; auto takes it where the hardware multiplies it natively.
        evaluate_every: steps between held-out evaluations; None: a tenth of the steps. The last step is always evaluated.
        heldout_rows: the most held-out rows that are scored.
        log_every: steps between lines of metrics.jsonl; None: a hundredth of the steps, at most 100.
        max_skipped: steps in a row that may be skipped for a gradient that is not finite before training gives up.
    """

    model: SerializeAsAny[ModelConfig] | None = None
    steps: int = Field(default=1_000_000, ge=1)
    global_batch: int = Field(default=256, ge=1)
    objectives: tuple[str, ...] | None = None
    optimizer: str = "adamw"
    learning_rate: float | None = Field(default=None, gt=0)
    warmup_steps: int | None = Field(default=None, ge=0)
    schedule: str = "linear"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(default=1e-6, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    clip: float = Field(default=1.0, ge=0)
    seed: int = Field(default=1, ge=0, lt=1 << 63)
    dynamic: bool = False
    length_group: int | None = Field(default=None, ge=1)
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    evaluate_every: Watching[int | None] = Field(default=None, ge=1)
    heldout_rows: int = Field(default=2048, ge=0)
    log_every: Watching[int | None] = Field(default=None, ge=1)
    max_skipped: Watching[int] = Field(default=10, ge=1)

    @field_validator("model", mode="before")
    @classmethod
    def _named_model(cls, value: Any) -> ModelConfig | None:
        return None if value is None else model_config(value)

    @field_validator("schedule")
    @classmethod
    def _known_schedule(cls, value: str) -> str:
        if value not in SCHEDULES:
            raise ValueError(f"there is no such schedule; {did_you_mean(value, SCHEDULES)}")
        return value

    @field_validator("optimizer")
    @classmethod
    def _known_optimizer(cls, value: str) -> str:
        if value not in OPTIMIZERS:
            raise ValueError(f"there is no such optimizer; {did_you_mean(value, OPTIMIZERS)}")
        return value

    @field_validator("betas")
    @classmethod
    def _betas_decay(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in value):
            raise ValueError("both betas must be at least 0 and less than 1")
        return value

    @model_validator(mode="after")
    def _warmup_ends(self) -> PretrainConfig:
        if self.warmup_steps is not None and self.warmup_steps > self.steps:
            raise ValueError(f"warmup_steps ({self.warmup_steps}) is more than steps ({self.steps}); warm up for fewer steps")
        return self

    @classmethod
    def expand(cls, field: str, value: Any) -> Mapping[str, Any] | None:
        """A model's name is the preset to start from."""
        return {"preset": value} if field == "model" and isinstance(value, str) else None

    @property
    def peak_learning_rate(self) -> float:
        """`learning_rate`, or 1e-4 · 768 / hidden_size, at least 1e-4: Adam's best rate falls with the width
        (Yang et al., "Tensor Programs V", 2022, Table 3); BERT-large keeps BERT-base's.
        """
        if self.learning_rate is not None:
            return self.learning_rate
        width = BASE_HIDDEN_SIZE if self.model is None else self.model.hidden_size
        return max(BASE_LEARNING_RATE, BASE_LEARNING_RATE * BASE_HIDDEN_SIZE / width)

    @property
    def warmup(self) -> int:
        return min(LONGEST_WARMUP, self.steps // WARMUP_SHARE) if self.warmup_steps is None else self.warmup_steps

    def evaluates(self, step: int) -> bool:
        """Whether the held-out rows are scored after step `step` (from 1)."""
        return step == self.steps or step % (self.evaluate_every or max(self.steps // 10, 1)) == 0

    def logs(self, step: int) -> bool:
        """Whether step `step` (from 1) gets a line in metrics.jsonl: the first and the last always do."""
        every = self.log_every or min(100, max(self.steps // 100, 1))
        return step in (1, self.steps) or step % every == 0 or self.evaluates(step)
