"""How stages are run: values that make no sense are refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from cloze.core.config import parse_config
from cloze.core.errors import UsageError
from cloze.core.options import field_docs
from cloze.core.stages.execution import Execution


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workers", 0), ("processes", 0), ("nodes", 0), ("zero", 4), ("zero", -1), ("micro_batch", 0), ("threads", 0),
        ("device", "tpu"), ("checkpoint_every", 0), ("keep_checkpoints", 0), ("runner", ""),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"run\.{field} \(found {value!r}\)"):
        parse_config(Execution, {field: value}, "run")


def test_every_field_describes_itself() -> None:
    assert list(field_docs(Execution)) == list(Execution.model_fields)
