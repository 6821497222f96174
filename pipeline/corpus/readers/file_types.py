"""Detection of file types by the first bytes, for readers that would accept anything as text."""

from __future__ import annotations

import re
from pathlib import Path

HEAD_BYTES = 4096
_, *_ROWS = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
# description, source that reads it (empty: none), remedy, pattern of the first bytes
_TYPES = [
    (description, source, remedy, re.compile(pattern.encode(), re.DOTALL))
    for description, source, remedy, pattern in (row.split("\t") for row in _ROWS)
]


def find_type(head: bytes) -> tuple[str, str, str]:
    """Return (type, source that reads it, remedy) of a file from its first bytes; empty: unknown.

    The remedy says what a source that does not read the type advises.
    """
    for description, source, remedy, pattern in _TYPES:
        if pattern.match(head[:HEAD_BYTES]):
            advice = f"name it as source {source}" if source else "take its text out first"
            return description, source, remedy or advice
    return "", "", ""
