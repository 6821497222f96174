"""A task names the stage's further inputs that it reads, and opens them itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cloze.core.errors import UsageError
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.model.tasks.finetune.run import check_inputs
from cloze.model.tasks.finetune.stage import STAGE
from cloze.model.tasks.table import KINDS, kind_inputs, load_task

ALL = {"checkpoint": "c", "corpus": "d", "teacher": "t", "vocab": "v"}


@pytest.mark.parametrize("name", ["sst2", "squad", "conll2003", "package", "swag", "stsb"])
def test_an_input_of_another_kind_is_refused_with_the_kinds_that_read_it(name: str) -> None:
    task = load_task(name)
    check_inputs(task, ALL)
    with pytest.raises(UsageError) as refused:
        check_inputs(task, {**ALL, "vectors": "runs/vectors"})
    assert "runs/vectors" in str(refused.value)
    assert f"is for text-to-text and open-questions tasks, not for {name}; leave it out" in str(
        refused.value
    )


def test_every_input_of_the_stage_is_read_by_all_tasks_or_by_a_kind() -> None:
    assert kind_inputs().keys() == STAGE.inputs.keys() - ALL.keys()
    assert {role for kind in KINDS.values() for role in kind.inputs} == kind_inputs().keys()
    check_inputs(load_task("text-to-text"), {**ALL, "vectors": "there"})


@pytest.mark.parametrize(
    ("name", "positions", "given", "expected"),
    [("sst2", 512, None, 128), ("sst2", 64, None, 64), ("squad", 512, None, 384)]
    + [("sst2", 64, 200, 200), ("text-to-text", 1024, None, 512), ("translation", 96, 7, 7)],
)
def test_without_inputs_a_task_says_how_long_a_sequence_is(
    name: str, positions: int, given: int | None, expected: int
) -> None:
    build = BuildContext(path="", inputs={}, fingerprint="", execution=Execution(device="cpu"))
    start: Any = SimpleNamespace(model=SimpleNamespace(max_position_embeddings=positions))
    pieces: Any = None
    assert load_task(name).open(build, start, pieces, given) == {"max_length": expected}
