"""A run of toy stages in a directory of its own, with no server anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cloze.flows.graph import stages
from cloze.flows.tracking.spool import Spool
from tests.flows import toy_run


@pytest.fixture
def toy_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of a run's config; the table of stages is that of `tests.flows.toy_run`, the runs
    are below `tmp_path`.
    """
    monkeypatch.setattr(stages, "TABLE", toy_run.TABLE)
    monkeypatch.setattr(
        Spool, "start_sender", lambda spool: None
    )  # records stay in the spool, as where MLflow is down
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    toy_run.RAN.clear()
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump({"letters": {"size": 4}, "count": {}}))
    return str(path)
