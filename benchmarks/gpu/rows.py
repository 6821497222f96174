"""All rows by name, in the order in which they run. Their code is imported by those
that run them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def check_names() -> list[str]:
    from benchmarks.gpu.checks import CHECKS

    return [f"check: {name}" for name in CHECKS]


def speed_names(tiny: bool) -> list[str]:
    """Of each case all its ways."""
    from benchmarks.gpu.speed import cases

    return [f"{case.name}: {way}" for case in cases(tiny) for way in case.ways]


def row_named(name: str) -> Callable[[Any], Mapping[str, Any]]:
    """What runs the row in its place."""
    from benchmarks.gpu.checks import CHECKS
    from benchmarks.gpu.speed import cases, measure

    of, _, what = name.partition(": ")
    if of == "check":
        return CHECKS[what]
    if of == "levers":
        from benchmarks.gpu.lever_rows import compare

        return lambda place: compare(what, place)
    case = next(case for tiny in (False, True) for case in cases(tiny) if case.name == of)
    return lambda place: measure(case, what, place)
