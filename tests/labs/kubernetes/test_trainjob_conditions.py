"""What the conditions of a TrainJob and its pods say: one that is listed need not have come true."""

from __future__ import annotations

import json
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from cloze.labs.kubernetes import launcher

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
