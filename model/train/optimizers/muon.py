"""Muon: orthogonalized momentum for the layers' matrices, replicated or sharded over ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from cloze.model.train.engines.device_scalars import to_device_async
from cloze.model.train.loop.interfaces import TrainingHyperparameters
from cloze.model.train.optimizers import OptimizerSpec
from cloze.model.train.optimizers.adam import adamw, zero_if_nonfinite
from cloze.model.train.optimizers.sharded_parameters import (
    FlatShard,
    ShardExtent,
    collective_device,
    squares,
)
from cloze.model.train.precision import DTYPES

STEPS = 5
# Steepest at 0; five steps bring a singular value to between about 0.7 and 1.2.
A, B, C = (3.4445, -4.7750, 2.0315)
TINY = 1e-7


def newton_schulz(matrices: Tensor) -> Tensor:
    """Run the Newton-Schulz iteration: U S Vᵀ becomes about U Vᵀ.

    Args:
        matrices: [n, rows, columns], rows at most columns.
    """
    for _ in range(STEPS):
        gram = matrices @ matrices.mT
        matrices = torch.baddbmm(
            matrices, torch.baddbmm(gram, gram, gram, beta=B, alpha=C), matrices, beta=A
        )
    return matrices


def orthogonal(matrices: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Orthogonalize each matrix in `dtype`; matrices of one shape are batched."""

    def scaled(stack: Tensor) -> Tensor:
        return (stack / _norms(squares(list(stack.flatten(1))))[:, None, None]).to(dtype)

    return _by_shape(matrices, lambda stack: newton_schulz(scaled(stack)))


