"""What a run cannot build here is said before anything waits or is made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cloze.core.errors import UsageError
from cloze.flows.run.session import RunParameters, RunSession


@pytest.mark.parametrize(
    ("until", "module", "said"),
    [
        ("pretrain", "torch", r"pretrain needs torch, .*-base\[train\]'"),
        ("report", "torch", r"pretrain needs torch, .*-base\[train\]'"),
        ("vocab", "tokenizers", r"corpus needs tokenizers, .*-base\[data\]'"),
        ("corpus", "apache_beam", r"corpus needs apache_beam, .*-base\[data\]'"),
    ],
)
def test_a_missing_package_is_told_first(
    until: str, module: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOZE_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    session = RunSession(RunParameters.model_validate({"config": "sample", "until": [until]}))
    assert session.steps  # a plan needs none of them
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=said), session:
        pass
    assert not (tmp_path / "runs").exists()
