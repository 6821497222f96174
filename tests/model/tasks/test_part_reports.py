"""What one of several trainings reports: its name before its metrics, its steps after the others'."""

from __future__ import annotations

from typing import Any

import pytest

from cloze.core.stages.stage import Reporter
from cloze.model.tasks.finetune.run import _Part


class Heard(Reporter):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def progress(self, done: float, total: float | None, unit: str, figures: Any) -> None:
        self.heard.append((done, total, unit, figures))

    def metrics(self, values: Any) -> None:
        self.heard.append(values)

    def shutdown_time(self, seconds: float) -> None:
        self.heard.append(seconds)


@pytest.mark.parametrize(("name", "prefix"), [("", ""), ("from_scratch", "from_scratch_")])
def test_a_part_has_its_name_and_goes_on_after_the_steps_before_it(name: str, prefix: str) -> None:
    heard = Heard()
    part = _Part(heard, name, 10, 30)
    part.progress(2.5, 99, "steps", {"loss": 1.0})
    part.metrics({"step": 2, "time": 5.0, "loss": 1.0, "accuracy": 0.5})
    part.shutdown_time(7.0)
    run = {"run": name} if name else {}
    assert heard.heard == [
        (12.5, 30, "steps", {**run, "loss": 1.0}),
        {"step": 12, "time": 5.0, f"{prefix}loss": 1.0, f"{prefix}accuracy": 0.5},
        7.0,
    ]
