"""Numbers, sizes and durations as text for people, and HTML templates."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import jinja2

Number = TypeVar("Number", int, float)

_COUNT = re.compile(r"((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e\d{1,2})?)([kmgb]?)", re.IGNORECASE)
_ONE = re.compile(
    r"(?<![\w.,/-])(1 (?:(?:more|data|training) )?(?:[A-Z]+|[a-z]+?))"
    r"(ies|(?<=ss|sh)es|(?<=[nrt]ch)es|(?<=x)es|(?<=[^s])s)(?![a-z])"
)
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?:in)?)?(?:(\d+(?:\.\d+)?)s)?")


def an(noun: str) -> str:
    """Return the noun with its article: `a corpus`, `an export`."""
    return f"{'an' if noun[:1].lower() in tuple('aeiou') else 'a'} {noun}"


def agree(text: str) -> str:
    """Return the text with singular nouns after a count of 1: `1 documents` -> `1 document`."""
    return _ONE.sub(lambda match: match[1] + ("y" if match[2] == "ies" else ""), text)


# C0, C1, line separators, and what turns the direction of text around; not line break and tab
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return text whose control characters are escapes, so that no name steers a terminal."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def on_one_line(text: str) -> str:
    """Return printable text whose line breaks and tabs are escapes, too, such as a name."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def shortened(name: str, most: int = 40) -> str:
    """Return a name of at most `most` characters: what makes it differ is at either end."""
    return name if len(name) <= most else f"{name[: most // 2]}…{name[1 - most // 2 :]}"


def format_count(value: float) -> str:
    """Format 1234567 as 1.23M."""
    for suffix, unit in zip("ZEPTGMk", (1e21, 1e18, 1e15, 1e12, 1e9, 1e6, 1e3), strict=True):
        if abs(value) >= (0.9995 * unit if unit > 1e3 else 1e4):
            return f"{value / unit:.3g}{suffix}"
    return f"{value:.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:.3g}"


def format_number(value: Any) -> str:
    """Return a float with four digits, anything else as text."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def labelled(name: str, value: Any) -> str:
    """Return a named metric in words and units: `memory_bytes`, 1017073664 -> `memory 1.02 GB`."""
    if name.endswith("_bytes"):
        label = name.removesuffix("_bytes").replace("gpu", "GPU").replace("_", " ")
        return f"{label} {format_bytes(value)}"
    return f"{name.replace('_', ' ')} {format_number(value)}"


def format_metrics(values: Mapping[str, Any]) -> str:
    """Return the numbers among the values: `accuracy 0.912, f1 0.880`."""
    return ", ".join(
        f"{name} {value:.3f}" for name, value in values.items() if isinstance(value, (int, float))
    )


def elapsed(entry: Mapping[str, Any]) -> float:
    """Return the seconds of a run or node so far, or until its end; 0 if the clock was set back."""
    return float(max(0.0, (entry.get("ended") or time.time()) - entry["started"]))


def format_duration(seconds: float) -> str:
    """Format seconds: 0.4 -> 0.4 s, 75 -> 1 min 15 s, 7300 -> 2 h 01 min, 864000 -> 10 days."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 72:
        return f"{hours} h {minutes:02d} min"
    days = hours / 24
    return f"{days:.0f} days" if days < 1000 else f"{days / 365:.0f} years"


def parse_count(text: str) -> int | None:
    """Parse 10M, 2.5M, 800k, 1G, 300e9, 10_000 or 10,000; None for anything else, as 2.5 or 1,2."""
    match = _COUNT.fullmatch(text.strip().replace("_", ""))
    if match is None:
        return None
    factor = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}[match[2].lower()]
    count = Decimal(match[1].replace(",", "")) * factor
    return int(count) if count == int(count) else None


def parse_duration(text: str) -> float | None:
    """Parse 90s, 10m, 1h30m or 1.5h into seconds; None for anything else."""
    match = _DURATION.fullmatch(text.strip().lower().replace(" ", ""))
    if match is None or not any(match.groups()):
        return None
    hours, minutes, seconds = (float(number or 0) for number in match.groups())
    return hours * 3600 + minutes * 60 + seconds


def format_bytes(count: float) -> str:
    """Format bytes: 1500 -> 1.5 kB, 2.4e9 -> 2.4 GB."""
    for limit, suffix in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if float(f"{count:.3g}") >= limit:
            digits = ".3g" if count < 1000 * limit else ".0f"
            return f"{count / limit:{digits}} {suffix}"
    return f"{count:.0f} B"


# Templates of self-contained HTML pages: no script, nothing from the network.


@functools.cache  # compiling a template takes longer than filling it
def templates_in(directory: Path) -> jinja2.Environment:
    """Return the HTML templates of a directory: values are escaped, undefined names are errors.

    `{% include "style.css" %}` is the style that all pages share, `{{ 1 | counted("rows") }}` is
    `1 row`.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([directory, Path(__file__).parent / "templates"]),
        autoescape=True,
        finalize=lambda value: printable(value) if type(value) is str else value,  # not of Markup
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["counted"] = lambda number, nouns: agree(f"{number:,} {nouns}")
    return environment


def most_first(counts: Mapping[str, Number]) -> dict[str, Number]:
    """Return the counts, largest first, then by name."""
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))
