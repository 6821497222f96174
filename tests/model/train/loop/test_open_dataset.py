"""What is given in place of a dataset is named."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloze.core.errors import DataError
from cloze.model.train.loop import data
from tests.model.datasets import write_dataset


@pytest.mark.parametrize("stage", ["corpus", "vocab", "pretrain"])
def test_an_artifact_of_another_stage_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    other: Any = SimpleNamespace(stage=stage)
    world: Any = SimpleNamespace(decide_on_rank_zero=lambda work: None)
    monkeypatch.setattr("cloze.core.artifacts.artifact.find_manifest", lambda path: other)
    with pytest.raises(DataError, match=f"is the artifact of a {stage}; name one of dataset"):
        data.open_dataset(write_dataset(tmp_path / "dataset", rows=0), True, world)
