"""The trained modules' common part, a weighted sum of losses, and the module of pretraining."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cloze.core.errors import UsageError
from cloze.model.families.pretraining import PretrainingModel
from cloze.model.layers.batch import Batch
from cloze.model.layers.cross_entropy import VocabularyHead, enable_lazy_logits
from cloze.model.layers.encoder import compile_layers
from cloze.model.objectives import objectives
from cloze.model.objectives.distillation import Comparison
from cloze.model.train.precision import DTYPES, Precision
from cloze.model.train.resume.initialization import Teacher
from cloze.model.train.spec.interfaces import TrainModule


class WeightedLosses(TrainModule):
    """A network and its losses, of objectives or of a task, whose weighted sum is trained.

    Args:
        names: names of the losses, in their order.
        weights: weight of each; a loss of weight 0 is logged, and has no gradient at all.
        precision: of the forward pass alone; everything else stays fp32.
        device_type: device type to compile for.
    """

    one_graph: bool = False  # compiled for a CPU, the step is one graph for batches of one shape

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str],
        weights: Sequence[float],
        precision: Precision,
        device_type: str = "cpu",
    ) -> None:
        super().__init__()
        if not names:
            raise UsageError("there is no objective to train on; name at least one")
        self.model, self.names, self.weights = model, tuple(names), tuple(weights)
        self.precision, self.device_type = precision, device_type
        self._autocast: Callable[[str], AbstractContextManager[object]] = (
            nullcontext
            if DTYPES[precision] is torch.float32
            else partial(torch.autocast, dtype=DTYPES[precision])  # torch's compiler reads it
        )
        self._compiled, self._layerwise = self._loss, False

    @abc.abstractmethod
    def _sums(self, batch: Batch) -> tuple[Sequence[tuple[Tensor, Tensor]], Any]:
        """Return each loss, summed, with its number of right answers, and the model's outputs."""

    @abc.abstractmethod
    def predict(self, batch: Batch) -> Any:
        """Return what an evaluation needs for a batch on the device."""

    def forward(self, batch: Batch, counts: Tensor | None = None) -> Any:
        """Return loss and metrics, compiled while training; without counts `predict`."""
        if counts is None:
            return self.predict(batch)
        return (self._compiled if self.training else self._loss)(batch, counts)

    def _loss(self, batch: Batch, counts: Tensor) -> tuple[Tensor, Tensor]:
        sums, _ = self._sums(batch)
        loss = torch.zeros((), dtype=torch.float32, device=sums[0][0].device)
        for number, weight in enumerate(self.weights):
            # At weight 0 a head has no gradient at all, so that no optimizer moves it.
            if weight:
                # as in BERT (A.2)
                loss = loss + weight * sums[number][0] / counts[number].clamp(min=1)
        return loss, figures_of(sums)

    def set_compiled(self, compiled: bool, *, whole: bool = False, dynamic: bool = True) -> None:
        """Compile training steps from the next one on, or none.

        Args:
            whole, dynamic: on a GPU: one graph for the step, and for all shapes.
        """
        on_cpu = self.device_type == "cpu"
        self._compiled = self._loss
        self._layerwise = compiled and not (self.one_graph if on_cpu else whole)
        compile_layers(self.model, self._layerwise, dynamic=dynamic)
        for module in self.model.modules():
            if isinstance(module, VocabularyHead):
                module.compiled = compiled and not on_cpu
        if not compiled or self._layerwise:
            return
        if on_cpu:
            self._compiled = torch.compile(
                self._loss, dynamic=False, options={"fallback_random": True}
            )
            # Recomputing activations, above all masks, is cheaper than keeping them.
            torch._functorch.config.aggressive_recomputation = True
        else:
            self._compiled = torch.compile(self._loss, dynamic=dynamic)


def figures_of(sums: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Return float64 [2, losses], without gradient: summed losses and right answers."""
    return torch.stack([torch.stack([part.detach().double() for part in own]) for own in sums], 1)


class PretrainModule(WeightedLosses):
    """A model and its objectives.

    Args:
        compiled: True to use torch.compile: on a CPU for the whole step, with batches of one fixed
            shape; on other devices for each layer, with batches of any shape.
        weights: objective name -> weight in the loss. Default: 1.
        teacher: adds its outputs for a batch to the model's.
        comparison: runs both networks, and records the states that objectives compare.
    """

    one_graph = True

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
        own_weights = [(weights or {}).get(name, 1.0) for name in names]
        super().__init__(model, names, own_weights, precision, device_type)
        self.objectives = objectives(names)
        if isinstance(model, PretrainingModel):
            model.predicts_all_positions = any(
                objective.all_positions for objective in self.objectives
            )
        if not any(objective.reads_logits for objective in self.objectives):
            enable_lazy_logits(model)
        self.teacher, self._comparison = teacher, comparison
        # Set by `predict`: empty until the first held-out batch.
        self.detail_names: tuple[str, ...] = ()
        self.set_compiled(compiled)

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

    def uncompiled(self, batch: Batch, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return loss and metrics for a batch of any shape, never compiled."""
        with self._plain():
            return self._loss(batch, counts)

    def predict(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the metrics of `forward` and finer ones, never compiled: batch shapes vary.

        Returns:
            float64 [2, objectives] as in `forward`; float64 [2, details], sums and counts of the
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

    def _sums(self, batch: Batch) -> tuple[list[tuple[Tensor, Tensor]], dict[str, Tensor]]:
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
        return [objective.loss(outputs, batch) for objective in self.objectives], outputs
