"""Commands can be given what they could: see `interface.py`."""

from __future__ import annotations

import difflib

from tests.flows.commands import interface


def test_arguments_and_options_are_those_recorded() -> None:
    """A change on purpose writes it again: `python -m tests.flows.commands.interface`."""
    recorded = interface.FILE.read_text(encoding="utf-8").splitlines()
    changes = list(difflib.unified_diff(recorded, list(interface.lines()), lineterm="", n=0))
    assert not changes, "\n".join(changes[:20])
