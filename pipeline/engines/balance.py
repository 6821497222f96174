"""The order of work units in which every worker gets about the same amount of work."""

from __future__ import annotations

from typing import Any

IDLE = ""  # the name of a unit that is nothing to do


def balanced(units: list[tuple[str, Any]], weights: list[float], workers: int) -> list[tuple[str, Any]]:
    """The units in an order that gives each worker equal work.

    Beam's local runner and Flink give element i to worker i modulo their number, whatever it weighs. So the units are shared out first,
    the heaviest first and each to the worker with the least work (Graham's longest processing time rule), and the shorter lists are
    filled up with idle elements. For engines that give a worker its next element when it is ready (one worker here), the heaviest
    simply come first.
    """
    lists: list[list[tuple[str, Any]]] = [[] for _ in range(max(1, min(workers, len(units))))]
    loads = [0.0] * len(lists)
    for number in sorted(range(len(units)), key=lambda n: (-weights[n], n)):
        lightest = loads.index(min(loads))
        lists[lightest].append(units[number])
        loads[lightest] += weights[number]
    longest = max(map(len, lists), default=0)
    return [own[place] if place < len(own) else (IDLE, None) for place in range(longest) for own in lists]
