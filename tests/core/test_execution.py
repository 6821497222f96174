"""How stages are run: values that make no sense are refused before anything starts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cloze.core.config import Values, parse_config
from cloze.core.errors import UsageError
from cloze.core.options import field_docs
from cloze.core.plugins import Installed, Plugin, Row
from cloze.core.stages import execution
from cloze.core.stages.execution import Execution, Resources
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
    found = list(contracts.values_of(Execution))
    assert found == recorded[: len(found)]
    assert len(found) >= len(Execution.model_fields)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"memory": "24G"}, ("24G", None)),
        ({"memory": " 24GiB"}, ("24G", None)),
        ({"memory": "800MB"}, ("800M", None)),
        ({"time": "90m"}, (None, 90)),
        ({"time": "12h"}, (None, 720)),
        ({"time": "1h30m"}, (None, 90)),
        ({"time": "61s"}, (None, 2)),
        ({"time": "02:00:00"}, (None, 120)),
        ({"time": "1-12:00:01"}, (None, 2161)),
        ({"memory": "24"}, "such as 24G or 800M"),
        ({"memory": "1.5G"}, "such as 24G or 800M"),
        ({"memory": "24g"}, "such as 24G or 800M"),
        ({"time": "12:00"}, "must look like 90m, 12h or 1-12:00:00"),
        ({"time": "0s"}, "must look like 90m, 12h or 1-12:00:00"),
        ({"time": "soon"}, "must look like 90m, 12h or 1-12:00:00"),
        ({"time": 90}, "must look like 90m, 12h or 1-12:00:00"),
        ({"memory": 24}, "such as 24G or 800M"),
        ({"memory": 0}, "such as 24G or 800M"),
        ({"gpus": -1}, "greater than or equal to 0"),
        ({"cpus": 0}, "greater than or equal to 1"),
        ({"gpu": 1}, "did you mean 'gpus'"),
    ],
)
def test_resources_have_units(values: dict[str, Any], expected: Any) -> None:
    if isinstance(expected, str):
        with pytest.raises(UsageError, match=rf"run\.resources\.\w+.*{re.escape(expected)}"):
            parse_config(Execution, {"resources": values}, "run")
        return
    found = parse_config(Execution, {"resources": values}, "run").resources
    assert (found.memory, found.minutes) == expected
    assert Resources.model_validate(found.model_dump()) == found


@pytest.mark.parametrize("name", ["cpus", "remote_python"])
def test_a_setting_has_one_place(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        parse_config(Execution, {name: 3}, "run")


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


def test_a_launcher_of_a_plugin_has_options_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core names no launcher of a lab: its row says what its options are."""
    row = Row("far.launcher:LAUNCHER", help="Setting of a far machine. Repeatable.")
    plain = Row("near.launcher:LAUNCHER")
    plugin = Plugin("far", "Far.", rows={"launchers": {"far": row, "near": plain}})
    here = Installed(plugin, "cloze-far", "1", Path())
    monkeypatch.setattr(execution, "installed", lambda: (here,))
    monkeypatch.setattr(execution, "LAUNCHER_FIELDS", {"ssh_options": "ssh"})

    class Near(Values):
        """Near."""

        nodes: int = 1

    far: Any = execution.with_launchers(Near)
    assert list(far.model_fields) == ["nodes", "far_options"]
    assert (far().far_options, far(far_options=["x=1"]).far_options) == ((), ("x=1",))
    assert field_docs(far)["far_options"] == row.help
    assert far.__doc__ == "Near."
    assert execution.LAUNCHER_FIELDS == {"ssh_options": "ssh", "far_options": "far"}
    run = {"far_options": ["x=1"], "nodes": 2}
    assert execution.without_other_launchers(run, "ssh") == {"nodes": 2}
    assert execution.without_other_launchers(run, "far") == run
