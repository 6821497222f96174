"""Parameters that an engine has flattened and cut: their extents, and sums over whole ones.

ZeRO 1 and 2 shard a flattened group at any place, ZeRO 3 and fsdp shard each parameter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, distributed

from cloze.model.tensors import LazyTensors

# Values summed in fp32 at once: over the 23 million of a word table, a CPU's norm is off by 0.1 to
# 0.7 %.
AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class TensorExtent:
    """Consecutive values of a parameter, or of a matrix stacked in it, in a flattened tensor.

    Attributes:
        number: index of the parameter or matrix in the group, from 0.
        offset: index of the first value in the flattened parameter or matrix.
        start: index of the first value in the flattened tensor.
        length: number of values.
    """

    number: int
    offset: int
    start: int
    length: int

    def of(self, tensor: Tensor) -> Tensor:
        """Return these values of a tensor, [length]; a view if the tensor is contiguous."""
        return tensor.reshape(-1)[self.start : self.start + self.length]

    def read(self, tensors: LazyTensors, name: str) -> Tensor:
        """Read these values, [length], of the whole tensor `name`."""
        return tensors.slice(name, self.offset, self.offset + self.length)


@dataclass(frozen=True, slots=True)
class FlatShard:
    """The extents of a group's parameters in an optimizer's flat tensor.

    Attributes:
        shapes: shapes of the group's whole parameters, the same on every rank.
        extents: this rank's extents. Values outside of them are padding and stay unchanged.
    """

    shapes: tuple[tuple[int, ...], ...]
    extents: tuple[TensorExtent, ...]

    @property
    def sizes(self) -> list[int]:
        """Number of values of each whole parameter."""
        return [math.prod(shape) for shape in self.shapes]


class SharedOptimizer(torch.optim.Optimizer):
    """An optimizer whose update of one value depends on others, which ranks may have.

    Such sums over a parameter, or its whole matrix, are right only if it knows what an engine did
    to the parameters. So the engine tells it, after it has cut or copied them.

    Attributes:
        found_inf: see `cloze.model.train.optimizers.OptimizerSpec`.
        ranks: this rank, and the number of ranks with the same parameters and gradients.
        shards: flat tensor -> its extents of a group's parameters; other tensors are whole
            parameters. With any entry, all ranks of the default process group must update the same
            groups in the same order.
    """

    found_inf: Tensor | None = None

    def __init__(self, groups: list[dict[str, Any]], defaults: dict[str, Any]) -> None:
        super().__init__(groups, defaults)
        self.ranks = (0, 1)
        self.shards: dict[Tensor, FlatShard] = {}


def concatenate(shards: Iterable[tuple[FlatShard, int]]) -> FlatShard:
    """Return the shard of several flat tensors in a row, given with their lengths."""
    shapes: list[tuple[int, ...]] = []
    extents, start = [], 0
    for shard, length in shards:
        extents += [
            replace(extent, number=extent.number + len(shapes), start=extent.start + start)
            for extent in shard.extents
        ]
        shapes += shard.shapes
        start += length
    return FlatShard(tuple(shapes), tuple(extents))


def collective_device() -> torch.device:
    """Return the device for collectives: NCCL needs the GPU even for offloaded tensors."""
    return (
        torch.device("cuda", torch.cuda.current_device())
        if distributed.get_backend() == "nccl"
        else torch.device("cpu")
    )


def squares(tensors: Sequence[Tensor]) -> Tensor:
    """Return the sum of squares of each flat tensor, float64 [n]."""
    if tensors[0].device.type != "cpu":  # a GPU sums as a tree
        return torch.stack(torch._foreach_norm(tensors)).double().square()  # type: ignore[arg-type]
    return torch.stack([_square(tensor) for tensor in tensors])


def _square(tensor: Tensor) -> Tensor:
    """Return the sum of squares as a float64 scalar, summed by rows."""
    rows = tensor.numel() // AT_ONCE
    row_norms: Tensor = torch.linalg.vector_norm(
        tensor[: rows * AT_ONCE].view(rows, AT_ONCE), dim=1
    )
    remainder_norm: Tensor = torch.linalg.vector_norm(tensor[rows * AT_ONCE :])
    return row_norms.double().square().sum() + remainder_norm.double().square()
