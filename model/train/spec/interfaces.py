"""The interfaces between the training loop (`cloze.model.train.loop.loop`) and what it trains.

  BatchSource  samples of each step, as batches for one rank: a dataset, or a task
  TrainModule  batches -> loss and metrics: model and objectives, or a task's head
  Evaluator    metrics during training, such as the held-out loss; optional

A `TrainSpec` (`cloze.model.train.spec.train_spec`) combines them with hyperparameters and options,
and the loop knows nothing else. Batches are dicts that `TrainModule.forward` reads, of tensors and
other values that can be pinned and moved.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from cloze.model.data.batch import TokenCounts
from cloze.model.layers.batch import Batch
from cloze.model.train.spec.schedules import ScheduleProgress


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
    """A step on one rank; the loop fills in what has a default, and then sums over ranks.

    Attributes:
        micro_batches: the same number on every rank.
        tokens: number of real tokens; then of all ranks.
        by_source: of a mixture: real tokens of each dataset; then of all ranks.
        step: number of the step, from 0.
        sizes: token counts of this rank, for the throughput.
        targets: predictions of each loss; then of all ranks.
        stop, save: True to stop or save before the step.
        last: number of the last step that rank 0 has fixed; 0: none.
    """

    micro_batches: Sequence[MicroBatch]
    tokens: int
    by_source: Sequence[int] = ()
    step: int = 0
    sizes: TokenCounts = field(default_factory=TokenCounts)
    targets: Sequence[int] = ()
    stop: bool = False
    save: bool = False
    last: int = 0


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
    def count_targets(self, batch: Batch) -> list[int]:
        """Count the predictions of each objective on a batch, before the model runs; 0 if empty."""

    @abc.abstractmethod
    def forward(self, batch: Batch, counts: Tensor | None = None) -> Any:
        """Score a batch on the device, or predict it without counts.

        Callers must use this method: at ZeRO stage 3 only a call of the whole module gathers its
        weights.

        Args:
            counts: float [objectives], the divisor of each summed loss.

        Returns:
            The loss, an fp32 scalar; and without gradient, float64 [2, objectives]: each
            objective's summed loss in nats and number of right answers. Without counts: what an
            evaluation needs, such as the model's outputs.
        """


class Evaluator(Protocol):
    """Evaluation during training. It draws no random numbers and changes no weights.

    Its amount must follow from config and data alone, never from a clock, and should cost at most 5
    % of training.
    """

    @property
    def best_metric(self) -> str:
        """Name of the metric that selects the best step; see `cloze.core.figures.goodness`."""
        ...

    def should_evaluate(self, step: int, schedule_progress: ScheduleProgress) -> bool:
        """Return True if step `step` is to be evaluated. The last step always is."""
        ...

    def __call__(
        self, step: int, schedule_progress: ScheduleProgress, stop_requested: Callable[[], bool]
    ) -> dict[str, float]:
        """Return the metrics after `step` steps, by name; all ranks call it and get the same.

        `TrainModule` is in training mode before and after.

        Raises:
            EvaluationInterrupted: `stop_requested` was true on one rank; all ranks agreed to stop.
        """
        ...
