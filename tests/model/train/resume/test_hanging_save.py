"""A save that never ends is noticed while the training goes on, and `wait` ends with a sentence."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cloze.core.errors import ClozeError
from cloze.model.train.resume import saving, state


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set: the storage answers."""
    answers = threading.Event()
    monkeypatch.setattr(saving.CheckpointSaver, "_save", lambda *_: answers.wait(60) and None)
    monkeypatch.setattr(state, "content", lambda *_: b"{}")
    yield answers
    answers.set()


def started(path: Path) -> saving.CheckpointSaver:
    world: Any = SimpleNamespace(
        decide_on_rank_zero=lambda _: None, device=torch.device("cpu"), rank=0, size=1
    )
    unused: Any = None
    saver = saving.CheckpointSaver(str(path), world, saved=unused, run=unused, keep=1)
    engine: Any = SimpleNamespace(weights=list, optimizer_state=list)
    progress: Any = SimpleNamespace(step=7)
    saver.save_async(progress, frozenset(), engine)
    return saver


def test_a_save_that_hangs_ends_the_training(
    tmp_path: Path, storage: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "SAVING_TIMEOUT", datetime.timedelta(0))
    saver = started(tmp_path)
    for _ in range(2):
        assert saver.failed
        with pytest.raises(ClozeError, match="is not written after .*check the storage"):
            saver.wait()


def test_a_slow_save_within_its_limit_is_none(tmp_path: Path, storage: threading.Event) -> None:
    saver = started(tmp_path)
    assert not saver.failed
    storage.set()
    saver.wait()
    assert not saver.failed
    assert saver.written == 1
    assert [step for step, _ in saver.pop_completed()] == [7]


def test_a_late_save_that_ends_after_all_is_no_failure(
    tmp_path: Path, storage: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "SAVING_TIMEOUT", datetime.timedelta(0))
    saver = started(tmp_path)
    storage.set()
    saver.close()
    assert not saver.failed
    saver.wait()
