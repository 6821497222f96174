"""The optimizers of Adam's kind: AdamW (Loshchilov and Hutter, 2019), StableAdamW and LAMB.

StableAdamW and LAMB scale the update of each parameter. The scale follows from sums over all values
of the parameter (the norm of its weights, of its update). Extents of the parameter may be on
several ranks (`FlatShard`). A group's sums are reduced over the ranks in one message.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed

from cloze.model.train.device_scalars import to_device_async
from cloze.model.train.optimizers import OptimizerSpec
from cloze.model.train.optimizers.flat_shards import (
    FlatShard,
    SharedOptimizer,
    TensorExtent,
    collective_device,
    squares,
)
from cloze.model.train.spec.train_spec import TrainingHyperparameters


def adamw(
    groups: list[dict[str, Any]], hyperparameters: TrainingHyperparameters
) -> torch.optim.Optimizer:
    """Build torch's fused AdamW, with the bias correction that BERT's Adam lacks."""
    return torch.optim.AdamW(
        groups,
        lr=hyperparameters.learning_rate,
        betas=hyperparameters.betas,
        eps=hyperparameters.eps,
        weight_decay=hyperparameters.weight_decay,
        fused=True,
    )


ADAMW = OptimizerSpec(build=adamw, state=("exp_avg", "exp_avg_sq"))


@dataclass(frozen=True, slots=True)
class ParameterView:
    """Flat views of one extent of a parameter: weights, gradient and moments."""

    parameter: int
    weight: Tensor
    gradient: Tensor
    mean: Tensor
    square: Tensor


class TensorwiseAdam(SharedOptimizer, abc.ABC):
    """Adam with decoupled weight decay, and a scale on each parameter's update u.

        m = b1 m + (1 - b1) g
        v = b2 v + (1 - b2) g²
        u = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay w
        w = w - learning_rate scale u

    The state is that of torch's AdamW, in fp32: `exp_avg` (m), `exp_avg_sq` (v) and `step` (t).

    Args:
        groups: with `params`, `weight_decay`, `rate`, and `matrices`: True for matrices and tables,
            False for vectors.

    Attributes:
        columns: number of sums from which a scale follows.
    """

    columns: int

    def __init__(
        self, groups: list[dict[str, Any]], hyperparameters: TrainingHyperparameters
    ) -> None:
        defaults = {
            "lr": hyperparameters.learning_rate,
            "betas": hyperparameters.betas,
            "eps": hyperparameters.eps,
        }
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update by the gradients, which must be finite unless `found_inf` is set."""
        for group in self.param_groups:
            tensors = [parameter for parameter in group["params"] if parameter.grad is not None]
            if tensors:
                self._update(group, tensors)

    def scaled(self, group: dict[str, Any]) -> bool:
        """Return True if the group's parameters are scaled; otherwise their scale is 1."""
        return True

    @abc.abstractmethod
    def summands(
        self,
        group: dict[str, Any],
        parts: Sequence[ParameterView],
        roots: Sequence[Tensor],
        updates: Sequence[Tensor],
    ) -> list[list[Tensor]]:
        """Return for each of the `columns` and each part a tensor whose squares are summed.

        Args:
            roots: sqrt(v / (1 - b2^t)).
            updates: u.
        """

    @abc.abstractmethod
    def scales(self, sums: Tensor, sizes: Tensor) -> Tensor:
        """Return the scale of each parameter, float64 [K].

        Args:
            sums: float64 [K, columns], over whole parameters.
            sizes: float64 [K], number of values of each parameter.
        """

    def _update(self, group: dict[str, Any], tensors: Sequence[Tensor]) -> None:
        shards = [self.shards.get(tensor) or _whole(tensor) for tensor in tensors]
        self._count_step(tensors)
        # Before the moments: NaN times 0 is NaN, so no factor could take it out again.
        zero_if_nonfinite([tensor.grad for tensor in tensors], self.found_inf)
        parts = list(self._parts(tensors, shards))
        step = self.state[tensors[0]]["step"]
        # If no step was applied yet, the corrections do not matter; the clamp avoids a division by
        # 0.
        # In float64: 1 - .999 has only four right digits in fp32, and divides the first updates.
        corrections = [
            (1.0 - beta ** step.double().clamp(min=1.0)).float() for beta in group["betas"]
        ]
        # A GPU computes all parts together, a CPU one at a time while it is in the cache.
        on_cpu = tensors[0].device.type == "cpu"
        # A shard of padding alone has no parts, and torch refuses an empty list.
        batches = [[part] for part in parts] if on_cpu or not parts else [parts]
        updates, squared_sums = [], []
        for batch in batches:
            roots, update = _adam(group, batch, corrections, self.found_inf)
            updates.append(update)
            if self.scaled(group):
                squared_sums.append(
                    torch.stack(
                        [squares(column) for column in self.summands(group, batch, roots, update)],
                        dim=1,
                    )
                )
        if self.scaled(group):
            sizes = to_device_async(
                [size for shard in shards for size in shard.sizes], torch.float64, step.device
            )
            sums = sizes.new_zeros(len(sizes), self.columns)
            # A rank may hold no part of the group, and still takes part in the reduction below.
            if squared_sums:
                sums.index_add_(
                    0,
                    to_device_async([part.parameter for part in parts], torch.int64, step.device),
                    torch.cat(squared_sums),
                )
            # Ranks hold different extents: the sums of squares travel, each rank gets all scales.
            if self.shards:
                reduced = sums.to(collective_device())
                distributed.all_reduce(reduced)
                sums = reduced.to(sums.device)
            scales = self.scales(sums, sizes).float().unbind()
            for batch, update in zip(batches, updates, strict=True):
                torch._foreach_mul_(update, [scales[part.parameter] for part in batch])
        for batch, update in zip(batches, updates, strict=True):
            # The device, not the host, decides: a skipped step adds zero times a finite update.
            if self.found_inf is not None:
                torch._foreach_mul_(update, 1.0 - self.found_inf)
            torch._foreach_add_([part.weight for part in batch], update, alpha=-group["lr"])

    def _count_step(self, tensors: Sequence[Tensor]) -> None:
        """Count the step of each tensor, whose state is created in the first one."""
        for tensor in tensors:
            state = self.state[tensor]
            if not state:
                state["step"] = torch.zeros((), device=tensor.device)
                state["exp_avg"] = torch.zeros_like(tensor)
                state["exp_avg_sq"] = torch.zeros_like(tensor)
        steps = [self.state[tensor]["step"] for tensor in tensors]
        applied = torch.ones_like(steps[0]) if self.found_inf is None else 1.0 - self.found_inf
        torch._foreach_add_(steps, [applied] * len(steps))

    def _parts(
        self, tensors: Sequence[Tensor], shards: Sequence[FlatShard]
    ) -> Iterator[ParameterView]:
        """Yield views of all extents of all tensors."""
        first_index = 0
        for tensor, shard in zip(tensors, shards, strict=True):
            state = self.state[tensor]
            assert tensor.grad is not None
            tensors_of_state = (tensor, tensor.grad, state["exp_avg"], state["exp_avg_sq"])
            for extent in shard.extents:
                views = [extent.of(values) for values in tensors_of_state]
                yield ParameterView(first_index + extent.number, *views)
            first_index += len(shard.sizes)


