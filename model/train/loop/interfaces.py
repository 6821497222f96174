"""The interfaces between the training loop (`cloze.model.train.loop.loop`) and what it trains.

A `TrainSpec` combines five things, and the loop knows nothing else:

  BatchSource              samples of each step, as batches for one rank: a dataset, or a task
  TrainModule              batches -> loss and metrics: model and objectives, or a task's head
  Evaluator                metrics during training, such as the held-out loss; optional
  CheckpointMetadata       a checkpoint's content besides the weights
  TrainingHyperparameters  duration, optimizer, learning rates, schedule, clipping, seed, precision

The loop does the rest: weighting by global counts, checkpoints, exact resume, stopping, log lines
and ranks. Batches are dicts that `TrainModule.forward` reads, of tensors and other values that can
be pinned and moved.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from cloze.model.data.batch import Batch
from cloze.model.families.config import ModelConfig
from cloze.model.train.engines import EngineConfig
from cloze.model.train.loop.duration import Duration, ScheduleProgress
from cloze.model.train.loop.schedules import Schedule
from cloze.model.train.monitor.throughput import MfuMeter
from cloze.model.train.precision import Precision
from cloze.pipeline.dataset.schema import DatasetInfo


class EvaluationInterrupted(Exception):
    """Raised when the ranks agreed to stop during an evaluation."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch: the samples of a forward and backward pass.

    Attributes:
        first: number of the first sample, counted over the whole run. It and the step seed dropout,
            so that resuming is exact; micro-batches of a step must not share it.
        batch: on the CPU. A batch without samples has loss and gradient 0; it gives every rank the
            same number of micro-batches.
    """

    first: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class StepBatches:
    """A step on one rank.

    Attributes:
        micro_batches: the same number on every rank.
        tokens: number of real tokens.
        by_source: of a mixture: real tokens of each dataset.
    """

    micro_batches: Sequence[MicroBatch]
    tokens: int
    by_source: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPosition:
    """The start of a training: a phase continues after the steps of the previous phases.

    Attributes:
        step: number of earlier steps.
        sample: number of the first sample in the data's order; 0 unless the previous phase read the
            same data.
        updates: earlier steps that changed the weights.
        tokens: real tokens trained on before.
        skipped: earlier skipped steps.
        places: fingerprint of each dataset read before -> its next sample.
    """

    step: int = 0
    sample: int = 0
    updates: int = 0
    tokens: int = 0
    skipped: int = 0
    places: Mapping[str, int] = field(default_factory=dict)


START = StartPosition()


@dataclass(frozen=True, slots=True, kw_only=True)
class Milestones:
    """The steps whose checkpoints are always saved and never pruned.

    Attributes:
        steps: the steps.
        every: additionally all multiples of this number.
    """

    steps: frozenset[int] = frozenset()
    every: int | None = None

    def __contains__(self, step: int) -> bool:
        return step in self.steps or bool(self.every and step > 0 and step % self.every == 0)

    def count_between(self, first: int, last: int) -> int:
        """Count the milestones after step `first`, up to step `last`."""
        alone = sum(
            first < step <= last and not (self.every and step % self.every == 0)
            for step in self.steps
        )
        return alone + (last // self.every - first // self.every if self.every else 0)


NO_MILESTONES = Milestones()


class BatchSource(Protocol):
    """The samples of each step: a pure function of the step, so checkpoints need not save it.

    Steps count from 0 over all phases, and may differ in their number of samples (the last batch of
    an epoch, a growing batch).
    """

    def step_batches(self, step: int, rank: int, world_size: int) -> StepBatches:
        """Return this rank's share of step `step`.

        Called in a separate thread, several steps ahead.
        """
        ...

    def samples(self, steps: int) -> int:
        """Return the number of the first sample of step `steps`.

        In a first phase this is the number of samples in all earlier steps.
        """
        ...

    def row_ids(self, step: int) -> dict[str, list[int]]:
        """Return the `rows` of step `step` over all ranks, and other identifying columns.

        The log of skipped steps records them.
        """
        ...


class MixtureStatistics(Protocol):
    """Statistics of the datasets that a `BatchSource` mixes."""

    def places(self, samples: int) -> dict[str, int]:
        """Return dataset fingerprint -> its next sample, if the run's next is `samples`."""
        ...

    def figures(self, samples: int, tokens: Sequence[int]) -> dict[str, float]:
        """Return the log metrics: rows, tokens in this phase, and epochs of each dataset.

        Args:
            tokens: tokens of each dataset in this phase.
        """
        ...

    def summary(self, samples: int, tokens: Sequence[int]) -> list[dict[str, Any]]:
        """Return `name`, `share`, `rows`, `tokens` and `epochs` of each dataset."""
        ...


