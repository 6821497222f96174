"""What tests of a run's source share; their fixture `package` stands in `conftest.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloze.core.stages.worker import JOB, LOGS, Job
from cloze.flows.run.targets import Target


def another_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")


def training(directory: Path, copy: str) -> Target:
    """A training whose job had this source."""
    job = directory / "toy" / "pretrain-1" / LOGS / JOB
    job.parent.mkdir(parents=True)
    Job(
        stage="toy", reference="r", config={}, path="p", inputs={}, execution={}, fingerprint="f",
        source=copy,
    ).write(str(job))  # fmt: skip
    return Target(text="a training", paths=(str(job.parents[1]),))
