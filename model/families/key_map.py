"""Names of parameters, ours beside Hugging Face's, as one table that is read both ways."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PLACEHOLDERS = {"{n}": r"(?P<n>\d+)", "{m}": r"(?P<m>\d+)", "{p}": r"(?P<p>weight|bias)"}


def _pattern(template: str) -> re.Pattern[str]:
    expression = re.escape(template)
    for placeholder, group in _PLACEHOLDERS.items():
        expression = expression.replace(re.escape(placeholder), group)
    return re.compile(expression)


class KeyMap:
    """A reversible table of parameter names.

    Args:
        rows: pairs (our name, their name) with the placeholders `{n}` and `{m}`, numbers of layers, and `{p}`, weight or bias; a
            pair has the same placeholders on both sides, so that either name gives the other.
    """

    def __init__(self, rows: Iterable[tuple[str, str]]) -> None:
        self.rows = tuple(rows)
        for ours, theirs in self.rows:
            if any((mark in ours) != (mark in theirs) for mark in _PLACEHOLDERS):
                raise ValueError(f"{ours} and {theirs} have different placeholders")
        self._to_theirs = [(_pattern(ours), theirs) for ours, theirs in self.rows]
        self._to_ours = [(_pattern(theirs), ours) for ours, theirs in self.rows]

    def theirs(self, ours: str) -> str | None:
        """Hugging Face's name of our parameter; None if the table does not have it."""
        return _translate(ours, self._to_theirs)

    def ours(self, theirs: str) -> str | None:
        """Our name of Hugging Face's parameter; None if the table does not have it."""
        return _translate(theirs, self._to_ours)


def _translate(name: str, rows: list[tuple[re.Pattern[str], str]]) -> str | None:
    for pattern, template in rows:
        match = pattern.fullmatch(name)
        if match:
            return template.format(**match.groupdict())
    return None
