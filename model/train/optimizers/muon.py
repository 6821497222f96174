"""Muon: the momentum of a matrix, made orthogonal (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024).

It updates the matrices of the layers, each by itself: those that are stored as one (query, key and value; both halves of a gated
block) are taken apart, those that ZeRO has cut are put together, and a convolution's kernel is [channels, channels * width].
Embeddings, whatever stands on the encoder, biases and norms are AdamW's. The update is scaled to the size of AdamW's, so that one
learning rate and one weight decay suit both (Liu et al., "Muon is Scalable for LLM Training", 2025, section 2.2).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from model.train.interfaces import Recipe
from model.train.optimizers import OptimizerKind
from model.train.optimizers.adamw import adamw
from model.train.optimizers.cuts import Cut
from model.train.optimizers.orthogonal import Exchange, replicated
from model.train.optimizers.tensorwise import still
from model.train.precision import DTYPES

MOMENTUM = 0.95
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
        ranks: this rank, and how many hold the same parameters and gradients.
        cuts: by flat tensor, what it holds of a group's matrices; tensors that are not in it are whole. All ranks of the default process
            group then update the same groups in the same order.
        found_inf: see `model.train.optimizers.OptimizerKind`.
    """

    found_inf: Tensor | None = None

    def __init__(self, groups: list[dict[str, Any]], recipe: Recipe) -> None:
        super().__init__(groups, {"lr": recipe.learning_rate})
        self._dtype = DTYPES[recipe.precision]
        self._others = adamw([group for group in self.param_groups if not group["hidden"]], recipe)
        self._others.state = self.state  # one state, and the very same groups
        self.ranks = (0, 1)
        self.cuts: dict[Tensor, Cut] = {}
        self._exchanges: dict[Tensor, Exchange] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update by the gradients, which must be finite where `found_inf` does not say otherwise."""
        applied: Tensor | float = 1.0
        if self.found_inf is not None:
            applied = 1.0 - self.found_inf
            self._others.found_inf = self.found_inf  # type: ignore[attr-defined]
        self._others.param_groups = [group for group in self.param_groups if not group["hidden"]]  # ZeRO steps group by group
        self._others.step()
        hidden = [group for group in self.param_groups if group["hidden"]]
        matrices = [(group, one) for group in hidden for one in group["params"] if one.grad is not None]
        self._update([(group, one) for group, one in matrices if one not in self.cuts], applied)
        for group, flat in matrices:
            if flat in self.cuts:
                self._update_pieces(group, flat, applied)

    def _update(self, parameters: list[tuple[dict[str, Any], Tensor]], applied: Tensor | float) -> None:
        """Of whole parameters."""
        matrices = [
            part.flatten(1) for group, one in parameters for part in self._nesterov(one, applied).chunk(group["hidden"])
        ]
        directions = iter(replicated(matrices, self._dtype, *self.ranks))
        for group, one in parameters:
            one.mul_(1.0 - group["lr"] * group["weight_decay"] * applied)
            for part in one.chunk(group["hidden"]):
                direction = next(directions)
                part.add_(_unless(direction, applied).view_as(part), alpha=-_rate(group, direction.shape))

    def _update_pieces(self, group: dict[str, Any], flat: Tensor, applied: Tensor | float) -> None:
        """Of what is here of a group's."""
        if flat not in self._exchanges:
            self._exchanges[flat] = Exchange(self.cuts[flat], group["hidden"], self._dtype)
        exchange = self._exchanges[flat]
        directions = exchange(self._nesterov(flat, applied))
        flat.mul_(1.0 - group["lr"] * group["weight_decay"] * applied)
        for run, direction in directions:
            here = flat.narrow(0, run.start, run.length)
            here.add_(_unless(direction, applied), alpha=-_rate(group, exchange.shapes[run.number]))

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


def _unless(direction: Tensor, applied: Tensor | float) -> Tensor:
    """It, or nothing where the step is left out."""
    return direction * applied if isinstance(applied, Tensor) else direction


def _rate(group: dict[str, Any], shape: tuple[int, ...]) -> float:
    return float(group["lr"]) * ADAM_SIZE * math.sqrt(max(shape))


OPTIMIZER = OptimizerKind(build=Muon, state=("exp_avg", "exp_avg_sq"), hidden=("momentum",), sees="matrices")