class TrainModule(nn.Module, abc.ABC):
    """The trained module: from a batch to the loss.

    A micro-batch's loss is the sum over objectives of its summed loss / the count of the whole
    step, over all ranks and micro-batches. Added up, these are the loss of the global batch,
    however it is split.

    Attributes:
        names: names of the objectives.
        model: the trained and saved network, whose parameter names checkpoints use.
    """

    names: tuple[str, ...]
    model: nn.Module

    @abc.abstractmethod
    def count_targets(self, batch: Mapping[str, Any]) -> list[int]:
        """Count the predictions of each objective on a batch, before the model runs; 0 if empty."""

    @abc.abstractmethod
    def loss(self, batch: Mapping[str, Any], counts: Tensor) -> tuple[Tensor, Tensor]:
        """Score a batch on the device.

        Args:
            counts: float [objectives], the divisor of each summed loss.

        Returns:
            The loss, an fp32 scalar; and without gradient, float64 [2, objectives]: each
            objective's summed loss in nats and number of right answers.
        """

    def predict(self, batch: Mapping[str, Any]) -> Any:
        """Return what an evaluation needs for a batch on the device: the model's outputs."""
        return self.model(batch)

    def forward(self, batch: Mapping[str, Any], counts: Tensor | None = None) -> Any:
        """Return `loss`, or `predict` without counts.

        Callers must use this method: at ZeRO stage 3 only a call of the whole module gathers its
        weights.
        """
        return self.predict(batch) if counts is None else self.loss(batch, counts)


