"""Which rank writes what of a checkpoint, where several hold the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor

from model.data.sampler import share
from model.tensors import Slice


def owners(sizes: Mapping[str, int], ranks: int) -> dict[str, int]:
    """A rank for each tensor: the largest first, each to the one that has least until then."""
    loads, found = [0] * ranks, {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        found[name] = loads.index(min(loads))
        loads[found[name]] += sizes[name]
    return found


def slices(tensors: Iterable[tuple[str, Tensor]], rank: int, ranks: int) -> Iterator[Slice]:
    """This rank's of `ranks` equal parts of all the numbers, the tensors laid one behind the other."""
    there = list(tensors)
    start, stop = share(0, sum(tensor.numel() for _, tensor in there), rank, ranks)
    at = 0
    for name, tensor in there:
        begin, end = max(start - at, 0), min(stop - at, tensor.numel())
        if begin < end:
            yield Slice(name, tuple(tensor.shape), begin, tensor.detach().flatten()[begin:end])
        at += tensor.numel()
