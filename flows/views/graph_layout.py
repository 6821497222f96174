"""Where the nodes of a graph lie in its picture: layers from left to right, few crossings, edges as straight as may be.

A node's layer is the length of the longest way to it. An edge over several layers gets a place in each of them, so that it runs
between the boxes and not behind them. Orders are found by barycentres, heights by fitting each layer to its neighbours (least squares
under the order and the gaps, which pooling adjacent violators solves exactly).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

_Size = Callable[[str], float]
SWEEPS = 6
THREAD_PULL = 0.05  # of an edge on its way, beside 1 of an edge to a neighbour: boxes that follow each other stand in a line
IMPLIED_INPUTS = 4  # a node with more inputs than this, such as a report of all, shows only those that no other input implies


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Of each node its layer and its middle's height in pixels, and of each edge the heights at which it crosses the layers between."""

    layers: Mapping[str, int]
    heights: Mapping[str, float]
    ways: Mapping[tuple[str, str], tuple[float, ...]]  # (from, to) -> one height a layer between them
    implied: frozenset[tuple[str, str]]  # edges that a longer way says too
    height: float


def layout(after: Mapping[str, Sequence[str]], *, box: float, gap: float, thread: float) -> Layout:
    """Place the nodes.

    Args:
        after: each node's predecessors, in an order in which a node comes after them; those that do not come before it are left out.
        box: height of a node; `gap` is between two, `thread` is the height that an edge on its way takes.
    """
    parents: dict[str, tuple[str, ...]] = {}
    for name, before in after.items():
        parents[name] = tuple(dict.fromkeys(parent for parent in before if parent in parents))
    parents, implied = _without_noise(parents)
    layers: dict[str, int] = {}
    for name, before in parents.items():
        layers[name] = 1 + max((layers[parent] for parent in before), default=-1)
    rows: list[list[str]] = [[] for _ in range(max(layers.values(), default=-1) + 1)]
    for name, layer in layers.items():
        rows[layer].append(name)
    up: dict[str, list[str]] = {name: [] for name in layers}  # the neighbours in the layer before, threads among them
    ways: dict[tuple[str, str], list[str]] = {}
    for name, before in parents.items():
        for parent in before:
            way, last = [], parent
            for layer in range(layers[parent] + 1, layers[name]):
                passing = f"\0{parent}\0{layer}"  # one thread a source and layer, which all its long edges share
                if passing not in up:
                    up[passing] = [last]
                    rows[layer].append(passing)
                way.append(passing)
                last = passing
            up[name].append(last)
            ways[parent, name] = way
    down: dict[str, list[str]] = {name: [] for name in up}
    for name, above in up.items():
        for parent in above:
            down[parent].append(name)
    heights = _heights(rows, up, down, lambda name: thread if name.startswith("\0") else box, gap)
    top = min((heights[name] for row in rows for name in row), default=0.0) - box / 2
    heights = {name: height - top for name, height in heights.items()}
    return Layout(
        layers=layers,
        heights={name: heights[name] for name in layers},
        ways={edge: tuple(heights[name] for name in way) for edge, way in ways.items()},
        implied=implied,
        height=max(heights.values(), default=0.0) + box / 2,
    )


def _without_noise(
    parents: Mapping[str, tuple[str, ...]],
) -> tuple[dict[str, tuple[str, ...]], frozenset[tuple[str, str]]]:
    """The edges to draw, and those of them that other edges imply."""
    ancestors: dict[str, set[str]] = {}
    implied: set[tuple[str, str]] = set()
    shown: dict[str, tuple[str, ...]] = {}
    for name, before in parents.items():
        through = set().union(*(ancestors[parent] for parent in before))
        ancestors[name] = through | set(before)
        longer = [parent for parent in before if parent in through]
        if len(before) > IMPLIED_INPUTS:
            shown[name] = tuple(parent for parent in before if parent not in through)
        else:
            shown[name] = before
            implied |= {(parent, name) for parent in longer}
    return shown, frozenset(implied)


def _heights(
    rows: list[list[str]], up: Mapping[str, list[str]], down: Mapping[str, list[str]], size: _Size, gap: float
) -> dict[str, float]:
    heights: dict[str, float] = {}
    for row in rows:
        heights |= _stacked(row, size, gap)
    for sweep in range(2 * SWEEPS):
        neighbours = up if sweep % 2 == 0 else down
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = {name: _mean(heights, neighbours[name], heights[name]) for name in row}
            if sweep < SWEEPS:  # the order settles first, then the heights alone
                row.sort(key=lambda name: wanted[name])
            heights |= _fitted(row, wanted, size, gap)
    return heights


def _stacked(row: Sequence[str], size: _Size, gap: float) -> dict[str, float]:
    offsets = _offsets(row, size, gap)
    middle = offsets[-1] / 2 if offsets else 0.0
    return {name: offset - middle for name, offset in zip(row, offsets, strict=True)}


def _offsets(row: Sequence[str], size: _Size, gap: float) -> list[float]:
    """The least distance of each from the first."""
    offsets = [0.0] * len(row)
    for at in range(1, len(row)):
        offsets[at] = offsets[at - 1] + (size(row[at - 1]) + size(row[at])) / 2 + gap
    return offsets


def _fitted(row: Sequence[str], wanted: Mapping[str, float], size: _Size, gap: float) -> dict[str, float]:
    """The heights nearest to the wanted ones that keep the order and the gaps."""
    offsets = _offsets(row, size, gap)
    pools: list[tuple[float, int]] = []  # mean and count of neighbours that touch
    for name, offset in zip(row, offsets, strict=True):
        mean, count = wanted[name] - offset, 1
        while pools and pools[-1][0] > mean:
            other, others = pools.pop()
            mean, count = (mean * count + other * others) / (count + others), count + others
        pools.append((mean, count))
    bases = [mean for mean, count in pools for _ in range(count)]
    return {name: base + offset for name, base, offset in zip(row, bases, offsets, strict=True)}


def _mean(heights: Mapping[str, float], others: Sequence[str], otherwise: float) -> float:
    """The mean height of the neighbours; threads among them pull less."""
    pulls = [THREAD_PULL if other.startswith("\0") else 1.0 for other in others]
    return sum(heights[other] * pull for other, pull in zip(others, pulls, strict=True)) / sum(pulls) if others else otherwise
