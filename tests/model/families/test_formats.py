"""Models look outside as they did: see `formats.py`."""

from __future__ import annotations

import difflib

from tests.model.families import formats


def test_presets_names_and_refusals_are_those_recorded() -> None:
    """A change on purpose writes it again: `python -m tests.model.families.formats`."""
    recorded = formats.FILE.read_text(encoding="utf-8").splitlines()
    changes = list(difflib.unified_diff(recorded, list(formats.lines()), lineterm="", n=0))
    assert not changes, "\n".join(changes[:20])
