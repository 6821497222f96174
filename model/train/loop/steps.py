"""Steps: prepared in a thread, synchronized over the ranks, run, and read.

Before each step the ranks sum in one small message its tokens and targets, their stop requests, and
rank 0's save timer. Gradients are thus weighted by global counts however the batch is split, and
all ranks stop and save after the same step. With several ranks the message for a step is sent while
the previous step runs.

A step is applied, or skipped for a non-finite gradient. That is known when the gradient norm
arrives from the device, possibly one step later. `TrainerState` counts it, and the metrics of
applied steps go into the window of the next log line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cloze.core import random_keys
from cloze.core.processes import RankPhase
from cloze.model.data.batch import move, pin, sizes
from cloze.model.random_streams import Stream
from cloze.model.train.device_scalars import LEAST, AsyncScalar
from cloze.model.train.distributed import World
from cloze.model.train.engines.create import create_engine
from cloze.model.train.loop.rollback import RollbackRequired
from cloze.model.train.monitor.log import SKIPPED, TrainingReporter
from cloze.model.train.resume.state import ResumeState
from cloze.model.train.spec.interfaces import BatchSource, MicroBatch, StepBatches
from cloze.model.train.spec.progress import TrainerState
from cloze.model.train.spec.train_spec import TrainSpec


@dataclass(frozen=True, slots=True)
class LocalRequests:
    """Requests of this rank, polled once per step.

    Attributes:
        stop: True to stop.
        save: True to save a checkpoint; polled on rank 0.
        fix: fixes the last step; called on rank 0, see `cloze.model.train.spec.schedules.Duration`.
        over: True if the newest step is the last one, which all ranks know without a message.
    """

    stop: Callable[[], bool]
    save: Callable[[], bool]
    fix: Callable[[int], int] = lambda step: 0
    over: Callable[[], bool] = lambda: False


def prepare(
    training: TrainSpec, source: BatchSource, world: World, first: int
) -> Iterator[StepBatches]:
    """Yield every step from `first` on, for a GPU in pinned memory; runs in the prefetch thread."""
    total_steps = training.hyperparameters.duration.steps
    for step in count(first) if total_steps is None else range(first, total_steps):
        work = source.step_batches(step, world.rank, world.size)
        micro_batches = work.micro_batches
        batches = [item.batch for item in micro_batches]
        # Here, where batches are on the host: later, a count would be read from the device.
        targets = np.sum([training.trained.count_targets(batch) for batch in batches], axis=0)
        if world.device.type == "cuda":
            micro_batches = [
                MicroBatch(item.first, pin(item.batch, world.device)) for item in micro_batches
            ]
        yield replace(
            work,
            micro_batches=micro_batches,
            step=step,
            sizes=sizes(*batches),
            targets=targets.tolist(),
        )


def sync_steps(
    steps: Iterable[StepBatches], world: World, requests: LocalRequests
) -> Iterator[StepBatches]:
    """Yield each step with the requests and sums that the ranks agree on.

    A single process polls its requests just before the step. Several ranks send the next step's
    message before they run the current step, so requests take effect one step later.
    """
    pending: Callable[[], StepBatches] | None = None
    for step in steps:
        agreed = _begin(step, world, requests)
        if world.size > 1:
            pending, agreed = agreed, pending
        if agreed is not None:
            yield agreed()
            if requests.over():
                if pending is not None:
                    pending()  # completes the collective that is already started
                return
    if pending is not None:
        yield pending()


def _begin(step: StepBatches, world: World, requests: LocalRequests) -> Callable[[], StepBatches]:
    last = requests.fix(step.step) if world.is_rank_zero else 0
    # One message for all: only rank 0 sets `save` and `last`, so their sums are its values.
    flags = [int(requests.stop()), int(world.is_rank_zero and requests.save()), last]
    sums = world.all_reduce_sum_async([*flags, step.tokens, *step.by_source, *step.targets])

    def agreed() -> StepBatches:
        (stop, save, last, tokens, *others), sources = sums(), len(step.by_source)
        return replace(
            step,
            stop=bool(stop),
            save=bool(save),
            last=last,
            tokens=tokens,
            by_source=others[:sources],
            targets=others[sources:],
        )

    return agreed


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A step whose gradient norm may not have arrived from the device yet.

    Attributes:
        step: number of the step, from 1.
        figures: this rank's sums, see `cloze.model.train.evaluate.scoring.PretrainModule`.
        counts: counts of the step over all ranks.
        scale: loss scale, with precision fp16.
    """

    step: int
    norm: AsyncScalar | float
    figures: Tensor
    counts: Tensor
    scale: AsyncScalar | None


