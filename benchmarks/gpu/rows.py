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
    """Of each case all ways, then the compiled ones of cases without long rows."""
    from benchmarks.gpu.speed import WAYS, cases

    found = [f"{case.name}: {way}" for case in cases(tiny) for way in WAYS]
    return (
        found
        if tiny
        else [*found, *(f"{case.name}: compiled" for case in cases(tiny) if case.length == 128)]
    )


def row_named(name: str) -> Callable[[Any], Mapping[str, Any]]:
    """What runs the row in its place."""
    from benchmarks.gpu.checks import CHECKS
    from benchmarks.gpu.speed import cases, measure

    of, _, what = name.partition(": ")
    if of == "check":
        return CHECKS[what]
    case = next(case for tiny in (False, True) for case in cases(tiny) if case.name == of)
    return lambda place: measure(case, what, place)