def _whole(tensor: Tensor) -> FlatShard:
    return FlatShard((tuple(tensor.shape),), (TensorExtent(0, 0, 0, tensor.numel()),))


def zero_if_nonfinite(gradients: Sequence[Tensor | None], found_inf: Tensor | None) -> None:
    """Set the gradients to zero if `found_inf` is 1, so that products with zero stay finite."""
    if found_inf is not None:
        nonfinite = found_inf.bool()
        for gradient in gradients:
            if gradient is not None:
                gradient.masked_fill_(nonfinite, 0.0)


def _adam(
    group: dict[str, Any],
    parts: Sequence[ParameterView],
    corrections: Sequence[Tensor],
    found_inf: Tensor | None,
) -> tuple[list[Tensor], list[Tensor]]:
    """Update the moments; return the roots of the second moments, and the updates.

    If `found_inf` is 1, gradients are zero and the moments do not change.
    """
    weights, gradients = [part.weight for part in parts], [part.gradient for part in parts]
    means, squares = [part.mean for part in parts], [part.square for part in parts]
    (mean_correction, square_correction), (beta1, beta2) = corrections, group["betas"]
    if found_inf is None:
        # m + (1 - b1) (g - m), in one pass over the memory
        torch._foreach_lerp_(means, gradients, 1.0 - beta1)
        torch._foreach_mul_(squares, beta2)
    else:
        # No lerp: in a skipped step gradients are 0 and the factors 1, so the moments stay.
        torch._foreach_mul_(means, torch.where(found_inf.bool(), 1.0, beta1))
        torch._foreach_add_(means, gradients, alpha=1.0 - beta1)
        torch._foreach_mul_(squares, torch.where(found_inf.bool(), 1.0, beta2))
    torch._foreach_addcmul_(squares, gradients, gradients, 1.0 - beta2)
    roots = list(torch._foreach_div(squares, square_correction))
    torch._foreach_sqrt_(roots)
    updates = list(torch._foreach_div(means, mean_correction))
    torch._foreach_div_(updates, torch._foreach_add(roots, group["eps"]))
    # Before any norm of the update: LAMB's ratio covers r + lambda w (Algorithm 2).
    if group["weight_decay"]:
        torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
    return roots, updates


