"""A model answers with "no answer" only where its task has questions without one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cloze.core.errors import UsageError
from cloze.labs.serving import predictors as answer
from cloze.model.tasks.predict import FinetunedModel
from cloze.model.tasks.table import load_task


@pytest.mark.parametrize(
    ("task", "options", "threshold"),
    [
        ("squad", {}, None),
        ("squad2", {}, 0.0),
        ("squad2", {"null_threshold": -1.5}, -1.5),
    ],
)
def test_a_threshold_is_that_of_the_task(
    monkeypatch: pytest.MonkeyPatch, task: str, options: dict[str, Any], threshold: float | None
) -> None:
    def init(self: Any, path: str, **placement: Any) -> None:
        self.task = load_task(task, options)

    monkeypatch.setattr(FinetunedModel, "__init__", init)
    made: Any = answer.QuestionAnsweringPipeline("a/path")
    assert made._threshold == threshold


def test_another_task_answers_no_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        FinetunedModel,
        "__init__",
        lambda self, path: setattr(self, "task", SimpleNamespace(name="x")),
    )
    with pytest.raises(
        UsageError,
        match=(
            r"^task x of a/path answers no questions; name a checkpoint of a task such as squad$"
        ),
    ):
        answer.QuestionAnsweringPipeline("a/path")
