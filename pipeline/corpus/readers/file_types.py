"""Detection of file types by the first bytes, for readers that would accept anything as text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloze.pipeline.corpus.readers.base import ReadCounters

HEAD_BYTES = 4096
_, *_ROWS = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
# description, source that reads it (empty: none), remedy, pattern of the first bytes
_TYPES = [
    (description, source, remedy, re.compile(pattern.encode(), re.DOTALL))
    for description, source, remedy, pattern in (row.split("\t") for row in _ROWS)
]


def has_expected_type(head: bytes, tally: ReadCounters) -> bool:
    """Return True if the slice's reader may read a file with this head; else record the damage.

    Raises:
        DataError: the file is of another type, and `corpus.on_error` is not `quarantine`.
    """
    kind = tally.slice.kind
    description, source, remedy = _find(head)
    if not description or source == kind:
        return True
    if not remedy:
        remedy = f"name it as source {source}" if source else "take its text out first"
    is_plain = kind in ("text", "books")
    reason, nothing = ("not_text", "no text") if is_plain else (f"not_{kind}", "nothing")
    sentence = f"the file is {description}, {nothing} for source {kind}"
    tally.record_damage(reason, sentence, remedy=remedy)
    return False


def kind_of(head: bytes) -> tuple[str, str]:
    """Return (type, source that reads it) of a file from its first bytes; empty if unknown."""
    return _find(head)[:2]


def _find(head: bytes) -> tuple[str, str, str]:
    for description, source, remedy, pattern in _TYPES:
        if pattern.match(head[:HEAD_BYTES]):
            return description, source, remedy
    return "", "", ""
