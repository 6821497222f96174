"""Input and result of the training loop: hyperparameters, data, execution, checkpoints, logging."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cloze.model import checkpoint
from cloze.model.train.precision import Precision
from cloze.model.train.spec.engine_choice import EngineConfig
from cloze.model.train.spec.interfaces import (
    START,
    BatchSource,
    Evaluator,
    StartPosition,
    TrainModule,
)
from cloze.model.train.spec.mixture import MixtureCounter
from cloze.model.train.spec.progress import TrainerState
from cloze.model.train.spec.schedules import Duration, Schedule, ScheduleProgress
from cloze.model.train.throughput import MfuMeter


def constant_rate(name: str) -> float:
    """Return 1: the same learning rate for every parameter."""
    return 1.0


def from_start(name: str) -> int:
    """Return 0: every parameter is trained from the first step on."""
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingHyperparameters:
    """Hyperparameters of a training.

    Attributes:
        duration: duration of the training; the learning rate follows its progress.
        learning_rate: peak learning rate.
        rate: parameter name -> learning-rate multiplier (layer-wise decay, a head's own rate).
        rates: parameter role (`optimizers.parameters.parameter_role`) -> learning-rate multiplier.
            Default: 1.
        first_step: parameter name -> first step that trains it (gradual unfreezing).
        optimizer: key of `cloze.model.train.optimizers.OPTIMIZERS`.
        schedule: learning-rate schedule.
        weight_decay: decoupled, for matrices only: not for biases and norms.
        grad_clip: maximum gradient norm; 0: no clipping.
        seed: seed of dropout.
        precision: precision of the forward pass; the optimizer always keeps fp32.
        grad_reduce_dtype: dtype in which gradients are sent between ranks; bf16 requires precision
            bf16.
        max_skipped: maximum number of consecutive steps skipped for a non-finite gradient.
    """

    duration: Duration
    learning_rate: float
    schedule: Schedule
    seed: int
    precision: Precision
    rate: Callable[[str], float] = constant_rate
    rates: Mapping[str, float] = field(default_factory=dict)
    first_step: Callable[[str], int] = from_start
    grad_reduce_dtype: Precision = "fp32"
    optimizer: str = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.01
    grad_clip: float = 1.0
    max_skipped: int = 10

    def learning_rates_at(self, schedule_progress: ScheduleProgress) -> dict[str, float]:
        """Return the logged rates: `learning_rate`, and those of roles that differ from it."""
        done, total, size = (
            schedule_progress.done,
            schedule_progress.total,
            schedule_progress.step_size,
        )
        rate = self.learning_rate * self.schedule.factor(done, total, size)
        role_rates = {
            f"learning_rate_{role}": rate * multiplier
            for role, multiplier in self.rates.items()
            if multiplier != 1
        }
        return {"learning_rate": rate, **role_rates}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """The data of a training.

    Attributes:
        fingerprint: fingerprint of the data; a phase on the same data continues in its order.
        start_position: start position, also of the source.
        mixture: statistics of a mixture; None: a single dataset.
    """

    source: BatchSource
    fingerprint: str = ""
    start_position: StartPosition = START
    mixture: MixtureCounter | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSpec:
    """How steps are executed.

    Attributes:
        engine: the chosen engine.
        micro_batch: maximum number of samples per micro-batch.
        accumulation: maximum number of micro-batches per step.
        compiled: True if the module is compiled; recorded, and the same after a resume.
    """

    engine: EngineConfig
    micro_batch: int
    accumulation: int
    compiled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    """Content and retention of checkpoints.

    Attributes:
        metadata: contents besides the weights.
        milestones: steps whose checkpoints are kept permanently.
        milestone_tokens: words -> real tokens over all phases that have as many words; the
            checkpoint of the step that reaches them is kept permanently.
        keep_for_merge: checkpoints kept in addition: the last, and those at the last tenths before
            it.
        keep_best: True to save and keep the checkpoint of the best evaluated step.
    """

    metadata: checkpoint.Metadata
    milestones: frozenset[int] = frozenset()
    milestone_tokens: Mapping[int, float] = field(default_factory=dict)
    keep_for_merge: int = 1
    keep_best: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSpec:
    """Log lines, warnings and messages.

    Attributes:
        interval: steps between log lines; None: at each hundredth of the schedule. The first, the
            last and evaluated steps always get one.
        mfu_meter: None: MFU is not reported.
        flops_per_token: mean attended tokens -> model FLOPs per token of a step.
        words_per_token: words per real token of each dataset; NaN: unknown.
        check_line: maps a log line to warnings.
        notes, warnings, figures: reported at the start, in addition to the loop's own.
    """

    interval: int | None = 1
    mfu_meter: MfuMeter | None = None
    flops_per_token: Callable[[float], float] = lambda attended: math.nan
    words_per_token: Sequence[float] = (math.nan,)
    check_line: Callable[[Mapping[str, Any]], Sequence[str]] | None = None
    notes: Sequence[str] = field(default_factory=tuple)
    warnings: Sequence[str] = field(default_factory=tuple)
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    """The input of the training loop.

    Attributes:
        path: directory or object store of metrics.jsonl, skipped.jsonl and checkpoints/: the
            artifact, or its scratch for a training whose result is not kept.
        config: resolved config of the stage, as recorded in checkpoints.
        evaluator: None: nothing is evaluated.
        patience: stop after this many consecutive evaluations without a new best; None: never.
    """

    path: str
    config: Mapping[str, Any]
    hyperparameters: TrainingHyperparameters
    trained: TrainModule
    data: DataSpec
    execution: ExecutionSpec
    checkpoints: CheckpointSpec
    logging: LoggingSpec = field(default_factory=LoggingSpec)
    evaluator: Evaluator | None = None
    patience: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """The result of a finished training.

    Attributes:
        progress: steps, tokens, skipped steps, first loss, best evaluation.
        last: the last log line.
        checkpoint: path of the last checkpoint, relative to `TrainSpec.path`.
        best: path of the best step's checkpoint, relative to `TrainSpec.path`; None: not kept.
        milestones: step -> path of a permanently kept checkpoint.
        session: speed, time shares and cost, see `Throughput.session`, `CheckpointSaver.metrics`
            and `cost_metrics`.
    """

    progress: TrainerState
    last: Mapping[str, Any]
    checkpoint: str
    best: str | None
    milestones: Mapping[str, str]
    session: Mapping[str, float | None]
