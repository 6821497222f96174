"""Muon: the momentum of a matrix, made orthogonal (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024).

It updates the matrices of the layers, each by itself: those that are stored as one (query, key and value; both halves of a gated
block) are taken apart. Embeddings, whatever stands on the encoder, biases and norms are AdamW's. The update is scaled to the size of
AdamW's, so that one learning rate and one weight decay suit both (Liu et al., "Muon is Scalable for LLM Training", 2025, section 2.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from model.train.interfaces import Recipe
from model.train.optimizers import OptimizerKind
from model.train.optimizers.adamw import adamw
from model.train.optimizers.tensorwise import still
from model.train.precision import DTYPES

MOMENTUM = 0.95
STEPS = 5
A, B, C = 3.4445, -4.7750, 2.0315  # steepest at 0; five steps bring a singular value to between about .7 and 1.2
TINY = 1e-7
ADAM_SIZE = 0.2  # the root mean square of AdamW's updates, as the second paper measured it


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised by five steps of Newton and Schulz, in the precision of the forward pass.

        M = .95 M + .05 G
        O = orthogonal(.95 M + .05 G)
        W = W - learning_rate (weight_decay W + .2 sqrt(max(rows, columns)) O)

    State: `momentum` (M) for the layers' matrices, AdamW's for the rest.

    Args:
        groups: with `hidden`: into how many matrices, one upon another, each parameter is taken apart; 0: AdamW's.

    Attributes:
        ranks: this rank, and how many hold the same parameters and gradients: each makes its share of the matrices orthogonal and
            sends them to the others, so all have the same numbers.
        found_inf: see `model.train.optimizers.OptimizerKind`.
    """

    found_inf: Tensor | None = None

    def __init__(self, groups: list[dict[str, Any]], recipe: Recipe) -> None:
        super().__init__(groups, {"lr": recipe.learning_rate})
        self._dtype = DTYPES[recipe.precision]
        self._hidden = [group for group in self.param_groups if group["hidden"]]
        self._others = adamw([group for group in self.param_groups if not group["hidden"]], recipe)
        self._others.state = self.state  # one state, and the very same groups
        self.ranks = (0, 1)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update by the gradients, which must be finite where `found_inf` does not say otherwise."""
        applied: Tensor | float = 1.0
        if self.found_inf is not None:
            applied = 1.0 - self.found_inf
            self._others.found_inf = self.found_inf  # type: ignore[attr-defined]
        self._others.step()
        parameters = [(group, one) for group in self._hidden for one in group["params"] if one.grad is not None]
        matrices = [part for group, one in parameters for part in self._nesterov(one, applied).chunk(group["hidden"])]
        directions = iter(self._orthogonal(matrices))
        for group, one in parameters:
            one.mul_(1.0 - group["lr"] * group["weight_decay"] * applied)
            for part in one.chunk(group["hidden"]):
                direction = next(directions)
                direction = direction if self.found_inf is None else direction * applied
                part.add_(direction, alpha=-group["lr"] * ADAM_SIZE * math.sqrt(max(part.shape)))

    def _nesterov(self, parameter: Tensor, applied: Tensor | float) -> Tensor:
        """Move its momentum on; returns the gradient that looks ahead."""
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["momentum"] = torch.zeros_like(parameter)
        state["step"] += applied
        momentum: Tensor = state["momentum"]
        still(gradient, self.found_inf)
        momentum.lerp_(gradient, (1.0 - MOMENTUM) * applied)
        return gradient.lerp(momentum, MOMENTUM)

    def _orthogonal(self, matrices: Sequence[Tensor]) -> list[Tensor]:
        """All of them orthogonalised, this rank's share here and the others' there."""
        rank, size = self.ranks
        owners = shared_out([matrix.shape for matrix in matrices], size)
        mine = iter(_by_shape([matrix for matrix, owner in zip(matrices, owners, strict=True) if owner == rank], self._dtype))
        if size == 1 or not matrices:
            return list(mine)
        sizes = [
            [matrix.numel() for matrix, owner in zip(matrices, owners, strict=True) if owner == each] for each in range(size)
        ]
        flat = [matrices[0].new_empty(sum(numbers), dtype=self._dtype) for numbers in sizes]
        for place, found in zip(torch.split(flat[rank], sizes[rank]), mine, strict=True):
            place.copy_(found.reshape(-1))
        sent = [distributed.broadcast(part, each, async_op=True) for each, part in enumerate(flat) if part.numel()]
        for work in sent:
            work.wait()
        taken = [iter(torch.split(part, numbers)) for part, numbers in zip(flat, sizes, strict=True)]
        return [next(taken[owner]).view_as(matrix) for matrix, owner in zip(matrices, owners, strict=True)]


def shared_out(shapes: Sequence[Sequence[int]], size: int) -> list[int]:
    """Which rank makes which matrix orthogonal: the most work first, each to the rank that has the least until then."""
    work = [min(shape) ** 2 * max(shape) for shape in shapes]
    loads, owners = [0] * size, [0] * len(shapes)
    for number in sorted(range(len(shapes)), key=lambda number: -work[number]):
        owners[number] = loads.index(min(loads))
        loads[owners[number]] += work[number]
    return owners


def orthogonal(matrices: Tensor) -> Tensor:
    """Newton's and Schulz's iteration: U S Vᵀ to about U Vᵀ. Args: matrices: [n, rows, columns], no more rows than columns."""
    for _ in range(STEPS):
        gram = matrices @ matrices.mT
        matrices = torch.baddbmm(matrices, torch.baddbmm(gram, gram, gram, beta=B, alpha=C), matrices, beta=A)
    return matrices


def _by_shape(matrices: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """All of them orthogonalised, those of one shape at once."""
    lying = [matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT for matrix in matrices]
    found: list[Tensor] = list(lying)
    for shape in dict.fromkeys(matrix.shape for matrix in lying):
        numbers = [number for number, matrix in enumerate(lying) if matrix.shape == shape]
        stack = torch.stack([lying[number] for number in numbers])
        stack /= torch.linalg.vector_norm(stack, dim=(1, 2), keepdim=True).clamp(min=TINY)  # no singular value above 1
        for number, result in zip(numbers, orthogonal(stack.to(dtype)), strict=True):
            found[number] = result
    return [one if one.shape == matrix.shape else one.mT for one, matrix in zip(found, matrices, strict=True)]


OPTIMIZER = OptimizerKind(build=Muon, state=("exp_avg", "exp_avg_sq"), hidden=("momentum",), sees="matrices")
