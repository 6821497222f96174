"""Config of the stage pretrain. Imports no torch: the command line reads it at every start."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from cloze.core.config import NoFingerprint, StageConfig, within
from cloze.core.errors import UsageError, did_you_mean
from cloze.core.humanize import parse_duration
from cloze.core.options import compose_config_class, known
from cloze.core.stages.stage import name_of, role_of
from cloze.model.families.config import ModelConfig
from cloze.model.families.registry import model_config
from cloze.model.objectives.distill_options import DistillOptions
from cloze.model.train import consistency
from cloze.model.train.dial import Dial, note_by_hand
from cloze.model.train.optimizers import DEFAULT_OPTIMIZER, OptimizerName
from cloze.model.train.spec.companions import COMPANIONS
from cloze.model.train.spec.schedules import SCHEDULES, BatchSizeSchedule, Schedule

VERSION = 4

BASE_LEARNING_RATE, BASE_HIDDEN_SIZE = 1e-4, 768  # BERT-base: Devlin et al., 2019, appendix A.2
LAMB_LEARNING_RATE, LAMB_BATCH, LAMB_STEPS = 5e-3, 32_768, 15_625
MOST_OF_LAMB = 4.0  # cap on the multiplier of LAMB's rate: 0.02, best for hundreds of steps
LONGEST_WARMUP, WARMUP_SHARE = 10_000, 10  # BERT: 10,000 steps; at most a tenth of a shorter run
STEPS = 1_000_000  # of BERT
TENTHS = 10


if TYPE_CHECKING:
    _OfCompanions = StageConfig
else:
    _OfCompanions = compose_config_class(
        "OptionsOfCompanions", StageConfig, (kind.options for kind in COMPANIONS.loaded().values())
    )


class PretrainConfig(_OfCompanions):
    """Model, duration and hyperparameters of a pretraining.

    The defaults are BERT's (Devlin et al., 2019, appendix A.2; google-research/bert,
    run_pretraining.py and optimization.py); warm-up and logging scale with the run's length.
    """

    mutually_exclusive: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("steps", "tokens", "max_time"),
        ("warmup_steps", "warmup_share"),
        ("model", "size"),
    )

    model: SerializeAsAny[ModelConfig] | None = None
    """Model preset; `cloze help models` lists them. Default: the checkpoint's model, else
    bert-base."""

    size: Dial | None = None
    """Parameters, such as 17m; chooses model, batch, rates and weight decay by --tokens or
    --max-time."""

    mixture: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Sampling weight of a dataset by name: wiki=2. Repeatable. Default: the sizes."""

    steps: int | None = Field(default=None, ge=1)
    """Optimizer steps of this phase. Default: 1,000,000, if neither --tokens nor --max-time is
    given."""

    tokens: int | None = Field(default=None, ge=1)
    """Train until this many tokens, without padding, have been processed; replaces --steps."""

    max_time: str | None = None
    """Train for this long in all, such as 90s, 10m or 1h30m; replaces --steps."""

    global_batch: int = Field(default=256, ge=1)
    """Sequences per optimizer step, over all processes."""

    initial_batch: int | None = Field(default=None, ge=1)
    """Sequences in the first step, to start with a smaller batch; --global-batch must be a multiple
    of it."""

    batch_ramp_steps: int | None = Field(default=None, ge=1)
    """Steps over which the batch grows from initial_batch to global_batch, in equal levels."""

    final_mask_rate: float | None = Field(default=None, gt=0, lt=1)
    """Mask rate at the end; it changes linearly from the dataset's rate. Default: constant."""

    objectives: tuple[str, ...] | None = None
    """Training objective, such as mlm or nsp. Repeatable. Default: what the model family trains on
    this dataset."""

    distill: DistillOptions | None = None
    """With --teacher: weights of the losses. Default: distilbert's own, else labels and soft."""

    causal_share: float | None = Field(default=None, gt=0, lt=1)
    """Share of samples read from left to right, if clm is trained with a masked objective. Default:
    0.5."""

    optimizer: OptimizerName | None = None
    """Optimizer. Default: that of --continue, else adamw."""

    learning_rate: float | None = Field(default=None, gt=0)
    """Peak learning rate. Default: 1e-4, higher for hidden sizes below 768 and for lamb."""

    embedding_lr_multiplier: float = Field(default=1.0, gt=0)
    """Learning-rate multiplier of the embeddings."""

    hidden_lr_multiplier: float = Field(default=1.0, gt=0)
    """Learning-rate multiplier of the layers' weight matrices; with muon, of its updates."""

    warmup_steps: int | None = Field(default=None, ge=0)
    """Steps of linear warmup. Default: 10,000, at most a tenth of the schedule."""

    warmup_share: float | None = Field(default=None, ge=0, le=1)
    """Warmup as a share of the schedule; the only form with --tokens or --max-time. Default there:
    0.1."""

    schedule: Annotated[str, known(SCHEDULES, "there is no such schedule")] = "linear"
    """Decay of the learning rate after warmup."""

    decay_share: float | None = Field(default=None, gt=0, le=1)
    """Share of the schedule used by the final decay of wsd. Default: 0.2."""

    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Final learning rate as a share of the peak."""

    schedule_steps: int | None = Field(default=None, ge=1)
    """Length of the schedule, counted from the first phase. Default: this phase alone."""

    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's decay rates of the two moments."""

    eps: float = Field(default=1e-6, gt=0)
    """Adam's epsilon."""

    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay of weight matrices; biases and norms have none."""

    grad_clip: float = Field(default=1.0, ge=0)
    """Maximum gradient norm; 0 disables clipping."""

    seed: int = Field(default=1, ge=0, lt=1 << 63)
    """Seed of the initial weights, the data order and dropout."""

    dynamic_masking: bool = False
    """Draw new masks in every epoch instead of cycling through the stored copies."""

    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Precision of the forward pass, over fp32 weights. auto: bf16 if the hardware has it."""

    grad_reduce_dtype: Literal["fp32", "bf16"] = "fp32"
    """Data type in which gradients are reduced between processes; bf16 halves the traffic."""

    evaluate_every: NoFingerprint[int | None] = Field(default=None, ge=1)
    """Steps between held-out evaluations. Default: ten per run, fewer if they would take over 5% of
    the time."""

    heldout_rows: int = Field(default=2048, ge=0)
    """Maximum number of held-out rows per evaluation."""

    log_every: NoFingerprint[int | None] = Field(default=None, ge=1)
    """Steps between log lines. Default: a hundredth of the steps, at most 100."""

    milestones: NoFingerprint[tuple[Annotated[int, Field(ge=1)], ...]] = ()
    """Step whose checkpoint is saved and kept permanently, counted over all phases. Repeatable."""

    milestone_words: NoFingerprint[tuple[Annotated[int, Field(ge=1)], ...]] = ()
    """Number of words read, over all phases, after which a checkpoint is saved and kept
    permanently, such as 10M. Repeatable."""

    keep_for_merge: NoFingerprint[int] = Field(default=3, ge=1, le=TENTHS)
    """Checkpoints kept for `cloze merge` at the end: the last one, and those at the last tenths of
    the run."""

    max_skipped: NoFingerprint[int] = Field(default=10, ge=1)
    """Consecutive steps with a non-finite gradient before a rollback to the last good checkpoint.
    The second time, training ends."""

    @field_validator("model", mode="before")
    @classmethod
    def _named_model(cls, value: Any, info: ValidationInfo) -> ModelConfig | None:
        return None if value is None else model_config(value, within(info, "model"))

    @field_validator("betas")
    @classmethod
    def _betas_decay(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in value):
            raise ValueError("both betas must be at least 0 and less than 1")
        return value

    @field_validator("max_time", mode="before")
    @classmethod
    def _a_duration(cls, value: Any) -> str | None:
        if value is None:
            return None
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        text = f"{value}s" if is_number else value
        if not isinstance(text, str) or not parse_duration(text):
            raise ValueError("no such length of time; write it as 90s, 10m or 1h30m")
        return text

    def check_inputs(self, keys: Collection[str]) -> None:
        """Check that `size` has no checkpoint's model, and that the mixture names all datasets."""
        start = next((key for key in map(role_of, keys) if key in ("checkpoint", "continue")), "")
        if self.size is not None and start:
            raise UsageError(
                f"size ({self.size.parameters:,}) shapes a new model, and {start} has one; leave "
                f"one of them out"
            )
        if not self.mixture:
            return
        names = sorted(name_of(key) for key in keys if role_of(key) == "dataset")
        if len(names) < 2:
            raise UsageError(
                "mixture weighs several datasets, and this training reads one; name more, or "
                "leave it out"
            )
        for name in self.mixture:
            if name not in names:
                raise UsageError(
                    f"mixture weighs {name!r}, which is no dataset of this training; "
                    f"{did_you_mean(name, names)}"
                )
        missing = [name for name in names if name not in self.mixture]
        if missing:
            raise UsageError(
                f"mixture says no weight of {missing[0]!r}; weigh all of {', '.join(names)}, or "
                f"leave mixture out"
            )

    @model_validator(mode="wrap")
    @classmethod
    def _with_dial(cls, values: Any, validate: Callable[[Any], PretrainConfig]) -> PretrainConfig:
        return validate(note_by_hand(values) if isinstance(values, Mapping) else values)

    @model_validator(mode="after")
    def _consistent(self) -> PretrainConfig:
        consistency.check_duration(self)
        consistency.check_schedule(self)
        consistency.check_batch_ramp(self)
        return self

    @property
    def phase_steps(self) -> int | None:
        """Steps of this phase; None if --tokens or --max-time ends it."""
        endless = self.steps is None and self.tokens is None and self.max_time is None
        return STEPS if endless else self.steps

    @property
    def batches(self) -> BatchSizeSchedule:
        """The batch size schedule of this phase."""
        return BatchSizeSchedule(
            self.global_batch, self.initial_batch or 0, self.batch_ramp_steps or 0
        )

    @property
    def seconds(self) -> float | None:
        """The time budget in seconds."""
        return None if self.max_time is None else parse_duration(self.max_time)

    @classmethod
    def expand_shorthand(cls, field: str, value: Any) -> Mapping[str, Any] | None:
        """Expand a model name to the preset of that name."""
        return {"preset": value} if field == "model" and isinstance(value, str) else None

    def peak_learning_rate(self, before: int = 0) -> float:
        """Return `learning_rate` or the default. Args: before: steps of the previous phases."""
        return self.learning_rate or self.default_learning_rate(before)

    def default_learning_rate(self, before: int = 0) -> float:
        """Return the default for the optimizer, the hidden size and the duration.

        1e-4 · 768 / hidden_size, at least 1e-4: Adam's best rate falls with the width (Yang et al.,
        "Tensor Programs V", 2022, Table 3); BERT-large keeps BERT-base's.

        LAMB's rate is relative to the weights, so the width does not matter: 5e-3 at 32,768
        sequences and 15,625 steps, scaled by the root of the batch (You et al., 2020, Table 4).
        Their trainings all see the same number of samples, so one over the root of the steps scales
        it, too. The larger of the two counts, the second at most at 0.02: it is valid for shorter
        trainings (docs/explanation/speedrun.md).
        """
        if self.optimizer == "lamb":
            shares = [self.global_batch / LAMB_BATCH]
            if self.phase_steps is not None:
                steps = self.schedule_steps or before + self.phase_steps
                shares.append(min(LAMB_STEPS / steps, MOST_OF_LAMB**2))
            return LAMB_LEARNING_RATE * math.sqrt(max(shares))
        width = BASE_HIDDEN_SIZE if self.model is None else self.model.hidden_size
        return max(BASE_LEARNING_RATE, BASE_LEARNING_RATE * BASE_HIDDEN_SIZE / width)

    def fingerprint_fields(self) -> dict[str, Any]:
        fields = super().fingerprint_fields()
        if self.optimizer == DEFAULT_OPTIMIZER:  # same fingerprint as without the option
            del fields["optimizer"]
        return fields

    def lr_schedule(self, whole: float) -> Schedule:
        """Return the learning-rate schedule over `whole` steps, tokens or budget billionths."""
        kind = SCHEDULES[self.schedule]
        if self.warmup_steps is not None:
            warmup = float(self.warmup_steps)
        elif self.warmup_share is not None:
            warmup = self.warmup_share * whole
        else:
            warmup = max(float(kind.needs_warmup), whole // WARMUP_SHARE)
            if self.phase_steps is not None:
                warmup = min(LONGEST_WARMUP, warmup)
        return Schedule(
            name=self.schedule,
            warmup=warmup,
            decay=self.decay_share or consistency.DECAY_SHARE,
            final=self.min_lr_ratio,
        )

    @property
    def log_interval(self) -> int | None:
        """Steps between log lines; None: log at every hundredth of the schedule."""
        if self.log_every is not None or self.phase_steps is None:
            return self.log_every
        return min(100, max(self.phase_steps // 100, 1))
