"""Which sections of a page are read: those under a heading that articles append to their text are not."""

from __future__ import annotations

from collections.abc import Iterable

_NONE = 7  # below all levels of headings


class Sections:
    """Where in its sections a page is, given its headings in order.

    Args:
        dropped: headings in lower case whose sections, with all below them, are no text.
        kept: headings in lower case; where any are given, only their sections are text. "" is the text before the first.
    """

    def __init__(self, dropped: frozenset[str], kept: frozenset[str]) -> None:
        self._dropped, self._kept = dropped, kept
        self._skipped = _NONE  # level of the heading whose section is being dropped
        self._open = 0 if not kept or "" in kept else _NONE  # level of the heading whose section is kept

    @property
    def is_read(self) -> bool:
        """Whether what stands here is text."""
        return self._skipped == _NONE and self._open != _NONE

    def heading(self, level: int, name: str) -> None:
        """A heading of this level (1 to 6)."""
        name = name.strip(" :").lower()
        if level <= self._skipped:
            self._skipped = level if name in self._dropped else _NONE
        if self._kept and (level <= self._open or self._open in (0, _NONE)):
            self._open = level if name in self._kept else _NONE


def lowered(names: Iterable[str]) -> frozenset[str]:
    """Headings as they are compared."""
    return frozenset(name.strip().lower() for name in names)
