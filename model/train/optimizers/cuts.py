"""Where the numbers of parameters are that ZeRO has cut: stages 1 and 2 flatten a group's and cut them at any place, 3 cuts each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, distributed

AT_ONCE = 1024  # squares that are added up in fp32: over the 23 million of a word table, a CPU's norm is off by .1 to .7 %


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of the numbers of a parameter, or of a matrix that a parameter is made up of, in a rank's flat tensor.

    Attributes:
        number: which of the group's, from 0.
        offset: where it begins in the flattened parameter or matrix.
        start: where it begins in the flat tensor.
        length: how many numbers.
    """

    number: int
    offset: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Cut:
    """What a flat tensor that an optimizer is given holds of its group's parameters, which are the same ones on every rank.

    Attributes:
        shapes: of the whole parameters.
        pieces: what is here. Numbers of no piece are padding, and stay as they are.
    """

    shapes: tuple[tuple[int, ...], ...]
    pieces: tuple[Piece, ...]

    @property
    def sizes(self) -> list[int]:
        """How many numbers each parameter has, on all ranks together."""
        return [math.prod(shape) for shape in self.shapes]


def meeting_device() -> torch.device:
    """Where tensors lie that the ranks exchange: NCCL knows the GPU's alone, and an offloaded optimizer's lie elsewhere."""
    return torch.device("cuda", torch.cuda.current_device()) if distributed.get_backend() == "nccl" else torch.device("cpu")


def squares(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of each tensor's squares, float64 [n]. Args: tensors: flat."""
    if tensors[0].is_cuda:  # which adds up as a tree
        return torch.stack(torch._foreach_norm(tensors)).double().square()  # type: ignore[arg-type]
    return torch.stack([_square(tensor) for tensor in tensors])


def _square(tensor: Tensor) -> Tensor:
    """The sum of its squares, a float64 scalar, added up in rows."""
    rows = tensor.numel() // AT_ONCE
    first: Tensor = torch.linalg.vector_norm(tensor[: rows * AT_ONCE].view(rows, AT_ONCE), dim=1)
    last: Tensor = torch.linalg.vector_norm(tensor[rows * AT_ONCE :])
    return first.double().square().sum() + last.double().square()
