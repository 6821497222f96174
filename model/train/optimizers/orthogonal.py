"""Matrices made orthogonal: those that are whole here, and those whose pieces lie on several ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, distributed

from model.train.arriving import departing
from model.train.optimizers.cuts import Cut, Piece, meeting_device, squares

STEPS = 5
A, B, C = 3.4445, -4.7750, 2.0315  # steepest at 0; five steps bring a singular value to between about .7 and 1.2
TINY = 1e-7


def iterate(matrices: Tensor) -> Tensor:
    """Newton's and Schulz's iteration: U S Vᵀ to about U Vᵀ. Args: matrices: [n, rows, columns], no more rows than columns."""
    for _ in range(STEPS):
        gram = matrices @ matrices.mT
        matrices = torch.baddbmm(matrices, torch.baddbmm(gram, gram, gram, beta=B, alpha=C), matrices, beta=A)
    return matrices


def orthogonal(matrices: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Each matrix orthogonalised in that type, those of one shape at once."""

    def scaled(stack: Tensor) -> Tensor:
        return (stack / _norms(squares(list(stack.flatten(1))))[:, None, None]).to(dtype)

    return _by_shape(matrices, lambda stack: iterate(scaled(stack)))


def _by_shape(matrices: Sequence[Tensor], function: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """What a function of [n, rows, columns], no more rows than columns, makes of the matrices, those of one shape at once."""
    lying = [matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT for matrix in matrices]
    found: list[Tensor] = list(lying)
    for shape in dict.fromkeys(matrix.shape for matrix in lying):
        numbers = [number for number, matrix in enumerate(lying) if matrix.shape == shape]
        for number, result in zip(numbers, function(torch.stack([lying[number] for number in numbers])), strict=True):
            found[number] = result
    return [one if one.shape == matrix.shape else one.mT for one, matrix in zip(found, matrices, strict=True)]


def _norms(sums: Tensor) -> Tensor:
    """What to divide matrices by so that no singular value is above 1, of the sums of their squares: float32 [n]."""
    return sums.sqrt().float().clamp(min=TINY)


def shared_out(shapes: Sequence[Sequence[int]], size: int) -> list[int]:
    """Which rank makes which matrix orthogonal: the most work first, each to the rank that has the least until then."""
    work = [min(shape) ** 2 * max(shape) for shape in shapes]
    loads, owners = [0] * size, [0] * len(shapes)
    for number in sorted(range(len(shapes)), key=lambda number: -work[number]):
        owners[number] = loads.index(min(loads))
        loads[owners[number]] += work[number]
    return owners


def replicated(matrices: Sequence[Tensor], dtype: torch.dtype, rank: int, ranks: int) -> list[Tensor]:
    """Matrices that every rank holds, orthogonalised: each rank its share, which it sends to the others, so all have the same bits."""
    owners = shared_out([matrix.shape for matrix in matrices], ranks)
    mine = iter(orthogonal([matrix for matrix, owner in zip(matrices, owners, strict=True) if owner == rank], dtype))
    if ranks == 1 or not matrices:
        return list(mine)
    sizes = [[matrix.numel() for matrix, owner in zip(matrices, owners, strict=True) if owner == each] for each in range(ranks)]
    flat = [matrices[0].new_empty(sum(numbers), dtype=dtype) for numbers in sizes]
    for place, found in zip(torch.split(flat[rank], sizes[rank]), mine, strict=True):
        place.copy_(found.reshape(-1))
    sent = [distributed.broadcast(part, each, async_op=True) for each, part in enumerate(flat) if part.numel()]
    for work in sent:
        work.wait()
    taken = [iter(torch.split(part, numbers)) for part, numbers in zip(flat, sizes, strict=True)]
    return [next(taken[owner]).view_as(matrix) for matrix, owner in zip(matrices, owners, strict=True)]


class Exchange:
    """Matrices whose pieces lie on several ranks, orthogonalised: each on one rank, to which the others send what they hold of it, and
    which sends back what has become of that. A rank sends and receives about twice what it holds, and has its share of the matrices whole.

    All ranks make theirs at the same time, and call it in the same order.

    Args:
        cut: what is here.
        stacked: of how many matrices, one upon another, each parameter is made up.
        dtype: that matrices are orthogonalised in, and travel in, scaled to a norm of 1.
    """

    def __init__(self, cut: Cut, stacked: int, dtype: torch.dtype) -> None:
        rank, ranks = distributed.get_rank(), distributed.get_world_size()
        cuts = [cut] * ranks
        if ranks > 1:
            distributed.all_gather_object(cuts, cut)
        self.shapes = [(shape[0] // stacked, math.prod(shape[1:])) for shape in cut.shapes for _ in range(stacked)]
        self._dtype, owners = dtype, shared_out(self.shapes, ranks)
        held = [sorted(_runs(each, stacked), key=lambda run: owners[run.number]) for each in cuts]
        self.runs = held[rank]
        """What is here, by whom it is sent to."""
        theirs = [[run for run in runs if owners[run.number] == rank] for runs in held]
        self._theirs = [run for runs in theirs for run in runs]
        self._mine = [number for number, owner in enumerate(owners) if owner == rank]
        self._sends = [sum(run.length for run in self.runs if owners[run.number] == owner) for owner in range(ranks)]
        self._takes = [sum(run.length for run in runs) for runs in theirs]

    def __call__(self, flat: Tensor) -> Iterator[tuple[Piece, Tensor]]:
        """What is here of the orthogonalised matrices, with its place. Args: flat: fp32, laid as the cut says."""
        there = meeting_device()
        parts = [flat.narrow(0, run.start, run.length).to(there) for run in self.runs]
        norms = _norms(self._sums(parts, there))
        scaled = [(part / norms[run.number]).to(self._dtype) for run, part in zip(self.runs, parts, strict=True)]
        taken = self._exchanged(torch.cat([*scaled, norms.new_empty(0, dtype=self._dtype)]), self._sends, self._takes)
        whole = {number: taken.new_empty(self.shapes[number]) for number in self._mine}
        for run, values in zip(self._theirs, torch.split(taken, [run.length for run in self._theirs]), strict=True):
            whole[run.number].view(-1)[run.offset : run.offset + run.length] = values
        made = {
            number: matrix.reshape(-1) for number, matrix in zip(whole, _by_shape(list(whole.values()), iterate), strict=True)
        }
        parts = [made[run.number].narrow(0, run.offset, run.length) for run in self._theirs]
        back = self._exchanged(torch.cat([*parts, taken.new_empty(0)]), self._takes, self._sends).to(flat.device)
        return zip(self.runs, torch.split(back, [run.length for run in self.runs]), strict=True)

    def _sums(self, parts: Sequence[Tensor], there: torch.device) -> Tensor:
        """Of the whole matrices' squares, float64 [n]."""
        sums = torch.zeros(len(self.shapes), dtype=torch.float64, device=there)
        if parts:
            sums.index_add_(0, departing([run.number for run in self.runs], torch.int64, there), squares(parts))
        if len(self._sends) > 1:
            distributed.all_reduce(sums)
        return sums

    def _exchanged(self, sent: Tensor, sends: list[int], takes: list[int]) -> Tensor:
        if len(sends) == 1:
            return sent
        taken = sent.new_empty(sum(takes))
        distributed.all_to_all_single(taken, sent, takes, sends)
        return taken


def _runs(cut: Cut, stacked: int) -> Iterator[Piece]:
    """What is here of each matrix, of which a parameter holds so many."""
    for piece in cut.pieces:
        size = math.prod(cut.shapes[piece.number]) // stacked
        at, end = piece.offset, piece.offset + piece.length
        while at < end:
            number, stop = at // size, min(end, (at // size + 1) * size)
            yield Piece(piece.number * stacked + number, at - number * size, piece.start + at - piece.offset, stop - at)
            at = stop
