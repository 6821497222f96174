"""A batch passes few functions and files on its way from a shard to the optimizer's step.

Each is a place that a reader of a training must have seen. What is counted depends on no clock: the
functions of this repository that run for one step without a log line, in both threads. It begins
where the step's rows are asked for, and ends where its weights have moved.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from cloze.model.train.loop import data, loop
from tests.model.datasets import write_dataset
from tests.model.train.ranks import REPOSITORY, config, here

FUNCTIONS, FILES = 90, 24
STEP = 3
FOLDERS = ("core", "pipeline", "model", "flows", "labs")


class Called:
    """The functions of a step's thread and of the main one, by file."""

    def __init__(self) -> None:
        self.functions = defaultdict[str, set[str]](set)
        self.counts = {"main": False, "thread": False}
        self._places = dict[CodeType, tuple[str, str] | None]()

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and self.counts[self._thread()]:
            if code not in self._places:
                self._places[code] = self._place(code)
            if (place := self._places[code]) is not None:
                self.functions[place[0]].add(place[1])

    @contextmanager
    def everywhere(self) -> Iterator[None]:
        threading.setprofile(self.profile)
        sys.setprofile(self.profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]

    def _thread(self) -> str:
        return "main" if threading.current_thread() is threading.main_thread() else "thread"

    def _place(self, code: CodeType) -> tuple[str, str] | None:
        # what Python makes a function of in one version and not in the next is none
        if code.co_name in ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"):
            return None
        file = Path(code.co_filename).resolve()
        if not file.is_relative_to(REPOSITORY):
            return None
        inside = file.relative_to(REPOSITORY)
        return (str(inside), code.co_qualname) if inside.parts[0] in FOLDERS else None


def test_a_batch_passes_few_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = Called()
    rows, step = data.DatasetSource.step_batches, loop._TrainingLoop._step

    def step_batches(source: Any, number: int, *arguments: int) -> Any:
        called.counts["thread"] = number == STEP
        return rows(source, number, *arguments)

    def one_step(trained: Any, work: Any, *arguments: Any) -> Any:
        called.counts["main"] = work.step == STEP
        try:
            return step(trained, work, *arguments)
        finally:
            called.counts["main"] = False

    monkeypatch.setattr(data.DatasetSource, "step_batches", step_batches)
    monkeypatch.setattr(loop._TrainingLoop, "_step", one_step)
    settings = config(steps=6, log_every=100, model={"num_hidden_layers": 1})
    dataset = write_dataset(tmp_path / "data")
    with called.everywhere():
        here(settings, dataset, tmp_path / "out")
    found = {file: sorted(names) for file, names in sorted(called.functions.items())}
    assert "TorchEngine.step" in found["model/train/engines/torch.py"], "nothing was counted"
    assert sum(map(len, found.values())) <= FUNCTIONS, found
    assert len(found) <= FILES, found
