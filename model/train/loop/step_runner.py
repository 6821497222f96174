"""The computation of a step: forward and backward of each micro-batch, update, and EMA."""

from __future__ import annotations

import torch

from cloze.core import random_keys
from cloze.model.data.batch import move
from cloze.model.train.distributed import World
from cloze.model.train.engines import create_engine
from cloze.model.train.engines.device_scalars import AsyncScalar, to_device_async
from cloze.model.train.engines.weight_ema import ema_decay_at
from cloze.model.train.loop.step_results import PendingStep
from cloze.model.train.loop.step_sync import PreparedStep, SyncedStep
from cloze.model.train.loop.train_spec import TrainSpec
from cloze.model.train.monitor.gradient_norms import GradientNorms
from cloze.model.train.resume.state import ResumeState

_DROPOUT = 3  # random stream, distinct from the sampler's and the weights'


class StepRunner:
    """Runs steps on the engine.

    Attributes:
        gradients: gradient norms of the newest step.
    """

    def __init__(self, training: TrainSpec, world: World) -> None:
        self._recipe, self._device = training.recipe, world.device
        self.engine = create_engine(
            training.execution.engine,
            training.trained,
            training.recipe,
            world,
            micro_batch=training.execution.micro_batch,
            accumulation=training.execution.accumulation,
        )
        self.gradients = GradientNorms(self.engine, training.trained.model, world)

    def load(self, resumed: ResumeState) -> None:
        """Load weights, EMA, optimizer state and loss scale of a checkpoint."""
        self.engine.load_weights(resumed.weights)
        if self._recipe.ema is not None and resumed.average is not None:
            self.engine.load_ema(resumed.average)
        self.engine.load_optimizer_state(resumed.optimizer, resumed.progress.updates)
        for tensors in (resumed.weights, resumed.optimizer, resumed.average):
            if tensors is not None:
                tensors.clear()
        if self.engine.loss_scaler is not None:
            self.engine.loss_scaler.restore(resumed.progress.loss_scale)

    def loss_scale_state(self) -> list[float]:
        """Return the state of the loss scale for a checkpoint; empty: no scaling."""
        return [] if self.engine.loss_scaler is None else self.engine.loss_scaler.state()

    def run(
        self, step: int, work: PreparedStep, synced: SyncedStep, rate: float, *, collect: bool
    ) -> PendingStep:
        """Run step `step` (from 0).

        Args:
            rate: learning rate.
            collect: True to collect gradient norms.
        """
        recipe, device = self._recipe, self._device
        counts = to_device_async([max(1, total) for total in synced.counts], torch.float32, device)
        figures = torch.zeros(2, len(synced.counts), dtype=torch.float64, device=device)
        for number, item in enumerate(work.micro_batches):
            torch.manual_seed(int(random_keys.fold_in(recipe.seed, _DROPOUT, step, item.first)))
            figures += self.engine.backward(
                move(item.batch, device), counts, last=number + 1 == len(work.micro_batches)
            )
        scaler = self.engine.loss_scaler
        scale = None if scaler is None else AsyncScalar(scaler.value)
        with self.gradients.collect(collect):
            norm = AsyncScalar(self.engine.step(rate))
        if recipe.ema is not None:
            self.engine.update_ema(ema_decay_at(recipe.ema, step))
        return PendingStep(step + 1, norm, figures, counts, scale)
