"""Adam's update, scaled parameter by parameter: what StableAdamW and LAMB have in common.

The scale follows from sums over all numbers of a parameter (the norm of its weights, of its update), and these may lie on several
ranks: a `Cut` says where. A group's sums are added up over the ranks in one message.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed

from model.train.arriving import departing
from model.train.interfaces import Recipe
from model.train.optimizers.cuts import Cut, Piece, meeting_device, squares


@dataclass(frozen=True, slots=True)
class Part:
    """What is here of a parameter: flat views of its weights, gradient and moments."""

    parameter: int
    weight: Tensor
    gradient: Tensor
    mean: Tensor
    square: Tensor


class TensorwiseAdam(torch.optim.Optimizer, abc.ABC):
    """Adam with bias correction and decoupled weight decay, whose update u of a parameter w with gradient g has a scale.

        m = b1 m + (1 - b1) g
        v = b2 v + (1 - b2) g²
        u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay w
        w = w - learning_rate scale u

    Its state is that of torch's AdamW: `exp_avg` (m), `exp_avg_sq` (v) and `step` (t). All of it is fp32.

    Args:
        groups: with `params`, `weight_decay`, `rate`, and `matrices`: whether these are matrices and tables, not vectors.

    Attributes:
        cuts: by flat tensor; tensors that are not in it are whole parameters. While there are any, all ranks of the default
            process group must update the same groups in the same order.
        columns: how many sums a scale follows from.
        found_inf: see `model.train.optimizers.OptimizerKind`.
    """

    columns: int
    found_inf: Tensor | None = None

    def __init__(self, groups: list[dict[str, Any]], recipe: Recipe) -> None:
        defaults = {"lr": recipe.learning_rate, "betas": recipe.betas, "eps": recipe.eps}
        super().__init__(groups, defaults)
        self.cuts: dict[Tensor, Cut] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update by the gradients, which must be finite where `found_inf` does not say otherwise."""
        for group in self.param_groups:
            tensors = [parameter for parameter in group["params"] if parameter.grad is not None]
            if tensors:
                self._update(group, tensors)

    def scaled(self, group: dict[str, Any]) -> bool:
        """Whether the group's parameters have scales; else they are 1."""
        return True

    @abc.abstractmethod
    def summands(
        self, group: dict[str, Any], parts: Sequence[Part], roots: Sequence[Tensor], updates: Sequence[Tensor]
    ) -> list[list[Tensor]]:
        """For each of the `columns` and each part a tensor, whose squares are summed.

        Args:
            roots: sqrt(v / (1 - b2^t)).
            updates: u.
        """

    @abc.abstractmethod
    def scales(self, sums: Tensor, sizes: Tensor) -> Tensor:
        """The scale of each parameter, float64 [K].

        Args:
            sums: float64 [K, columns], over whole parameters.
            sizes: float64 [K], how many numbers they have.
        """

    def _update(self, group: dict[str, Any], tensors: Sequence[Tensor]) -> None:
        cuts = [self.cuts.get(tensor) or _whole(tensor) for tensor in tensors]
        parts = list(self._parts(tensors, cuts))
        step = self.state[tensors[0]]["step"]
        # where not even one step was taken, the first being left out, any number will do
        corrections = [(1.0 - beta ** step.double().clamp(min=1.0)).float() for beta in group["betas"]]
        # a GPU computes all of them together, a CPU one after another, while it is in the cache
        batches = [parts] if tensors[0].is_cuda else [[part] for part in parts]
        updates, found = [], []
        for batch in batches:
            roots, update = _adam(group, batch, corrections, self.found_inf)
            updates.append(update)
            if self.scaled(group):
                found.append(torch.stack([squares(column) for column in self.summands(group, batch, roots, update)], dim=1))
        if self.scaled(group):
            sizes = departing([size for cut in cuts for size in cut.sizes], torch.float64, step.device)
            sums = sizes.new_zeros(len(sizes), self.columns)
            if found:
                sums.index_add_(0, departing([part.parameter for part in parts], torch.int64, step.device), torch.cat(found))
            if self.cuts:
                met = sums.to(meeting_device())
                distributed.all_reduce(met)
                sums = met.to(sums.device)
            scales = self.scales(sums, sizes).float().unbind()
            for batch, update in zip(batches, updates, strict=True):
                torch._foreach_mul_(update, [scales[part.parameter] for part in batch])
        for batch, update in zip(batches, updates, strict=True):
            if self.found_inf is not None:
                torch._foreach_mul_(update, 1.0 - self.found_inf)
            torch._foreach_add_([part.weight for part in batch], update, alpha=-group["lr"])

    def _parts(self, tensors: Sequence[Tensor], cuts: Sequence[Cut]) -> Iterator[Part]:
        """All pieces of all tensors; a new step of each begins."""
        before = 0
        for tensor, cut in zip(tensors, cuts, strict=True):
            state = self.state[tensor]
            if not state:
                state["step"] = torch.zeros((), device=tensor.device)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(tensor), torch.zeros_like(tensor)
            state["step"] += 1.0 if self.found_inf is None else 1.0 - self.found_inf
            assert tensor.grad is not None
            still(tensor.grad, self.found_inf)
            flat = [held.view(-1) for held in (tensor, tensor.grad, state["exp_avg"], state["exp_avg_sq"])]
            for piece in cut.pieces:
                views = [held.narrow(0, piece.start, piece.length) for held in flat]
                yield Part(before + piece.number, *views)
            before += len(cut.sizes)


def _whole(tensor: Tensor) -> Cut:
    return Cut((tuple(tensor.shape),), (Piece(0, 0, 0, tensor.numel()),))


def still(gradient: Tensor, found_inf: Tensor | None) -> None:
    """Where `found_inf` is 1, make the gradient zero: whatever is multiplied with zero then stays finite."""
    if found_inf is not None:
        gradient.masked_fill_(found_inf.bool(), 0.0)


def _adam(
    group: dict[str, Any], parts: Sequence[Part], corrections: Sequence[Tensor], found_inf: Tensor | None
) -> tuple[list[Tensor], list[Tensor]]:
    """Move the moments on; returns the roots of the second ones, and the updates. Where `found_inf` is 1, gradients are zero."""
    weights, gradients = [part.weight for part in parts], [part.gradient for part in parts]
    means, squares = [part.mean for part in parts], [part.square for part in parts]
    (first, second), (beta1, beta2) = corrections, group["betas"]
    if found_inf is None:
        torch._foreach_lerp_(means, gradients, 1.0 - beta1)
        torch._foreach_mul_(squares, beta2)
    else:
        torch._foreach_mul_(means, torch.where(found_inf.bool(), 1.0, beta1))
        torch._foreach_add_(means, gradients, alpha=1.0 - beta1)
        torch._foreach_mul_(squares, torch.where(found_inf.bool(), 1.0, beta2))
    torch._foreach_addcmul_(squares, gradients, gradients, 1.0 - beta2)
    roots = list(torch._foreach_div(squares, second))
    torch._foreach_sqrt_(roots)
    updates = list(torch._foreach_div(means, first))
    torch._foreach_div_(updates, torch._foreach_add(roots, group["eps"]))
    if group["weight_decay"]:
        torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
    return roots, updates
