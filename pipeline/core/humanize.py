"""Numbers and durations as a person reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGbB]?)")
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?:in)?)?(?:(\d+(?:\.\d+)?)s)?")


def si(value: float) -> str:
    """1234567 -> 1.23M."""
    for limit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scaled = value / (1e3 if suffix == "k" else limit)
            return f"{scaled:.3g}{suffix}"
    return f"{value:.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:.3g}"


def short(value: Any) -> str:
    """A number with four digits, anything else as it is."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def figures(values: Mapping[str, Any]) -> str:
    """The numbers among the values: `accuracy 0.912, f1 0.880`."""
    return ", ".join(f"{name} {value:.3f}" for name, value in values.items() if isinstance(value, (int, float)))


def duration(seconds: float) -> str:
    """0.4 -> 0.4 s, 75 -> 1 min 15 s, 7300 -> 2 h 01 min, 864000 -> 10 days."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 72:
        return f"{hours} h {minutes:02d} min"
    days = hours / 24
    return f"{days:.0f} days" if days < 1000 else f"{days / 365:.0f} years"


def count_of(text: str) -> int | None:
    """10M, 2.5M, 800k, 1G, 10_000 -> a number; None for anything else."""
    found = _COUNT.fullmatch(text.strip().replace("_", "").replace(",", ""))
    if found is None:
        return None
    return round(float(found[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}[found[2].lower()])


def seconds_of(text: str) -> float | None:
    """90s, 10m, 1h30m, 1.5h -> seconds; None for anything else."""
    found = _DURATION.fullmatch(text.strip().lower().replace(" ", ""))
    if found is None or not any(found.groups()):
        return None
    return sum(float(number or 0) * unit for number, unit in zip(found.groups(), (3600, 60, 1), strict=True))


def size(count: float) -> str:
    """Bytes: 1500 -> 1.5 kB, 2.4e9 -> 2.4 GB."""
    for limit, suffix in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= limit:
            return f"{count / limit:.3g} {suffix}" if count < 1000 * limit else f"{count / limit:.0f} {suffix}"
    return f"{count:.0f} B"
