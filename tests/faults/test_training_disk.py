"""A disk that fills up under a training: a sentence, the older checkpoint intact, and the same end once there is room."""

from __future__ import annotations

from pathlib import Path

import pytest

from model import checkpoint
from model.train import sizing
from pipeline.core.errors import ClozeError
from tests.faults.disks import Disk, fill
from tests.model.datasets import write_dataset
from tests.model.train.ranks import config, digests, here

SETTINGS = config(steps=8, evaluate_every=8)
EVERY = {"checkpoint_every": 2, "keep_checkpoints": 2}


def test_a_full_disk_leaves_the_older_checkpoint(small_disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "check_disk", lambda *arguments: 0)  # as if something else filled the disk meanwhile
    dataset = write_dataset(tmp_path / "dataset")
    straight = here(SETTINGS, dataset, tmp_path / "straight", **EVERY)
    size = sum(file.stat().st_size for file in straight.checkpoint.rglob("*") if file.is_file())
    fill(small_disk, int(1.6 * size))
    with pytest.raises(
        ClozeError, match=r"step-00000004 could not be written \(No space left on device\); older ones are intact"
    ):
        here(SETTINGS, dataset, small_disk.path / "run", **EVERY)
    (left,) = (small_disk.path / "run" / "checkpoints").iterdir()
    checkpoint.verify(str(left))
    (small_disk.path / "filler").unlink()
    again = here(SETTINGS, dataset, small_disk.path / "run", **EVERY)
    assert "going on from checkpoints/step-00000002" in again.said("note")
    assert digests(again.checkpoint) == digests(straight.checkpoint)