class StableAdamW(TensorwiseAdam):
    """Adam with the scale 1 / max(1, sqrt(mean(g² / max(v / (1 - b2^t), eps²)))).

    AdamW with AdaFactor's update clipping: Wortsman et al., "Stable and low-precision training for
    large-scale vision-language models", 2023, Algorithm 2; Shazeer and Stern, "Adafactor", 2018,
    section 6. A gradient much larger than the second moment so far would move the weights too far,
    so it lowers the parameter's learning rate. The paper's self-correcting running averages equal
    Adam's with bias correction.
    """

    columns = 1

    def summands(
        self,
        group: dict[str, Any],
        parts: Sequence[ParameterView],
        roots: Sequence[Tensor],
        updates: Sequence[Tensor],
    ) -> list[list[Tensor]]:
        clamped_roots = torch._foreach_clamp_min(list(roots), group["eps"])
        return [list(torch._foreach_div([part.gradient for part in parts], clamped_roots))]

    def scales(self, sums: Tensor, sizes: Tensor) -> Tensor:
        return (sums[:, 0] / sizes).sqrt().clamp(min=1.0).reciprocal()


STABLE_ADAMW = OptimizerSpec(build=StableAdamW, state=("exp_avg", "exp_avg_sq"))


class Lamb(TensorwiseAdam):
    """Adam with matrices scaled by the trust ratio: norm of weights / norm of update.

    You et al., "Large Batch Optimization for Deep Learning", 2020, Algorithm 2, with Adam's bias
    correction and an unbounded weight norm (φ is the identity). As in google-research/albert,
    lamb_optimizer.py (which lacks bias correction), biases and norms have neither weight decay nor
    a trust ratio. A ratio is 1 if weights or update are zero.
    """

    columns = 2

    def scaled(self, group: dict[str, Any]) -> bool:
        return bool(group["matrices"])

    def summands(
        self,
        group: dict[str, Any],
        parts: Sequence[ParameterView],
        roots: Sequence[Tensor],
        updates: Sequence[Tensor],
    ) -> list[list[Tensor]]:
        return [[part.weight for part in parts], list(updates)]

    def scales(self, sums: Tensor, sizes: Tensor) -> Tensor:
        weights, updates = sums.sqrt().unbind(dim=1)
        # A matrix of zeros would never leave zero with a ratio of 0.
        return torch.where((weights > 0) & (updates > 0), weights / updates, 1.0)


LAMB = OptimizerSpec(build=Lamb, state=("exp_avg", "exp_avg_sq"))
