"""How stages are run: values that make no sense are refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from cloze.core.config import parse_config
from cloze.core.errors import UsageError
from cloze.core.options import field_docs
from cloze.core.stages.execution import Execution
from tests import contracts


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


def test_every_option_is_as_recorded() -> None:
    recorded = contracts.recorded("execution")
    assert list(contracts.values_of(Execution)) == recorded[: len(Execution.model_fields)]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"micro_batch": "4"}, ""),
        ({"micro_batch": "auto"}, "valid integer"),
        ({"micro_batch": 1}, ""),
        ({"micro_batch": "-1"}, "greater than or equal to 1"),
        ({"micro_batch": 2.5}, "valid integer"),
        ({"min_processes": 2, "processes": 2}, ""),
        ({"min_processes": 3, "processes": 2}, "min_processes (3) must be at most processes (2)"),
        ({"gpu_ids": ["0", "1"], "processes": 2}, ""),
        (
            {"gpu_ids": ["0", "1"], "processes": 3},
            "gpu_ids (0, 1) are fewer than processes (3); give one per process",
        ),
        ({"min_nodes": 2, "nodes": 2}, ""),
        ({"min_nodes": 3, "nodes": 2}, "min_nodes (3) must be at most nodes (2)"),
        ({"min_nodes": 3, "hostfile": "/etc/hosts"}, ""),
    ],
)
def test_counts_fit_each_other(values: dict[str, Any], message: str) -> None:
    if not message:
        assert parse_config(Execution, values, "run").model_fields_set == set(values)
        return
    with pytest.raises(UsageError) as refused:
        parse_config(Execution, values, "run")
    assert message in str(refused.value)


def test_the_grace_of_a_stage_and_of_its_scheduler() -> None:
    given, usual = Execution(grace_seconds=0.0), Execution()
    assert (given.min_grace_seconds, given.scheduler_grace_seconds) == (0.0, 0.0)
    assert (usual.min_grace_seconds, usual.scheduler_grace_seconds) == (25.0, 180.0)
    assert Execution(micro_batch="16").micro_batch == 16  # type: ignore[arg-type]
