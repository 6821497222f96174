"""A training whose artifact lies in an object store: saved, stopped, resumed, pruned and read there
as on a disk.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cloze.core import storage
from cloze.core.artifacts import checkpoint_files, checkpoints
from cloze.core.errors import DataError, StoppedError
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext, Reporter
from cloze.model import checkpoint
from cloze.model.train.evaluate import heldout
from cloze.model.train.evaluate.heldout import evaluate
from cloze.model.train.pretraining import run
from cloze.model.train.spec.interfaces import EvaluationInterrupted
from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import config, digests, here
from tests.object_store import Store

SETTINGS = config(steps=6, log_every=1, evaluate_every=3)


class Listener(Reporter):
    """Asks the training to stop after a step, and keeps what it says."""

    def __init__(self, stop_at: int | None) -> None:
        self.stop_at, self.notes = stop_at, list[str]()

    def progress(
        self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]
    ) -> None:
        self.notes += [str(figures["note"])] if "note" in figures else []
        if done == self.stop_at and "learning_rate" in figures:
            os.kill(os.getpid(), signal.SIGTERM)


def train(dataset: str, path: str, stop_at: int | None = None, **more: Any) -> list[str]:
    options = Execution(threads=1, device="cpu", checkpoint_every=1, keep_checkpoints=2, **more)
    build = BuildContext(
        path=path,
        inputs={"dataset": dataset},
        execution=options,
        fingerprint="f" * 64,
        report=Listener(stop_at),
    )
    try:
        run(SETTINGS, build)
    except StoppedError:
        assert stop_at is not None
    assert isinstance(build.report, Listener)
    return build.report.notes


def kept(path: str) -> list[int]:
    return [checkpoints.parse_step(directory) for directory in checkpoints.complete_steps(path)]


def test_a_training_in_a_store_is_stopped_resumed_and_read(store: Store, tmp_path: Path) -> None:
    dataset, path = write_dataset(tmp_path / "dataset"), store.path("run")
    straight = here(SETTINGS, dataset, tmp_path / "straight")
    train(dataset, path, stop_at=3)
    assert kept(path) == [2, 3]
    part = storage.join(path, "checkpoints", "step-00000004", "model.safetensors")
    storage.write_bytes(part, b"what a kill has left")
    with checkpoints.pinned(storage.join(path, "checkpoints", "step-00000002")):
        assert any(
            "resuming from checkpoints/step-00000003" in note
            for note in train(dataset, path, stop_at=5)
        )
        assert kept(path) == [2, 4, 5]
    assert checkpoint.load(path).step == 5
    train(dataset, path)
    assert kept(path) == [6]
    found = [
        name
        for name in storage.list_files(path)
        if "/" not in name or name.startswith("checkpoints/_")
    ]
    assert found == ["cost.jsonl", "metrics.jsonl"]
    loaded = checkpoint.load(path)
    checkpoint_files.verify(loaded.path)
    expected = digests(straight.checkpoint)
    assert (
        storage.sha256(storage.join(loaded.path, "model.safetensors"))[0]
        == expected["model.safetensors"]
    )
    optimizer = storage.join(loaded.path, "training", "optimizer.safetensors")
    assert storage.sha256(optimizer)[0] == expected["training/optimizer.safetensors"]
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(storage.read_text(storage.join(path, "metrics.jsonl")))
    assert [(line["step"], line["loss"]) for line in lines(metrics)] == [
        (line["step"], line["loss"]) for line in lines(tmp_path / "straight" / "metrics.jsonl")
    ]


def test_the_line_of_an_interrupted_last_evaluation_is_written(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the resume no checkpoint follows that would write it."""
    dataset, path, calls = write_dataset(tmp_path / "dataset"), store.path("run"), list[int]()

    def interrupted(*arguments: Any) -> dict[str, float]:
        calls.append(1)
        if len(calls) == 2:
            raise EvaluationInterrupted
        return evaluate(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(heldout, "evaluate", interrupted)
        train(dataset, path, stop_at=6)
    assert kept(path) == [5, 6]
    train(dataset, path)
    written = storage.read_text(storage.join(path, "metrics.jsonl")).splitlines()
    assert ["heldout_loss" in line for line in written] == [False, False, True] * 2


def test_a_reader_and_who_prunes_see_each_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = store.path("run", "checkpoints", "step-00000002")
    storage.write_bytes(storage.join(directory, "checkpoint.json"), b"{}")
    with checkpoints.pinned(directory):
        assert checkpoints.remove(directory) is False
    assert storage.list_names(store.path("run", "checkpoints")) == ["step-00000002"]
    looks = checkpoints._is_read

    def late(path: str) -> bool:  # the reader comes between the first look and the second
        monkeypatch.setattr(checkpoints, "_is_read", looks)
        found = looks(path)
        mark.__enter__()
        return found

    mark = checkpoints.pinned(directory)
    monkeypatch.setattr(checkpoints, "_is_read", late)
    assert checkpoints.remove(directory) is False
    assert checkpoints.is_checkpoint(directory)
    mark.__exit__(None, None, None)
    dead = f"{checkpoints._marks(directory)}of-a-dead-reader"
    storage.write_bytes(dead, b"{}")
    monkeypatch.setattr(checkpoints, "READER_LEASE_SECONDS", -1.0)
    assert checkpoints.remove(directory) is True
    assert storage.list_files(store.path("run")) == []
    with (
        pytest.raises(DataError, match="its training has removed it"),
        checkpoints.pinned(directory),
    ):
        pass
