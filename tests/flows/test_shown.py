"""What is shown is what was shown before: see `shown.py`."""

from __future__ import annotations

import difflib

from tests.flows import shown


def test_everything_is_shown_as_it_was_recorded() -> None:
    """A change on purpose writes it again: `python -m tests.flows.shown`."""
    recorded = shown.FILE.read_text(encoding="utf-8").splitlines()
    changes = list(difflib.unified_diff(recorded, list(shown.lines()), lineterm="", n=0))
    assert not changes, "\n".join(changes[:20])
