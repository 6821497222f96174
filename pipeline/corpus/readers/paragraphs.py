"""Text without markup to paragraphs, for every source that brings a string: jsonl, parquet, arrow, text, WARC conversions.

A line is a paragraph, as in C4, Dolma and the output of most extractors, unless lines are wrapped at a fixed width; then those between
blank lines are joined. Wrapped is a text whose lines end where the next word would no longer have fitted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_BREAK = re.compile(r"<br */>|<br>(?: *<br>)+", re.IGNORECASE)  # one alone may be what a text speaks of

_NARROWEST, _WIDEST = 40, 110  # characters that anybody wraps lines at
_FEWEST = 3  # lines by which wrapping can be told


def paragraphs(text: str) -> tuple[str, ...]:
    """The paragraphs of `text`, each on one line and none of them blank; `<br />` ends a line, too."""
    lines = (_BREAK.sub("\n", text) if "<b" in text or "<B" in text else text).splitlines()
    wrapped = _joins(lines)
    if wrapped is None:
        return tuple(line.strip() for line in lines if line.strip())
    found: list[str] = []
    open_lines: list[str] = []
    for line in [*lines, ""]:
        bare = line.strip()
        if open_lines and (not bare or not wrapped(open_lines[-1], bare)):
            found.append(" ".join(piece.strip() for piece in open_lines))
            open_lines = []
        if bare:
            open_lines.append(line.rstrip())
    return tuple(found)


def _joins(lines: list[str]) -> Callable[[str, str], bool] | None:
    """Whether a line goes on in the next one; None if lines are paragraphs."""
    lengths = sorted(len(line.rstrip()) for line in lines if line.strip())
    if len(lengths) < _FEWEST or not _NARROWEST <= lengths[-1] <= _WIDEST:
        return None
    width = lengths[-1]

    def full(line: str, following: str) -> bool:
        return len(line) + 1 + len(following.split(maxsplit=1)[0]) > width

    pairs = [
        full(line.rstrip(), after.strip())
        for line, after in zip(lines[:-1], lines[1:], strict=True)
        if line.strip() and after.strip()
    ]
    # In wrapped text all but the last lines of paragraphs are full; in a list of short lines hardly any is.
    if len(pairs) < _FEWEST - 1 or sum(pairs) * 2 < len(pairs):
        return None
    return lambda line, following: len(line) > width // 2


def at(record: Any, name: str) -> Any:
    """The value of a field, which may be nested: `title`, `meta.title`; None where it is missing."""
    if not isinstance(record, dict):
        return None
    if name in record:
        return record[name]
    value: Any = record
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return value