class StepRunner:
    """Runs steps on the engine.

    Attributes:
        gradients: gradient norms of the newest step.
    """

    def __init__(self, training: TrainSpec, world: World) -> None:
        self._hyperparameters, self._device = training.hyperparameters, world.device
        self.engine = create_engine(
            training.execution.engine,
            training.trained,
            training.hyperparameters,
            world,
            micro_batch=training.execution.micro_batch,
            accumulation=training.execution.accumulation,
        )

    def load(self, resumed: ResumeState) -> None:
        """Load weights, optimizer state and loss scale of a checkpoint."""
        self.engine.load_weights(resumed.weights)
        self.engine.load_optimizer_state(resumed.optimizer, resumed.progress.updates)
        resumed.weights.clear()
        resumed.optimizer.clear()
        if self.engine.loss_scaler is not None:
            self.engine.loss_scaler.restore(resumed.progress.loss_scale)

    def loss_scale_state(self) -> list[float]:
        """Return the state of the loss scale for a checkpoint; empty: no scaling."""
        return [] if self.engine.loss_scaler is None else self.engine.loss_scaler.state()

    def run(self, work: StepBatches, rate: float) -> PendingStep:
        """Run a step that the ranks agree on."""
        hyperparameters, device, step = self._hyperparameters, self._device, work.step
        # On the device, where losses are divided by them: the host waits for nothing.
        # At least 1: an objective without targets in this step has the loss 0, not 0 / 0.
        counts = torch.from_numpy(np.maximum(1, work.targets).astype(np.float32))
        if device.type != "cpu":
            counts = counts.pin_memory().to(device, non_blocking=True)
        figures = torch.zeros(2, len(work.targets), dtype=torch.float64, device=device)
        micro_batches = work.micro_batches
        for number, item in enumerate(micro_batches):
            # By sample and step, so that dropout does not depend on ranks, splits or a resume.
            seed = random_keys.fold_in(hyperparameters.seed, Stream.DROPOUT, step, item.first)
            torch.manual_seed(int(seed))
            batch = item.batch if device.type == "cpu" else move(item.batch, device)
            last = number + 1 == len(micro_batches)
            figures += self.engine.backward(batch, counts, last=last)
        scaler = self.engine.loss_scaler
        # Before the update, which changes it: the log names the scale that this step had.
        scale = None if scaler is None else AsyncScalar(scaler.value)
        norm = self.engine.step(rate, step)
        # Reading it now would make the host wait for the step.
        pending = AsyncScalar(norm) if isinstance(norm, Tensor) else norm
        return PendingStep(step + 1, pending, figures, counts, scale)


