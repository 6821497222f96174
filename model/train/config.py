"""Config of the stage pretrain: dataset -> trained encoder. Imports no torch: the command line reads it at every start."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from model.families.config import ModelConfig
from model.families.presets import model_config
from model.train.batches import Batches
from model.train.optimizers import DEFAULT_OPTIMIZER, known_optimizer, optimizer_help
from model.train.schedules import SCHEDULES, Schedule, schedule_help, schedule_kind
from pipeline.core.config import StageConfig, Watching
from pipeline.core.errors import UsageError, did_you_mean
from pipeline.core.humanize import seconds_of
from pipeline.core.roles import name_of, role_of

VERSION = 3

BASE_LEARNING_RATE, BASE_HIDDEN_SIZE = 1e-4, 768  # BERT-base: Devlin et al., 2019, appendix A.2
LAMB_LEARNING_RATE, LAMB_BATCH, LAMB_STEPS = 5e-3, 32_768, 15_625
MOST_OF_LAMB = 4.0  # times that: .02, where hundreds of steps want most
LONGEST_WARMUP, WARMUP_SHARE = 10_000, 10  # 10,000 steps there; at most a tenth of a shorter run
STEPS = 1_000_000  # of BERT
DECAY_SHARE, POWER = 0.2, 1.0
TENTHS = 10


class PretrainConfig(StageConfig):
    """What is trained, for how long, and how hard. The defaults are those of BERT (Devlin et al., 2019, appendix A.2;
    google-research/bert, run_pretraining.py and optimization.py), with warm-up and logging scaled to the run's length.
    """

    alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("steps", "tokens", "budget"), ("warmup_steps", "warmup_share"))

    model: SerializeAsAny[ModelConfig] | None = None
    """A preset's name, or a section of model values (preset: NAME starts from one); without it the checkpoint's, or BERT-base."""

    mixture: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(default_factory=dict)
    """Of several datasets, what each one's rows count, by its name; without it by their sizes."""

    mixture_temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Of several datasets without weights: each counts its size to the power of 1 / this; 1 draws from all rows alike, more
    favours the small ones."""

    mixture_by: Literal["rows", "tokens"] = "rows"
    """What the mixture's weights and sizes are of."""

    steps: int | None = Field(default=None, ge=1)
    """Optimizer steps of this phase; their numbers go on from those of the training that it continues. 1,000,000 where neither steps nor
    tokens nor a budget is given."""

    tokens: int | None = Field(default=None, ge=1)
    """Instead of steps: how many real tokens (no padding) it trains on; the step that reaches them is the last."""

    budget: str | None = None
    """Instead of steps: how long it takes, as 90s, 10m or 1h30m, with reading, compiling, measuring and saving: as many steps as fit,
    under one learning-rate schedule by the share of the time."""

    global_batch: int = Field(default=256, ge=1)
    """Sequences a step, over all processes and micro-batches."""

    initial_batch: int | None = Field(default=None, ge=1)
    """Sequences of the first step, where the batch grows: global_batch is a multiple of it."""

    ramp_steps: int | None = Field(default=None, ge=1)
    """Steps of this phase over which the batch grows from initial_batch to global_batch, in equal levels."""

    final_mask_rate: float | None = Field(default=None, gt=0, lt=1)
    """The share of tokens that are predicted at the end, falling in a straight line from the dataset's mask_rate; without it that of the
    dataset throughout."""

    objectives: tuple[str, ...] | None = None
    """What is learned, such as mlm and nsp; without it, what the model family learns from this dataset."""

    output_bias: Literal["zero", "unigram"] = "zero"
    """What the bias of the output layer begins as: zero, as in the papers; or unigram, the logarithms of how often each piece is a target,
    so that no step goes into learning that."""

    causal_share: float | None = Field(default=None, gt=0, lt=1)
    """Of clm beside a masked objective: the share of the samples that is read from left to right; without it half of them."""

    optimizer: str | None = Field(
        default=None,
        description=f"{optimizer_help()} Without it that of the training that it continues, else {DEFAULT_OPTIMIZER}.",
    )

    learning_rate: float | None = Field(default=None, gt=0)
    """The peak; without it BERT-base's 1e-4, raised in proportion for models narrower than 768, and with lamb, whose rate is a share of the
    weights, its paper's, up to .02 in few steps. AdamW's is for trainings of days: those of minutes want two to six times as much."""

    embedding_rate: float = Field(default=1.0, gt=0)
    """What the embeddings' learning rate is of the others'."""

    hidden_rate: float = Field(default=1.0, gt=0)
    """What the learning rate of the layers' matrices is of the others'; with muon, of its own updates beside those of AdamW: 1.5
    to 3 are better in trainings of minutes."""

    warmup_steps: int | None = Field(default=None, ge=0)
    """Steps of linear rise from 0, at the beginning of the schedule; without it 10,000, at most a tenth of the schedule's steps."""

    warmup_share: float | None = Field(default=None, ge=0, le=1)
    """The same as a share of the schedule, and the only way to say it of tokens or a budget, where it is .1 if nothing is said."""

    schedule: str = Field(default="linear", description=schedule_help())

    decay_share: float | None = Field(default=None, gt=0, le=1)
    """The share of the schedule that wsd's fall takes at its end; without it .2."""

    power: float | None = Field(default=None, gt=0)
    """The exponent of the polynomial schedule; without it 1."""

    final_rate: float = Field(default=0.0, ge=0, le=1)
    """The share of the peak that the learning rate falls to, instead of 0."""

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

    ema: float | None = Field(default=None, gt=0, lt=1)
    """Keep an exponential average of the weights, of which this much stays at each step, such as .999: it is the checkpoints' model, and
    its held-out loss is told beside that of the weights that are trained."""

    seed: int = Field(default=1, ge=0, lt=1 << 63)
    """Of weights, order and dropout."""

    dynamic: bool = False
    """Every epoch draws masks of its own, instead of going round the dataset's stored copies."""

    length_group: int | None = Field(default=None, ge=1)
    """Of a dataset in length bins, rows of one bin that follow each other; without it 32, at most global_batch."""

    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """What the forward pass multiplies in, over fp32 weights; auto takes bf16 where the hardware multiplies it natively. fp16, for GPUs
    that do not, scales the loss, and skips steps whose gradient overflows."""

    tf32: bool = True
    """Whether a GPU multiplies fp32 as TF32, with ten bits of mantissa and at several times the speed; CPUs know nothing of it."""

    reduce: Literal["fp32", "bf16"] = "fp32"
    """In which type gradients travel between processes: bf16, with precision bf16, halves what is sent; with engine torch the layers'
    matrices then lie in bf16, too, over fp32 master weights, which are what is trained, saved and exported."""

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

    keep_last: Watching[int] = Field(default=3, ge=1, le=TENTHS)
    """Checkpoints that stay of a finished training for `cloze merge`: the last one, and those at the last tenths of the way before it."""

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
    def _known_optimizer(cls, value: str | None) -> str | None:
        return None if value is None else known_optimizer(value)

    @field_validator("betas")
    @classmethod
    def _betas_decay(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in value):
            raise ValueError("both betas must be at least 0 and less than 1")
        return value

    @field_validator("budget", mode="before")
    @classmethod
    def _a_duration(cls, value: Any) -> str | None:
        if value is None:
            return None
        text = f"{value}s" if isinstance(value, (int, float)) and not isinstance(value, bool) else value
        if not isinstance(text, str) or not seconds_of(text):
            raise ValueError("no such length of time; write it as 90s, 10m or 1h30m")
        return text

    def check_inputs(self, keys: Collection[str]) -> None:
        """Weights are of the datasets that are read, and of all of them."""
        if not self.mixture and self.mixture_temperature == 1:
            return
        option = "mixture" if self.mixture else "mixture_temperature"
        names = sorted(name_of(key) for key in keys if role_of(key) == "dataset")
        if len(names) < 2:
            raise UsageError(f"{option} weighs several datasets, and this training reads one; name more, or leave it out")
        for name in self.mixture:
            if name not in names:
                raise UsageError(f"mixture weighs {name!r}, which is no dataset of this training; {did_you_mean(name, names)}")
        lacking = [name for name in names if self.mixture and name not in self.mixture]
        if lacking:
            raise UsageError(f"mixture says no weight of {lacking[0]!r}; weigh all of {', '.join(names)}, or leave mixture out")

    @model_validator(mode="after")
    def _one_weighing(self) -> PretrainConfig:
        if self.mixture and self.mixture_temperature != 1:
            raise ValueError(
                "mixture says each dataset's weight, and mixture_temperature takes it from its size; give one of them"
            )
        return self

    @model_validator(mode="after")
    def _one_length(self) -> PretrainConfig:
        given = [name for name in self.alternatives[0] if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(
                f"{' and '.join(given)} exclude each other: each says how long to train; take one out ({given[0]}=null)"
            )
        if self.last_step is None:
            for name, remedy in (
                ("schedule_steps", "leave it out"),
                ("warmup_steps", "use warmup_share"),
                ("final_mask_rate", "leave it out, or give steps"),
            ):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} goes by steps, and {given[0]} says how long to train; {remedy}")
        if self.warmup_steps is not None and self.warmup_share is not None:
            raise ValueError("warmup_steps and warmup_share exclude each other; give one of them")
        return self

    @model_validator(mode="after")
    def _schedule_reads_them(self) -> PretrainConfig:
        kind = schedule_kind(self.schedule)
        for name, option in (("decay_share", "decay"), ("power", "power")):
            if getattr(self, name) is not None and option not in kind.options:
                found = [other for other in SCHEDULES if option in schedule_kind(other).options]
                raise ValueError(f"{name} is not for schedule {self.schedule}; leave it out, or use {' or '.join(found)}")
        if kind.needs_warmup and 0 in (self.warmup_steps, self.warmup_share):
            raise ValueError(
                f"schedule {self.schedule} begins to fall where the warm-up ends, and there is none; warm up for some steps"
            )
        share = self.decay_share or DECAY_SHARE
        if "decay" in kind.options and (self.warmup_share or 0.0) + share > 1:
            raise ValueError(
                f"warmup_share ({self.warmup_share}) and decay_share ({share}) are more than the whole; lower one of them"
            )
        return self

    @model_validator(mode="after")
    def _schedule_ends(self) -> PretrainConfig:
        steps = self.last_step
        if steps is None:
            return self
        name, spanned = ("steps", steps) if self.schedule_steps is None else ("schedule_steps", self.schedule_steps)
        if spanned < steps:
            raise ValueError(f"schedule_steps ({spanned}) is less than steps ({steps}); use {steps} or more")
        if self.warmup_steps is not None and self.warmup_steps > spanned:
            raise ValueError(f"warmup_steps ({self.warmup_steps}) is more than {name} ({spanned}); warm up for fewer steps")
        return self

    @model_validator(mode="after")
    def _batch_grows(self) -> PretrainConfig:
        first, steps = self.initial_batch, self.ramp_steps
        if (first is None) != (steps is None):
            lacking = "ramp_steps" if steps is None else "initial_batch"
            raise ValueError(f"a batch that grows needs initial_batch and ramp_steps; give {lacking}, too, or leave both out")
        if first is not None and (first >= self.global_batch or self.global_batch % first):
            raise ValueError(
                f"global_batch ({self.global_batch}) is no multiple of initial_batch ({first}) that is more; use such a number"
            )
        if steps is not None and self.last_step is not None and steps > self.last_step:
            raise ValueError(f"ramp_steps ({steps}) is more than steps ({self.last_step}); let the batch grow in fewer")
        return self

    @property
    def last_step(self) -> int | None:
        """The steps of this phase, where they are known before it is trained."""
        return STEPS if self.steps is None and self.tokens is None and self.budget is None else self.steps

    @property
    def batches(self) -> Batches:
        """How many sequences each step of this phase has."""
        return Batches(self.global_batch, self.initial_batch or 0, self.ramp_steps or 0)

    @property
    def seconds(self) -> float | None:
        """The budget."""
        return None if self.budget is None else seconds_of(self.budget)

    @classmethod
    def expand(cls, field: str, value: Any) -> Mapping[str, Any] | None:
        """A model's name is the preset to start from."""
        return {"preset": value} if field == "model" and isinstance(value, str) else None

    def peak_learning_rate(self, before: int = 0) -> float:
        """`learning_rate`, or the one that suits. Args: before: steps of the phases before."""
        return self.suited_learning_rate(before) if self.learning_rate is None else self.learning_rate

    def suited_learning_rate(self, before: int = 0) -> float:
        """What suits the optimizer, the width and the length.

        1e-4 · 768 / hidden_size, at least 1e-4: Adam's best rate falls with the width (Yang et al., "Tensor Programs V", 2022,
        Table 3); BERT-large keeps BERT-base's.

        LAMB's is a share of the weights, whatever the width: 5e-3 at 32,768 sequences and 15,625 steps, with the root of the sequences
        (You et al., 2020, Table 4). Its trainings all see the same samples, so that is one over the root of the steps as well, and this
        is what holds of shorter ones (docs/speedrun.md).
        """
        if self.optimizer == "lamb":
            shares = [self.global_batch / LAMB_BATCH]
            if self.last_step is not None:
                shares.append(min(LAMB_STEPS / (self.schedule_steps or before + self.last_step), MOST_OF_LAMB**2))
            return LAMB_LEARNING_RATE * math.sqrt(max(shares))
        width = BASE_HIDDEN_SIZE if self.model is None else self.model.hidden_size
        return max(BASE_LEARNING_RATE, BASE_LEARNING_RATE * BASE_HIDDEN_SIZE / width)

    def identity(self) -> dict[str, Any]:
        found = super().identity()
        if self.optimizer == DEFAULT_OPTIMIZER:  # as if nothing were said
            del found["optimizer"]
        if self.optimizer == "lamb" and self.learning_rate is None and self.last_step is not None:
            found["lamb_rate"] = "steps"  # once by the batch alone
        return found

    def course(self, whole: float) -> Schedule:
        """The learning rate's course, over `whole` steps, tokens or billionths of the time."""
        kind = schedule_kind(self.schedule)
        if self.warmup_steps is not None:
            warmup = float(self.warmup_steps)
        elif self.warmup_share is not None:
            warmup = self.warmup_share * whole
        elif not kind.rises:
            warmup = 0.0
        else:
            warmup = max(float(kind.needs_warmup), whole // WARMUP_SHARE)
            if self.last_step is not None:
                warmup = min(LONGEST_WARMUP, warmup)
        return Schedule(
            name=self.schedule,
            warmup=warmup,
            decay=self.decay_share or DECAY_SHARE,
            power=self.power or POWER,
            final=self.final_rate,
        )

    @property
    def lines_every(self) -> int | None:
        """Steps between log lines; None: where a hundredth of the course is done."""
        if self.log_every is not None or self.last_step is None:
            return self.log_every
        return min(100, max(self.last_step // 100, 1))
