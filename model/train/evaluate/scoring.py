"""The trained module of pretraining: model and objectives, from a batch to the loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from cloze.model.families.pretraining import PretrainingModel
from cloze.model.layers.batch import Batch
from cloze.model.layers.cross_entropy import VocabularyHead, enable_lazy_logits
from cloze.model.layers.encoder import compile_layers
from cloze.model.objectives import LossSum, figures_of, objectives, total_loss
from cloze.model.objectives.distillation import Comparison
from cloze.model.train.precision import DTYPES, Precision
from cloze.model.train.resume.initialization import Teacher
from cloze.model.train.spec.interfaces import TrainModule


class PretrainModule(TrainModule):
    """A model and its objectives.

    Args:
        compiled: True to use torch.compile: on a CPU for the whole step, with batches of one fixed
            shape; on other devices for each layer, with batches of any shape.
        device_type: device type to compile for.
        weights: objective name -> weight in the loss. Default: 1.
        teacher: adds its outputs for a batch to the model's.
        comparison: runs both networks, and records the states that objectives compare.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str],
        precision: Precision,
        compiled: bool = False,
        device_type: str = "cpu",
        weights: Mapping[str, float] | None = None,
        teacher: Teacher | None = None,
        comparison: Comparison | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.names = tuple(names)
        self.precision = precision
        # Of the forward pass alone; everything else stays fp32.
        self._autocast: Callable[[str], AbstractContextManager[object]] = (
            nullcontext if precision == "fp32" else partial(torch.autocast, dtype=DTYPES[precision])
        )
        self.objectives = objectives(names)
        if isinstance(model, PretrainingModel):
            model.predicts_all_positions = any(
                objective.all_positions for objective in self.objectives
            )
        if not any(objective.reads_logits for objective in self.objectives):
            enable_lazy_logits(model)
        self.weights = dict(weights or {})
        self.teacher, self._comparison = teacher, comparison
        # Set by `predict`: empty until the first held-out batch.
        self.detail_names: tuple[str, ...] = ()
        self.device_type = device_type
        self.set_compiled(compiled)

    def set_compiled(self, compiled: bool, *, whole: bool = False, dynamic: bool = True) -> None:
        """Compile training steps from the next one on, or none.

        Args:
            whole, dynamic: on a GPU: one graph for the step, and for all shapes.
        """
        self._compiled, on_cpu = self._loss, self.device_type == "cpu"
        self._layerwise = compiled and not on_cpu and not whole
        compile_layers(self.model, self._layerwise, dynamic=dynamic)
        for module in self.model.modules():
            if isinstance(module, VocabularyHead):
                module.compiled = compiled and not on_cpu
        if whole and compiled and not on_cpu:
            self._compiled = torch.compile(self._loss, dynamic=dynamic)
        elif compiled and on_cpu:
            self._compiled = torch.compile(
                self._loss, dynamic=False, options={"fallback_random": True}
            )
            # Recomputing activations, above all masks, is cheaper than keeping them.
            torch._functorch.config.aggressive_recomputation = True

    def count_targets(self, batch: Batch) -> list[int]:
        """Count the predictions of each objective on a collated batch, before the model runs."""
        return [int(objective.targets(batch).sum()) for objective in self.objectives]

    def chance(self, vocabulary: int) -> float | None:
        """Return the loss of random guessing, summed over objectives as in log lines.

        None if it is undefined for an objective. Objective weights affect the gradient only, not
        this metric, which stays in nats per prediction.
        """
        losses = [
            math.nan if objective.random_loss is None else objective.random_loss(vocabulary)
            for objective in self.objectives
        ]
        total = sum(losses)
        return None if math.isnan(total) else total

    def loss(self, batch: Batch, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return loss and metrics as `TrainModule.loss`; compiled while training."""
        return (self._compiled if self.training else self._loss)(batch, counts)

    def uncompiled(self, batch: Batch, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return loss and metrics for a batch of any shape, never compiled."""
        with self._plain():
            return self._loss(batch, counts)

    def _loss(self, batch: Batch, counts: Tensor) -> tuple[Tensor, Tensor]:
        sums, _ = self._sums(batch)
        weights = [self.weights.get(item.name, 1.0) for item in sums]
        return total_loss(sums, counts, weights), figures_of(sums)

    def predict(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the metrics of `loss` and finer ones, never compiled: batch shapes vary.

        Returns:
            float64 [2, objectives] as in `loss`, and float64 [2, details]: sums and counts of the
            objectives' details, named by `detail_names`.
        """
        sums, outputs = self._sums(batch)
        figures = figures_of(sums)
        details = {
            f"{objective.name}_{name}": figure
            for objective in self.objectives
            if objective.details is not None
            for name, figure in objective.details(outputs, batch).items()
        }
        self.detail_names = tuple(details)
        if not details:
            return figures, figures.new_zeros(2, 0)
        return figures, torch.stack(
            [torch.stack(figure) for figure in details.values()], dim=1
        ).double()

    def _plain(self) -> AbstractContextManager[object]:
        """Return the context in which compiled layers run plain."""
        return torch.compiler.set_stance("force_eager") if self._layerwise else nullcontext()

    def _sums(self, batch: Batch) -> tuple[list[LossSum], dict[str, Tensor]]:
        """Return each objective's loss and the outputs; only training runs compiled layers."""
        with (
            nullcontext() if self.training else self._plain(),
            self._autocast(batch["input_ids"].device.type),
        ):
            outputs: dict[str, Tensor]
            if self.teacher is not None and self._comparison is not None:
                outputs, other, compared = self._comparison(batch)
                outputs |= {**self.teacher.rename(other), **compared}
            else:
                outputs = self.model(batch)
                if self.teacher is not None:
                    outputs |= self.teacher(batch)
        return [objective.score(outputs, batch) for objective in self.objectives], outputs
