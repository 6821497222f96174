"""Muon: orthogonalized momentum for the layers' matrices, replicated or sharded over ranks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from cloze.model.train.device_scalars import to_device_async
from cloze.model.train.distributed import assign_owners
from cloze.model.train.optimizers import OptimizerSpec
from cloze.model.train.optimizers.adam import adamw, zero_if_nonfinite
from cloze.model.train.optimizers.flat_shards import (
    FlatShard,
    SharedOptimizer,
    TensorExtent,
    collective_device,
    concatenate,
    squares,
)
from cloze.model.train.precision import DTYPES
from cloze.model.train.spec.train_spec import TrainingHyperparameters

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
        # X becomes a X + (b G + c G²) X with G = X Xᵀ: on each singular value s the polynomial
        # a s + b s³ + c s⁵. G is [rows, rows], the smaller side.
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
    wide = [matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT for matrix in matrices]
    results: list[Tensor] = list(wide)
    for shape in dict.fromkeys(matrix.shape for matrix in wide):
        indices = [index for index, matrix in enumerate(wide) if matrix.shape == shape]
        batch = function(torch.stack([wide[index] for index in indices]))
        for index, result in zip(indices, batch, strict=True):
            results[index] = result
    return [
        result if result.shape == matrix.shape else result.mT
        for result, matrix in zip(results, matrices, strict=True)
    ]


def _norms(sums: Tensor) -> Tensor:
    """Return divisors, float32 [n], from sums of squares, that bound singular values by 1."""
    return sums.sqrt().float().clamp(min=TINY)


def assign_matrices(shapes: Sequence[Sequence[int]], size: int) -> list[int]:
    """Assign each matrix to a rank: the most work first, each to the least loaded rank."""
    # In proportion to the operations of X Xᵀ, and of its product with X.
    work = {number: min(shape) ** 2 * max(shape) for number, shape in enumerate(shapes)}
    owners = assign_owners(work, size)
    return [owners[number] for number in work]


def orthogonalize_replicated(
    matrices: Sequence[Tensor], dtype: torch.dtype, rank: int, ranks: int
) -> list[Tensor]:
    """Orthogonalize replicated matrices: each rank computes its share and broadcasts it.

    All ranks thus have the same bits.
    """
    owners = assign_matrices([matrix.shape for matrix in matrices], ranks)
    owned = [matrix for matrix, owner in zip(matrices, owners, strict=True) if owner == rank]
    results = orthogonal(owned, dtype)
    if ranks == 1 or not matrices:
        return results
    sizes = [
        [matrix.numel() for matrix, owner in zip(matrices, owners, strict=True) if owner == source]
        for source in range(ranks)
    ]
    buffers = [matrices[0].new_empty(sum(lengths), dtype=dtype) for lengths in sizes]
    for target, result in zip(torch.split(buffers[rank], sizes[rank]), results, strict=True):
        target.copy_(result.reshape(-1))
    broadcasts = [
        distributed.broadcast(buffer, source, async_op=True)
        for source, buffer in enumerate(buffers)
        if buffer.numel()
    ]
    for broadcast in broadcasts:
        broadcast.wait()
    pieces = [
        iter(torch.split(buffer, lengths)) for buffer, lengths in zip(buffers, sizes, strict=True)
    ]
    return [
        next(pieces[owner]).view_as(matrix) for matrix, owner in zip(matrices, owners, strict=True)
    ]


class ShardedOrthogonalizer:
    """Orthogonalizes matrices that are sharded over several ranks.

    Each matrix is gathered on one rank, orthogonalized there, and its parts are sent back. A rank
    sends and receives about twice its shard, and stores its share of whole matrices. All ranks must
    create and call it in the same order.

    Args:
        shard: extents of this rank's flat tensor.
        stacked: number of matrices stacked in each parameter.
        dtype: dtype of the iteration and of the communication, at a norm of 1.
    """

    def __init__(self, shard: FlatShard, stacked: int, dtype: torch.dtype) -> None:
        rank, ranks = distributed.get_rank(), distributed.get_world_size()
        shards = [shard] * ranks
        if ranks > 1:
            distributed.all_gather_object(shards, shard)
        self.shapes = [
            (shape[0] // stacked, math.prod(shape[1:]))
            for shape in shard.shapes
            for _ in range(stacked)
        ]
        self._dtype, owners = dtype, assign_matrices(self.shapes, ranks)
        # Sorted by owner: `all_to_all_single` sends each rank one range of values.
        by_rank = [
            sorted(_matrix_extents(rank_shard, stacked), key=lambda extent: owners[extent.number])
            for rank_shard in shards
        ]
        self.extents = by_rank[rank]
        """This rank's extents, sorted by the rank that orthogonalizes their matrix."""
        received = [
            [extent for extent in extents if owners[extent.number] == rank] for extents in by_rank
        ]
        self._received = [extent for extents in received for extent in extents]
        self._owned = [number for number, owner in enumerate(owners) if owner == rank]
        self._send_sizes = [
            sum(extent.length for extent in self.extents if owners[extent.number] == owner)
            for owner in range(ranks)
        ]
        self._receive_sizes = [sum(extent.length for extent in extents) for extents in received]

    def __call__(self, flat: Tensor) -> Iterator[tuple[TensorExtent, Tensor]]:
        """Return this rank's extents with their orthogonalized values.

        Args:
            flat: fp32, with the layout of `shard`.
        """
        device = collective_device()
        pieces = [extent.of(flat).to(device) for extent in self.extents]
        # By the norm of the whole matrix, before the pieces are rounded and sent.
        norms = _norms(self._sums(pieces, device))
        scaled = [
            (piece / norms[extent.number]).to(self._dtype)
            for extent, piece in zip(self.extents, pieces, strict=True)
        ]
        # With an empty tensor: `cat` refuses an empty list, and a rank may hold no extent.
        outgoing = torch.cat([*scaled, norms.new_empty(0, dtype=self._dtype)])
        incoming = self._exchange(outgoing, self._send_sizes, self._receive_sizes)
        matrices = {number: incoming.new_empty(self.shapes[number]) for number in self._owned}
        lengths = [extent.length for extent in self._received]
        for extent, values in zip(self._received, torch.split(incoming, lengths), strict=True):
            end = extent.offset + extent.length
            matrices[extent.number].view(-1)[extent.offset : end] = values
        orthogonalized = dict(
            zip(matrices, _by_shape(list(matrices.values()), newton_schulz), strict=True)
        )
        flattened = {number: matrix.reshape(-1) for number, matrix in orthogonalized.items()}
        pieces = [
            flattened[extent.number].narrow(0, extent.offset, extent.length)
            for extent in self._received
        ]
        outgoing = torch.cat([*pieces, incoming.new_empty(0)])
        returned = self._exchange(outgoing, self._receive_sizes, self._send_sizes).to(flat.device)
        lengths = [extent.length for extent in self.extents]
        return zip(self.extents, torch.split(returned, lengths), strict=True)

    def _sums(self, parts: Sequence[Tensor], device: torch.device) -> Tensor:
        """Return the sums of squares of the whole matrices, float64 [n]."""
        sums = torch.zeros(len(self.shapes), dtype=torch.float64, device=device)
        if parts:
            numbers = [extent.number for extent in self.extents]
            sums.index_add_(0, to_device_async(numbers, torch.int64, device), squares(parts))
        if len(self._send_sizes) > 1:
            distributed.all_reduce(sums)
        return sums

    def _exchange(self, sent: Tensor, send_sizes: list[int], receive_sizes: list[int]) -> Tensor:
        if len(send_sizes) == 1:
            return sent
        received = sent.new_empty(sum(receive_sizes))
        distributed.all_to_all_single(received, sent, receive_sizes, send_sizes)
        return received


