"""Trainings go as they went before, to the number: see `courses.py`."""

from __future__ import annotations

from tests.model.train import courses


def test_every_course_is_the_recorded_one() -> None:
    """A change on purpose writes them again: `python -m tests.model.train.courses`."""
    recorded = courses.FILE.read_text(encoding="utf-8").splitlines()
    found = list(courses.lines())
    changed = [(old, new) for old, new in zip(recorded, found, strict=False) if old != new]
    assert changed == []
    assert len(found) == len(recorded)
