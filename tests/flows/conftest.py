"""A run of toy stages in a directory of its own, with no server anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cloze.core import identity
from cloze.flows.graph import stages
from cloze.flows.run import source
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


FIX = source.fix  # at import; `tests/conftest.py` replaces it in other tests


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small checkout, as if this process had been started from it."""
    folder = tmp_path / "checkout" / "src" / "cloze"
    for name, content in {"__init__.py": "", "core/words.txt": "one", "core/a.py": "A = 1"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    data = tmp_path / "checkout"
    (data / "samples").mkdir()
    for name in ("prefect.yaml", "constraints.txt", "samples/a.txt"):
        (data / name).write_text(name)
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setattr(source, "DATA", data)
    monkeypatch.setattr(source, "fix", FIX)
    monkeypatch.setattr(identity, "__file__", str(folder / "core" / "identity.py"))
    monkeypatch.setattr(source, "__file__", str(folder / "flows" / "run" / "source.py"))
    monkeypatch.setattr(source, "_import_later", lambda _: None)
    return folder