@dataclass(slots=True)
class MetricWindow:
    """Means since the last logged step.

    Every rank adds its share of each applied step; the sums over ranks are the step's values. They
    stay on the device until requested, so that logging does not synchronize every step.

    Attributes:
        sums: float64 [2, objectives]: losses in nats and shares of right answers, summed over
            steps.
    """

    names: Sequence[str]
    device: torch.device
    steps: int = 0
    norm: float = 0.0
    sums: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.sums = torch.zeros(2, len(self.names), dtype=torch.float64, device=self.device)

    def add(self, figures: Tensor, counts: Tensor, norm: float) -> None:
        """Add a step: this rank's sums of its losses, and the counts of all ranks."""
        # Divided by the counts of all ranks, so that the ranks' shares add up to the mean. On the
        # device: reading them would make the host wait in every step.
        self.sums += figures / counts.double()
        self.steps += 1
        self.norm += norm

    def means(self, world: World) -> dict[str, float]:
        """Return the means over all ranks, empty without applied steps; every rank must call it."""
        sums = world.all_reduce_tensor(self.sums.cpu().clone())
        if not self.steps:
            return {}
        losses, accuracies = (sums / self.steps).tolist()
        metrics = {"loss": sum(losses)}
        for name, loss, accuracy in zip(self.names, losses, accuracies, strict=True):
            metrics |= {f"{name}_loss": loss, f"{name}_accuracy": accuracy}
        return {
            name: round(value, 6)
            for name, value in (metrics | {"grad_norm": self.norm / self.steps}).items()
        }

    def state(self, world: World) -> dict[str, Any]:
        """Return the state of an unfinished window for a checkpoint; every rank must call it."""
        sums = world.all_reduce_tensor(self.sums.cpu().clone())
        return {"steps": self.steps, "norm": self.norm, "sums": sums.tolist()}

    def restore(self, state: Mapping[str, Any], world: World) -> None:
        self.steps, self.norm = state["steps"], state["norm"]
        if world.is_rank_zero:  # the sums cover all ranks, so one rank continues them
            self.sums += torch.tensor(state["sums"], dtype=torch.float64, device=self.device)


class StepResults:
    """The unread steps, and the sums of the steps that were read.

    Attributes:
        window: metrics since the last log line.
    """

    def __init__(self, training: TrainSpec, world: World, reporter: TrainingReporter) -> None:
        self._training, self._world, self._reporter = training, world, reporter
        self._unread: list[PendingStep] = []
        self.reset_window()

    def reset_window(self) -> None:
        """Start a new window."""
        self.window = MetricWindow(self._training.trained.names, self._world.device)

    def restore(self, progress: TrainerState) -> None:
        """Restore the window of a checkpoint and drop unread steps."""
        self._unread.clear()
        self.reset_window()
        self.window.restore(progress.window, self._world)

    def process(
        self,
        progress: TrainerState,
        source: BatchSource,
        step: PendingStep | None = None,
        *,
        keep: int,
    ) -> None:
        """Read the norms of all steps except the last `keep`, which a GPU still computes.

        Args:
            step: a step to add before.

        Raises:
            RollbackRequired: too many consecutive steps were skipped.
        """
        if step is not None:
            self._unread.append(step)
        while len(self._unread) > keep:
            item = self._unread.pop(0)
            norm = item.norm
            if isinstance(norm, AsyncScalar):
                # Reading the norm may wait for a collective on the device.
                with self._world.pulse.phase(RankPhase.EXCHANGE):
                    norm = norm.value
            if math.isfinite(norm):
                progress.updates += 1
                progress.skipped_in_a_row = 0
                self.window.add(item.figures, item.counts, norm)
            elif item.scale is not None and item.scale.value > LEAST:
                self._overflowed(progress, item.step, item.scale.value)
            else:
                self._skipped(progress, source, item.step)

    def _overflowed(self, progress: TrainerState, step: int, scale: float) -> None:
        """Count a skipped step whose scaled gradient overflowed fp16, which is normal."""
        progress.skipped += 1
        progress.overflows += 1
        self._reporter.message(
            f"step {step} was skipped: its gradient overflows fp16 at a loss scale of {scale:,.0f},"
            f" which is halved"
        )

    def _skipped(self, progress: TrainerState, source: BatchSource, step: int) -> None:
        """Count a skipped step, log its rows, and request a rollback after too many in a row."""
        progress.skipped += 1
        progress.skipped_in_a_row += 1
        self._reporter.skipped_steps.add({"step": step, **source.row_ids(step - 1)})
        self._reporter.message(
            f"step {step} was skipped: its gradient is not finite (rows in {SKIPPED})", "warning"
        )
        if progress.skipped_in_a_row >= self._training.hyperparameters.max_skipped:
            raise RollbackRequired(step, progress.skipped_in_a_row)