class Evaluator(Protocol):
    """Evaluation during training. It draws no random numbers and changes no weights.

    Its amount must follow from config and data alone, never from a clock, and should cost at most 5
    % of training.
    """

    @property
    def best_metric(self) -> str:
        """Name of the metric that selects the best step."""
        ...

    @property
    def higher_is_better(self) -> bool:
        """True if the greatest value of the metric is the best."""
        ...

    def due(self, step: int, moment: ScheduleProgress) -> bool:
        """Return True if step `step` is to be evaluated. The last step always is."""
        ...

    def __call__(
        self, step: int, moment: ScheduleProgress, stop_asked: Callable[[], bool]
    ) -> dict[str, float]:
        """Return the metrics after `step` steps, by name; all ranks call it and get the same.

        `TrainModule` is in training mode before and after.

        Raises:
            EvaluationInterrupted: `stop_asked` was true on a rank, and the ranks agreed to stop.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMetadata:
    """Contents of a checkpoint besides the weights; see `cloze.model.checkpoint.save_weights`."""

    model: ModelConfig
    heads: Mapping[str, Any]
    tokenizer: str
    task: Mapping[str, Any] | None = None
    dataset: DatasetInfo | None = None


def constant_rate(name: str) -> float:
    """Return 1: the same learning rate for every parameter."""
    return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingHyperparameters:
    """Hyperparameters of a training.

    Attributes:
        pace: duration of the training; the learning rate follows its progress.
        learning_rate: peak learning rate.
        rate: parameter name -> learning-rate multiplier (layer-wise decay, a head's own rate).
        rates: parameter role (`optimizers.parameters.parameter_role`) -> learning-rate multiplier.
            Default: 1.
        optimizer: key of `cloze.model.train.optimizers.OPTIMIZERS`.
        schedule: learning-rate schedule.
        weight_decay: decoupled, for matrices only: not for biases and norms.
        grad_clip: maximum gradient norm; 0: no clipping.
        seed: seed of dropout.
        precision: precision of the forward pass; the optimizer always keeps fp32.
        grad_reduce_dtype: dtype in which gradients travel between ranks; bf16 requires precision
            bf16.
        max_skipped: maximum number of consecutive steps skipped for a non-finite gradient.
        ema: decay of the weights' EMA; None: no EMA.
    """

    pace: Duration
    learning_rate: float
    schedule: Schedule
    seed: int
    precision: Precision
    rate: Callable[[str], float] = constant_rate
    rates: Mapping[str, float] = field(default_factory=dict)
    grad_reduce_dtype: Precision = "fp32"
    optimizer: str = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.01
    grad_clip: float = 1.0
    max_skipped: int = 10
    ema: float | None = None

    def learning_rates_at(self, moment: ScheduleProgress) -> dict[str, float]:
        """Return the logged rates: `learning_rate`, and those of roles that differ from it."""
        rate = self.learning_rate_at(moment)
        others = {
            f"learning_rate_{place}": rate * share
            for place, share in self.rates.items()
            if share != 1
        }
        return {"learning_rate": rate, **others}

    def learning_rate_at(self, moment: ScheduleProgress) -> float:
        """Return the learning rate of the step at this schedule progress."""
        return self.learning_rate * self.schedule.factor(
            moment.done, moment.total, moment.step_size
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    """The input of the training loop.

    Attributes:
        path: directory or object store of metrics.jsonl, skipped.jsonl and checkpoints/: the
            artifact, or its scratch for a training whose result is not kept.
        config: resolved config of the stage, as recorded in checkpoints.
        engine: the chosen engine.
        micro_batch: maximum number of samples per micro-batch.
        accumulation: maximum number of micro-batches per step.
        compiled: True if `trained` is compiled; recorded, and the same after a resume.
        expected_first_loss: loss of untrained weights in nats; None: unknown.
        log_every: steps between log lines; None: at each hundredth of the schedule. The first, the
            last and evaluated steps always get one.
        patience: stop after this many consecutive evaluations without a new best; None: never.
        keep_best: True to save and keep the checkpoint of the best evaluated step.
        begun: start position, also of the source.
        data: fingerprint of the source's data; a phase on the same data continues in its order.
        milestones: steps whose checkpoints are kept permanently.
        keep_for_merge: checkpoints kept in addition: the last, and those at the last tenths before
            it.
        utilisation: MFU meter; None: MFU is not reported.
        mixed: statistics of a mixture; None: a single dataset.
        alarms: maps a log line to warnings.
        notes, warnings, figures: reported at the start, in addition to the loop's own.
    """

    path: str
    config: Mapping[str, Any]
    recipe: TrainingHyperparameters
    engine: EngineConfig
    source: BatchSource
    trained: TrainModule
    saved: CheckpointMetadata
    measure: Evaluator | None = None
    micro_batch: int
    accumulation: int
    compiled: bool = False
    expected_first_loss: float | None = None
    log_every: int | None = 1
    patience: int | None = None
    keep_best: bool = False
    begun: StartPosition = START
    data: str = ""
    milestones: Milestones = NO_MILESTONES
    keep_for_merge: int = 1
    utilisation: MfuMeter | None = None
    mixed: MixtureStatistics | None = None
    alarms: Callable[[Mapping[str, Any]], Sequence[str]] | None = None
    notes: Sequence[str] = field(default_factory=tuple)
    warnings: Sequence[str] = field(default_factory=tuple)
    figures: Mapping[str, Any] = field(default_factory=dict)
