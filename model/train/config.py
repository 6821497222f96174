"""Config of the stage pretrain: dataset -> trained encoder. Imports no torch: the command line reads it at every start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from model.families.config import ModelConfig
from model.families.presets import model_config
from model.train.optimizers import OPTIMIZERS
from model.train.schedules import SCHEDULES
from pipeline.core.config import StageConfig, Watching
from pipeline.core.errors import did_you_mean

VERSION = 3

BASE_LEARNING_RATE, BASE_HIDDEN_SIZE = 1e-4, 768  # BERT-base: Devlin et al., 2019, appendix A.2
LONGEST_WARMUP, WARMUP_SHARE = 10_000, 10  # 10,000 steps there; at most a tenth of a shorter run


class PretrainConfig(StageConfig):
    """What is trained, for how long, and how hard. The defaults are those of BERT (Devlin et al., 2019, appendix A.2;
    google-research/bert, run_pretraining.py and optimization.py), with warm-up and logging scaled to the run's length.
    """

    model: SerializeAsAny[ModelConfig] | None = None
    """A preset's name, or a section of model values (preset: NAME starts from one); without it the checkpoint's, or BERT-base."""

    steps: int = Field(default=1_000_000, ge=1)
    """Optimizer steps of this phase; their numbers go on from those of the training that it continues."""

    global_batch: int = Field(default=256, ge=1)
    """Sequences a step, over all processes and micro-batches."""

    objectives: tuple[str, ...] | None = None
    """What is learned, such as mlm and nsp; without it, what the model family learns from this dataset."""

    causal_share: float | None = Field(default=None, gt=0, lt=1)
    """Of clm beside a masked objective: the share of the samples that is read from left to right; without it half of them."""

    optimizer: str = "adamw"
    """A name in the table of optimizers."""

    learning_rate: float | None = Field(default=None, gt=0)
    """The peak; without it BERT-base's 1e-4, raised in proportion for models narrower than 768."""

    warmup_steps: int | None = Field(default=None, ge=0)
    """Steps of linear rise from 0, at the beginning of the schedule; without it 10,000, at most a tenth of the schedule's steps."""

    schedule: str = "linear"
    """How the learning rate falls after the warm-up: a name in the table of schedules."""

    schedule_steps: int | None = Field(default=None, ge=1)
    """Steps that the schedule spans, counted from the beginning of the first phase; without it the schedule is this phase's own."""

    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's decay rates of the two moments."""

    eps: float = Field(default=1e-6, gt=0)
    """Added to Adam's denominator."""

    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay, on matrices alone: not on biases and norms."""

    clip: float = Field(default=1.0, ge=0)
    """The gradient's greatest norm; 0 never clips."""

    seed: int = Field(default=1, ge=0, lt=1 << 63)
    """Of weights, order and dropout."""

    dynamic: bool = False
    """Every epoch draws masks of its own, instead of going round the dataset's stored copies."""

    length_group: int | None = Field(default=None, ge=1)
    """Of a dataset in length bins, rows of one bin that follow each other; without it 32, at most global_batch."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """What the forward pass multiplies in, over fp32 weights; auto takes bf16 where the hardware multiplies it natively."""

    evaluate_every: Watching[int | None] = Field(default=None, ge=1)
    """Steps between held-out evaluations; without it ten in a run, fewer where they would take over 5% of the time."""

    heldout_rows: int = Field(default=2048, ge=0)
    """The most held-out rows that an evaluation scores."""

    log_every: Watching[int | None] = Field(default=None, ge=1)
    """Steps between log lines; without it a hundredth of the steps, at most 100."""

    milestones: Watching[tuple[Annotated[int, Field(ge=1)], ...]] = ()
    """Steps whose checkpoints are kept for good, for phases that branch from them and for evaluation; counted over all phases."""

    milestone_every: Watching[int | None] = Field(default=None, ge=1)
    """Keep the checkpoint of every so many steps for good, beside those of milestones."""

    max_skipped: Watching[int] = Field(default=10, ge=1)
    """Steps in a row that may be skipped for a gradient that is not finite before training gives up."""

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
    def _schedule_ends(self) -> PretrainConfig:
        name, spanned = ("steps", self.steps) if self.schedule_steps is None else ("schedule_steps", self.schedule_steps)
        if spanned < self.steps:
            raise ValueError(f"schedule_steps ({spanned}) is less than steps ({self.steps}); use {self.steps} or more")
        if self.warmup_steps is not None and self.warmup_steps > spanned:
            raise ValueError(f"warmup_steps ({self.warmup_steps}) is more than {name} ({spanned}); warm up for fewer steps")
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
        """Steps of linear rise."""
        spanned = self.schedule_steps or self.steps
        return min(LONGEST_WARMUP, spanned // WARMUP_SHARE) if self.warmup_steps is None else self.warmup_steps

    @property
    def lines_every(self) -> int:
        """Steps between log lines."""
        return self.log_every or min(100, max(self.steps // 100, 1))
