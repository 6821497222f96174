"""However launches of one build overlap, one of them writes: starts, lost answers of Slurm, stale
locks, deaths, late awakenings.

The coordinators, the claim, the lock, the fence, the launchers' questions to Slurm, the head of a
batch job and the threads that save are the program's own. Slurm's commands and the training itself
are stand-ins: a rank here is a `CheckpointSaver` with one tensor.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from cloze.core.artifacts import checkpoints, fence, lock
from cloze.core.errors import UsageError
from cloze.flows.launch import protocol
from cloze.flows.launch.slurm import cli as slurm_cli
from cloze.model.train.resume import saving
from tests.faults.launches import HERE, Launches, Unfenced, gated
from tests.model.datasets import write_dataset
from tests.model.train.ranks import config, digests, here


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("local", "srun"):
        monkeypatch.setitem(protocol.LAUNCHERS, name, f"{HERE}:RANKS")
    monkeypatch.setitem(protocol.LAUNCHERS, "slurm", f"{HERE}:SUBMISSION")
    monkeypatch.setattr(lock, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(slurm_cli, "POLL_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(saving, "write_tensors", gated)


# HYPOTHESIS_PROFILE=explore tries more, and shortens what fails; that may take minutes
QUICK = (
    {} if os.environ.get("HYPOTHESIS_PROFILE") else {"max_examples": 20, "phases": [Phase.generate]}
)
FEW = settings(stateful_step_count=25, **QUICK)


def test_one_writer_at_a_time_and_nothing_is_lost(stand_ins: None) -> None:
    run_state_machine_as_test(Launches, settings=FEW)


def test_without_the_fence_the_sequences_find_two_writers(stand_ins: None) -> None:
    """What the test above is worth."""
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Unfenced, settings=FEW)


def test_a_training_that_was_superseded_stops_and_leaves_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on to its next checkpoint at most, and the newer launch continues from the last one
    that counted, bit for bit.
    """
    dataset, run, settings = (
        write_dataset(tmp_path / "dataset"),
        tmp_path / "run",
        config(steps=8, log_every=1),
    )
    how: dict[str, Any] = {"checkpoint_every": 2, "keep_checkpoints": 9}
    straight = here(settings, dataset, tmp_path / "straight", **how)
    older = fence.start_attempt(str(run), fence.start_launch(str(run)))
    monkeypatch.setenv(fence.TOKEN, older.token)
    newer: list[fence.Fence] = []

    def sync(path: str) -> None:
        """Another launch begins once step 4 is saved."""
        if not newer and len(checkpoints.complete_steps(str(run))) == 2:
            newer.append(fence.start_attempt(str(run), fence.start_launch(str(run))))
        before(path)

    before = saving.storage.fsync_tree
    monkeypatch.setattr(saving.storage, "fsync_tree", sync)
    with pytest.raises(
        UsageError,
        match=r"another launch has taken over .*run .*this one stops and leaves its checkpoints",
    ):
        here(settings, dataset, run, **how)
    saved = [
        checkpoints.parse_step(directory) for directory in checkpoints.complete_steps(str(run))
    ]
    assert saved == [2, 4]
    monkeypatch.setenv(fence.TOKEN, newer[0].token)
    again = here(settings, dataset, run, **how)
    assert "resuming from checkpoints/step-00000004" in again.said("note")
    assert digests(again.checkpoint) == digests(straight.checkpoint)
    steps = [line["step"] for line in map(dict, again.metrics)]
    assert steps == list(range(1, 9))


def test_the_token_is_one_short_file_of_one_length(tmp_path: Path) -> None:
    """It is overwritten in place, so that no reader ever sees a part of it."""
    launch = fence.start_launch(str(tmp_path))
    first = fence.read(str(tmp_path))
    for _ in range(11):
        found = fence.start_attempt(str(tmp_path), launch)
    assert len(found.token) == len(first)
    assert fence.read(str(tmp_path)) == found.token
    assert asdict(found) == {"path": str(tmp_path), "token": found.token}
