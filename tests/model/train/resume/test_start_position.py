"""Where a phase begins in its data: after what was read of the same data, wherever that was."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cloze.model.train.resume.continuation import start_position
from cloze.model.train.spec.interfaces import StartPosition

COUNTS = {"step": 9, "updates": 8, "tokens": 700, "skipped": 1}


def trunk(data: str, samples: int, places: dict[str, int], before: dict[str, int]) -> Any:
    """A checkpoint of a phase that read `data`, after phases that read what `before` says."""
    progress = SimpleNamespace(samples=samples, places=places, **COUNTS)
    run = SimpleNamespace(data=data, start_position=StartPosition(places=before))
    return SimpleNamespace(progress=progress, run=run)


@pytest.mark.parametrize(
    ("data", "before", "places", "sample", "after"),
    [
        ("a", {}, {}, 90, {}),  # the same data goes on
        ("a", {"b": 5}, {}, 90, {"b": 5}),
        ("b", {}, {}, 0, {"a": 90}),  # other data begins, and the first one's place is kept
        ("b", {"b": 5, "c": 7}, {}, 5, {"a": 90, "b": 5, "c": 7}),  # and goes on where it was
        ("b", {"a": 5}, {}, 0, {"a": 90}),
        ("b", {}, {"x": 30, "y": 60}, 0, {"x": 30, "y": 60}),  # of a mixture each dataset's
        ("y", {"x": 1, "z": 2}, {"x": 30, "y": 60}, 60, {"x": 30, "y": 60, "z": 2}),
    ],
)
def test_each_dataset_goes_on_where_it_was_left(
    data: str, before: dict[str, int], places: dict[str, int], sample: int, after: dict[str, int]
) -> None:
    found = start_position(trunk("a", 90, places, before), data)
    assert found == StartPosition(sample=sample, places=after, **COUNTS)