def _matrix_extents(shard: FlatShard, stacked: int) -> Iterator[TensorExtent]:
    """Yield the extents per matrix, where each parameter stacks `stacked` matrices."""
    for extent in shard.extents:
        size = math.prod(shard.shapes[extent.number]) // stacked
        position, end = extent.offset, extent.offset + extent.length
        while position < end:
            number, stop = position // size, min(end, (position // size + 1) * size)
            yield TensorExtent(
                number=extent.number * stacked + number,
                offset=position - number * size,
                start=extent.start + position - extent.offset,
                length=stop - position,
            )
            position = stop


MOMENTUM = 0.95
# Root mean square of AdamW's updates (Liu et al., "Muon is Scalable for LLM Training", 2025).
ADAM_SIZE = 0.2


class Muon(SharedOptimizer):
    """Muon (Jordan et al., 2024) for the layers' matrices, AdamW for all other parameters.

    Muon is Nesterov momentum, orthogonalized. Five Newton-Schulz steps run in the precision of the
    forward pass:

        M = .95 M + .05 G
        O = orthogonal(.95 M + .05 G)
        W = W - learning_rate (weight_decay W + .2 sqrt(max(rows, columns)) O)

    State: `momentum` (M) for the layers' matrices, AdamW's for all other parameters.

    Args:
        groups: with `hidden`: number of matrices stacked in each parameter; 0: use AdamW.
    """

    def __init__(
        self, groups: list[dict[str, Any]], hyperparameters: TrainingHyperparameters
    ) -> None:
        super().__init__(groups, {"lr": hyperparameters.learning_rate})
        self._dtype = DTYPES[hyperparameters.precision]
        self._others = adamw(
            [group for group in self.param_groups if not group["hidden"]], hyperparameters
        )
        self._others.state = self.state  # shared state, and the same groups
        self._orthogonalizers: dict[Tensor, ShardedOrthogonalizer] = {}

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
        hidden_groups = [group for group in self.param_groups if group["hidden"]]
        whole = []
        for group in hidden_groups:
            tensors = [parameter for parameter in group["params"] if parameter.grad is not None]
            sharded = [tensor for tensor in tensors if tensor in self.shards]
            whole += [(group, tensor) for tensor in tensors if tensor not in self.shards]
            if sharded:
                self._update_shards(group, sharded, applied)
        self._update(whole, applied)

    def _update(
        self, parameters: list[tuple[dict[str, Any], Tensor]], applied: Tensor | float
    ) -> None:
        """Update whole parameters, those of a group and shape in one operation.

        A step of a small model on a GPU takes as long as the host needs to launch it.
        """
        updates = self._nesterov([parameter for _, parameter in parameters], applied)
        matrices = [
            # A convolution's kernel becomes a matrix [channels, channels · width].
            matrix.flatten(1)
            for (group, _), update in zip(parameters, updates, strict=True)
            # Stacked query, key and value are three matrices, which would disturb each other as
            # one.
            for matrix in update.chunk(group["hidden"])
        ]
        directions = iter(orthogonalize_replicated(matrices, self._dtype, *self.ranks))
        decayed = defaultdict[float, list[Tensor]](list)
        moved = defaultdict[float, tuple[list[Tensor], list[Tensor]]](lambda: ([], []))
        for group, parameter in parameters:
            decayed[group["lr"] * group["weight_decay"]].append(parameter)
            for matrix in parameter.chunk(group["hidden"]):
                direction = next(directions)
                targets, steps = moved[_rate(group, direction.shape)]
                targets.append(matrix)
                steps.append(direction.view_as(matrix))
        for decay, tensors in decayed.items():
            torch._foreach_mul_(tensors, 1.0 - decay * applied)
        for rate, (targets, steps) in moved.items():
            if isinstance(applied, Tensor):
                torch._foreach_mul_(steps, applied)
            torch._foreach_add_(targets, steps, alpha=-rate)

    def _update_shards(
        self, group: dict[str, Any], tensors: list[Tensor], applied: Tensor | float
    ) -> None:
        """Update this rank's extents of a group's matrices."""
        if tensors[0] not in self._orthogonalizers:
            shard = concatenate([(self.shards[tensor], tensor.numel()) for tensor in tensors])
            self._orthogonalizers[tensors[0]] = ShardedOrthogonalizer(
                shard, group["hidden"], self._dtype
            )
        # Made once: the ranks exchange their extents for it, and these never change.
        orthogonalizer = self._orthogonalizers[tensors[0]]
        update = torch.cat([one.flatten() for one in self._nesterov(tensors, applied)])
        for extent, direction in orthogonalizer(update):
            rate = _rate(group, orthogonalizer.shapes[extent.number])
            extent.of(update).copy_(direction).mul_(rate * applied)
        updates = torch.split(update, [tensor.numel() for tensor in tensors])
        # Decay first, then the update: the decay is of the weights before the step.
        torch._foreach_mul_(tensors, 1.0 - group["lr"] * group["weight_decay"] * applied)
        changes = [one.view_as(tensor) for one, tensor in zip(updates, tensors, strict=True)]
        torch._foreach_sub_(tensors, changes)

    def _nesterov(self, parameters: Sequence[Tensor], applied: Tensor | float) -> Sequence[Tensor]:
        """Update the momenta and return the Nesterov gradients."""
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros((), device=parameter.device)
                state["momentum"] = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not gradients:
            return []
        steps, momenta = (
            [self.state[parameter][name] for parameter in parameters]
            for name in ("step", "momentum")
        )
        zero_if_nonfinite(gradients, self.found_inf)
        if isinstance(applied, Tensor):  # a list for each, or torch reads the number on the host
            torch._foreach_add_(steps, [applied] * len(steps))
            torch._foreach_lerp_(momenta, gradients, [(1.0 - MOMENTUM) * applied] * len(steps))
        else:
            torch._foreach_add_(steps, applied)
            torch._foreach_lerp_(momenta, gradients, 1.0 - MOMENTUM)
        # Nesterov: .05 G + .95 M, with the M that has this gradient already.
        return torch._foreach_lerp(gradients, momenta, MOMENTUM)


def _rate(group: dict[str, Any], shape: tuple[int, ...]) -> float:
    # The root mean square of an orthogonal matrix is 1 / sqrt(max(rows, columns)); times this root
    # and .2 an update is as large as AdamW's, so that one learning rate serves both.
    return float(group["lr"]) * ADAM_SIZE * math.sqrt(max(shape))


OPTIMIZER = OptimizerSpec(build=Muon, state=("exp_avg", "exp_avg_sq"), matrix_state=("momentum",))
