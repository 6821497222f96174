"""What the conditions of a TrainJob and its pods say: one that is listed need not have come true."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloze.flows.launch.kubernetes import launcher

STATUSES = ("True", "False", "Unknown")


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the cluster says of the TrainJob, and of its pods."""
    said: dict[str, Any] = {"job": {"spec": {}, "status": {}}, "pods": {"items": []}}

    def kubectl(verb: str, kind: str, *words: str) -> subprocess.CompletedProcess[str]:
        assert verb == "get"
        answer = json.dumps(said["pods" if kind == "pods" else "job"])
        return subprocess.CompletedProcess([], 0, answer, "")

    monkeypatch.setattr(launcher, "_kubectl", kubectl)
    return said


def conditions(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {
        "spec": {},
        "status": {"conditions": [{"type": kind, "status": status} for kind, status in pairs]},
    }


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("kind", ["Complete", "Failed", "Suspended"])
def test_a_train_job_has_ended_once_its_end_is_true(
    kind: str, status: str, answers: dict[str, Any], tmp_path: Path
) -> None:
    """Else a second training would start in the directory of the first."""
    directory = tmp_path / "_logs" / launcher.DIRECTORY
    directory.mkdir(parents=True)
    (directory / "1.json").write_text(json.dumps({"metadata": {"name": "j", "namespace": "n"}}))
    answers["job"] = conditions(("Created", "True"), (kind, status))
    has_ended = status == "True" and kind != "Suspended"
    assert launcher.living(str(tmp_path)) == (None if has_ended else ("j", "n"))


def group() -> Any:
    """A TrainJob of one node, without the cluster that took it."""
    job = launcher._TrainJob.__new__(launcher._TrainJob)
    job.name, job._deleted, job._has_run, job._was_suspended = "j", False, False, False
    job._options, job._launch = SimpleNamespace(namespace="n"), SimpleNamespace(nodes=1)
    job._last_poll, job._pods, job._fault = 0.0, {}, None
    return job


@pytest.mark.parametrize("status", STATUSES)
def test_a_failure_counts_once_it_is_true(status: str, answers: dict[str, Any]) -> None:
    answers["job"] = conditions(("Complete", "False"), ("Failed", status))
    assert bool(group().exited()) == (status == "True")


@pytest.mark.parametrize("status", STATUSES)
def test_a_pod_is_preempted_once_its_disruption_is_true(
    status: str, answers: dict[str, Any]
) -> None:
    pod = conditions(("Ready", "True"), ("DisruptionTarget", status))
    labels = {"batch.kubernetes.io/job-completion-index": "0"}
    answers["pods"] = {"items": [{**pod, "metadata": {"name": "p", "labels": labels}}]}
    assert group().preempted() == (status == "True")
