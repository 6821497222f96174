"""A micro-batch is a number, or what an estimate of the memory says."""

from __future__ import annotations

import pytest

from cloze.core.stages.execution import Execution


@pytest.mark.parametrize("bad", [0, -1, "all", "auto"])
def test_a_micro_batch_is_a_number(bad: object) -> None:
    assert Execution.model_validate({"micro_batch": "8"}).micro_batch == 8
    with pytest.raises(ValueError, match="micro_batch"):
        Execution.model_validate({"micro_batch": bad})
