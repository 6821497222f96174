"""How stages are run: values that make no sense are refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.core.config import parse_config
from pipeline.core.descriptions import descriptions
from pipeline.core.errors import UsageError
from pipeline.core.execution import Execution


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workers", 0), ("processes", 0), ("nodes", 0), ("node_rank", -1), ("zero", 4), ("zero", -1), ("micro_batch", 0), ("threads", 0),
        ("device", "tpu"), ("checkpoint_every", 0), ("checkpoint_minutes", 0), ("keep_checkpoints", 0), ("runner", ""),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"run\.{field} \(found {value!r}\)"):
        parse_config(Execution, {field: value}, "run")


def test_a_rank_counts_from_zero() -> None:
    assert parse_config(Execution, {"nodes": 2, "node_rank": 1}, "run").node_rank == 1
    with pytest.raises(UsageError, match=r"node_rank \(2\) must be less than nodes \(2\)"):
        parse_config(Execution, {"nodes": 2, "node_rank": 2}, "run")


def test_a_crash_costs_minutes_by_default() -> None:
    assert (Execution().checkpoint_every, Execution().checkpoint_minutes) == (None, 10.0)


def test_every_field_describes_itself() -> None:
    assert list(descriptions(Execution)) == list(Execution.model_fields)