def _by_shape(matrices: Sequence[Tensor], function: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Apply a function of [n, rows, columns], rows at most columns, to batches of equal shape."""
    lying = [matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT for matrix in matrices]
    found: list[Tensor] = list(lying)
    for shape in dict.fromkeys(matrix.shape for matrix in lying):
        numbers = [number for number, matrix in enumerate(lying) if matrix.shape == shape]
        for number, result in zip(
            numbers, function(torch.stack([lying[number] for number in numbers])), strict=True
        ):
            found[number] = result
    return [
        one if one.shape == matrix.shape else one.mT
        for one, matrix in zip(found, matrices, strict=True)
    ]


def _norms(sums: Tensor) -> Tensor:
    """Return divisors, float32 [n], from sums of squares, that bound singular values by 1."""
    return sums.sqrt().float().clamp(min=TINY)


def assign_matrices(shapes: Sequence[Sequence[int]], size: int) -> list[int]:
    """Assign each matrix to a rank: the most work first, each to the least loaded rank."""
    work = [min(shape) ** 2 * max(shape) for shape in shapes]
    loads, owners = [0] * size, [0] * len(shapes)
    for number in sorted(range(len(shapes)), key=lambda number: -work[number]):
        owners[number] = loads.index(min(loads))
        loads[owners[number]] += work[number]
    return owners


def orthogonalize_replicated(
    matrices: Sequence[Tensor], dtype: torch.dtype, rank: int, ranks: int
) -> list[Tensor]:
    """Orthogonalize replicated matrices: each rank computes its share and broadcasts it.

    All ranks thus have the same bits.
    """
    owners = assign_matrices([matrix.shape for matrix in matrices], ranks)
    mine = iter(
        orthogonal(
            [matrix for matrix, owner in zip(matrices, owners, strict=True) if owner == rank], dtype
        )
    )
    if ranks == 1 or not matrices:
        return list(mine)
    sizes = [
        [matrix.numel() for matrix, owner in zip(matrices, owners, strict=True) if owner == each]
        for each in range(ranks)
    ]
    flat = [matrices[0].new_empty(sum(numbers), dtype=dtype) for numbers in sizes]
    for place, found in zip(torch.split(flat[rank], sizes[rank]), mine, strict=True):
        place.copy_(found.reshape(-1))
    sent = [
        distributed.broadcast(part, each, async_op=True)
        for each, part in enumerate(flat)
        if part.numel()
    ]
    for work in sent:
        work.wait()
    taken = [iter(torch.split(part, numbers)) for part, numbers in zip(flat, sizes, strict=True)]
    return [
        next(taken[owner]).view_as(matrix) for matrix, owner in zip(matrices, owners, strict=True)
    ]


class ShardedOrthogonalizer:
    """Orthogonalizes matrices that are sharded over several ranks.

    Each matrix is gathered on one rank, orthogonalized there, and its parts are sent back. A rank
    sends and receives about twice its shard, and holds its share of whole matrices. All ranks must
    create and call it in the same order.

    Args:
        cut: extents of this rank's flat tensor.
        stacked: number of matrices stacked in each parameter.
        dtype: dtype of the iteration and of the communication, at a norm of 1.
    """

    def __init__(self, cut: FlatShard, stacked: int, dtype: torch.dtype) -> None:
        rank, ranks = distributed.get_rank(), distributed.get_world_size()
        cuts = [cut] * ranks
        if ranks > 1:
            distributed.all_gather_object(cuts, cut)
        self.shapes = [
            (shape[0] // stacked, math.prod(shape[1:]))
            for shape in cut.shapes
            for _ in range(stacked)
        ]
        self._dtype, owners = dtype, assign_matrices(self.shapes, ranks)
        held = [sorted(_runs(each, stacked), key=lambda run: owners[run.number]) for each in cuts]
        self.runs = held[rank]
        """This rank's extents, sorted by the rank that orthogonalizes their matrix."""
        theirs = [[run for run in runs if owners[run.number] == rank] for runs in held]
        self._theirs = [run for runs in theirs for run in runs]
        self._mine = [number for number, owner in enumerate(owners) if owner == rank]
        self._sends = [
            sum(run.length for run in self.runs if owners[run.number] == owner)
            for owner in range(ranks)
        ]
        self._takes = [sum(run.length for run in runs) for runs in theirs]

    def __call__(self, flat: Tensor) -> Iterator[tuple[ShardExtent, Tensor]]:
        """Return this rank's extents with their orthogonalized values.

        Args:
            flat: fp32, with the layout of `cut`.
        """
        there = collective_device()
        parts = [flat.narrow(0, run.start, run.length).to(there) for run in self.runs]
        norms = _norms(self._sums(parts, there))
        scaled = [
            (part / norms[run.number]).to(self._dtype)
            for run, part in zip(self.runs, parts, strict=True)
        ]
        taken = self._exchanged(
            torch.cat([*scaled, norms.new_empty(0, dtype=self._dtype)]), self._sends, self._takes
        )
        whole = {number: taken.new_empty(self.shapes[number]) for number in self._mine}
        for run, values in zip(
            self._theirs, torch.split(taken, [run.length for run in self._theirs]), strict=True
        ):
            whole[run.number].view(-1)[run.offset : run.offset + run.length] = values
        made = {
            number: matrix.reshape(-1)
            for number, matrix in zip(
                whole, _by_shape(list(whole.values()), newton_schulz), strict=True
            )
        }
        parts = [made[run.number].narrow(0, run.offset, run.length) for run in self._theirs]
        back = self._exchanged(
            torch.cat([*parts, taken.new_empty(0)]), self._takes, self._sends
        ).to(flat.device)
        return zip(self.runs, torch.split(back, [run.length for run in self.runs]), strict=True)

    def _sums(self, parts: Sequence[Tensor], there: torch.device) -> Tensor:
        """Return the sums of squares of the whole matrices, float64 [n]."""
        sums = torch.zeros(len(self.shapes), dtype=torch.float64, device=there)
        if parts:
            sums.index_add_(
                0,
                to_device_async([run.number for run in self.runs], torch.int64, there),
                squares(parts),
            )
        if len(self._sends) > 1:
            distributed.all_reduce(sums)
        return sums

    def _exchanged(self, sent: Tensor, sends: list[int], takes: list[int]) -> Tensor:
        if len(sends) == 1:
            return sent
        taken = sent.new_empty(sum(takes))
        distributed.all_to_all_single(taken, sent, takes, sends)
        return taken


def _runs(cut: FlatShard, stacked: int) -> Iterator[ShardExtent]:
    """Yield the extents per matrix, where each parameter stacks `stacked` matrices."""
    for piece in cut.pieces:
        size = math.prod(cut.shapes[piece.number]) // stacked
        at, end = piece.offset, piece.offset + piece.length
        while at < end:
            number, stop = at // size, min(end, (at // size + 1) * size)
            yield ShardExtent(
                piece.number * stacked + number,
                at - number * size,
                piece.start + at - piece.offset,
                stop - at,
            )
            at = stop


MOMENTUM = 0.95
# Root mean square of AdamW's updates (Liu et al., "Muon is Scalable for LLM Training", 2025).
ADAM_SIZE = 0.2


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al., 2024) for the layers' matrices, AdamW for all other parameters.

    Muon is Nesterov momentum, orthogonalized. Five Newton-Schulz steps run in the precision of the
    forward pass:

        M = .95 M + .05 G
        O = orthogonal(.95 M + .05 G)
        W = W - learning_rate (weight_decay W + .2 sqrt(max(rows, columns)) O)

    State: `momentum` (M) for the layers' matrices, AdamW's for all other parameters.

    Args:
        groups: with `hidden`: number of matrices stacked in each parameter; 0: use AdamW.

    Attributes:
        ranks: this rank, and the number of ranks with the same parameters and gradients.
        cuts: flat tensor -> its extents of a group's matrices; other tensors are whole. With any
            entry, all ranks of the default process group must update the same groups in the same
            order.
        found_inf: see `cloze.model.train.optimizers.OptimizerSpec`.
    """

    found_inf: Tensor | None = None

    def __init__(self, groups: list[dict[str, Any]], recipe: TrainingHyperparameters) -> None:
        super().__init__(groups, {"lr": recipe.learning_rate})
        self._dtype = DTYPES[recipe.precision]
        self._others = adamw([group for group in self.param_groups if not group["hidden"]], recipe)
        self._others.state = self.state  # shared state, and the same groups
        self.ranks = (0, 1)
        self.cuts: dict[Tensor, FlatShard] = {}
        self._exchanges: dict[Tensor, ShardedOrthogonalizer] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update by the gradients, which must be finite unless `found_inf` is set."""
        applied: Tensor | float = 1.0
        if self.found_inf is not None:
            applied = 1.0 - self.found_inf
            self._others.found_inf = self.found_inf  # type: ignore[attr-defined]
        # ZeRO steps one group at a time.
        self._others.param_groups = [group for group in self.param_groups if not group["hidden"]]
        self._others.step()
        hidden = [group for group in self.param_groups if group["hidden"]]
        matrices = [
            (group, one) for group in hidden for one in group["params"] if one.grad is not None
        ]
        self._update([(group, one) for group, one in matrices if one not in self.cuts], applied)
        for group, flat in matrices:
            if flat in self.cuts:
                self._update_pieces(group, flat, applied)

    def _update(
        self, parameters: list[tuple[dict[str, Any], Tensor]], applied: Tensor | float
    ) -> None:
        """Update whole parameters."""
        matrices = [
            part.flatten(1)
            for group, one in parameters
            for part in self._nesterov(one, applied).chunk(group["hidden"])
        ]
        directions = iter(orthogonalize_replicated(matrices, self._dtype, *self.ranks))
        for group, one in parameters:
            one.mul_(1.0 - group["lr"] * group["weight_decay"] * applied)
            for part in one.chunk(group["hidden"]):
                direction = next(directions)
                part.add_(
                    _unless(direction, applied).view_as(part), alpha=-_rate(group, direction.shape)
                )

    def _update_pieces(self, group: dict[str, Any], flat: Tensor, applied: Tensor | float) -> None:
        """Update this rank's extents of a group's matrices."""
        if flat not in self._exchanges:
            self._exchanges[flat] = ShardedOrthogonalizer(
                self.cuts[flat], group["hidden"], self._dtype
            )
        exchange = self._exchanges[flat]
        directions = exchange(self._nesterov(flat, applied))
        flat.mul_(1.0 - group["lr"] * group["weight_decay"] * applied)
        for run, direction in directions:
            here = flat.narrow(0, run.start, run.length)
            here.add_(_unless(direction, applied), alpha=-_rate(group, exchange.shapes[run.number]))

    def _nesterov(self, parameter: Tensor, applied: Tensor | float) -> Tensor:
        """Update the momentum and return the Nesterov gradient."""
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["momentum"] = torch.zeros_like(parameter)
        state["step"] += applied
        momentum: Tensor = state["momentum"]
        zero_if_nonfinite(gradient, self.found_inf)
        momentum.lerp_(gradient, (1.0 - MOMENTUM) * applied)
        return gradient.lerp(momentum, MOMENTUM)


def _unless(direction: Tensor, applied: Tensor | float) -> Tensor:
    """Return the direction, or zero if the step is not applied."""
    return direction * applied if isinstance(applied, Tensor) else direction


def _rate(group: dict[str, Any], shape: tuple[int, ...]) -> float:
    return float(group["lr"]) * ADAM_SIZE * math.sqrt(max(shape))


OPTIMIZER = OptimizerSpec(
    build=Muon, state=("exp_avg", "exp_avg_sq"), matrix_state=("momentum",), scope="matrices"
)
