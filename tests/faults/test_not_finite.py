"""Gradients that are not finite: skipped; then back once to the last good checkpoint, and past the
rows; then the end, rows named.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cloze.core.errors import ClozeError, StoppedError
from cloze.model import checkpoint
from cloze.model.train.engines.torch import TorchEngine
from cloze.model.train.evaluate import heldout
from cloze.model.train.resume import state
from cloze.model.train.spec.interfaces import EvaluationInterrupted
from cloze.model.train.spec.progress import TrainerState
from tests.faults import worker
from tests.faults.test_hangs import Listener, train
from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import STAGES, Here, config, digests, here

OF_RANKS: dict[str, Any] = {"steps": 14, "max_skipped": 3, "log_every": 1, "evaluate_every": 7}
SETTINGS = config(**OF_RANKS)
EVERY: dict[str, Any] = {"checkpoint_every": 4, "keep_checkpoints": 2}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset")


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Steps 6 to 8 of batches of 8 give no finite gradient."""
    monkeypatch.setattr(
        "cloze.model.train.loop.data.DatasetSource.step_batches",
        worker.DatasetSource.step_batches,
    )  # so that it is put back
    monkeypatch.setattr(
        "cloze.model.train.evaluate.scoring.PretrainModule._loss",
        worker.scoring.PretrainModule._loss,
    )
    worker.poison(40, 64)
    return monkeypatch


def progress(run: Here) -> TrainerState:
    return state.read(str(run.checkpoint)).progress


def test_it_goes_back_once_and_passes_over_the_rows(
    dataset: str, tmp_path: Path, poisoned: pytest.MonkeyPatch
) -> None:
    run = here(SETTINGS, dataset, tmp_path / "run", **EVERY)
    warned = run.said("warning")
    assert "rolled back to step 4: 3 steps in a row up to step 8" in warned
    assert "skips the rows of steps 5 to 8" in warned
    found = progress(run)
    assert (found.step, found.updates, found.passed, found.samples) == (
        14,
        14,
        [[4, 4]],
        (14 + 4) * 8,
    )
    assert all(
        torch.isfinite(tensor).all()
        for tensor in checkpoint.load(str(run.checkpoint)).state.values()
    )
    assert [line["step"] for line in lines(tmp_path / "run" / "metrics.jsonl")] == list(
        range(1, 15)
    )
    (line,) = lines(tmp_path / "run" / "skipped.jsonl")
    assert (line["step"], line["passed_over"]) == (4, [5, 8])
    assert {step: len(rows["rows"]) for step, rows in line["not_finite"].items()} == {
        "6": 8,
        "7": 8,
        "8": 8,
    }  # type: ignore[attr-defined]


@pytest.mark.parametrize("stop_at", [7, 8, 10])
def test_stopped_at_any_step_of_it_it_ends_alike(
    dataset: str, tmp_path: Path, poisoned: pytest.MonkeyPatch, stop_at: int
) -> None:
    """In the middle of the bad steps, just after going back, and later."""
    straight = here(SETTINGS, dataset, tmp_path / "straight", **EVERY)
    here(SETTINGS, dataset, tmp_path / "run", stop_at=stop_at, **EVERY)
    again = here(SETTINGS, dataset, tmp_path / "run", **EVERY)
    assert digests(again.checkpoint) == digests(straight.checkpoint)
    assert (tmp_path / "run" / "skipped.jsonl").read_text() == (
        tmp_path / "straight" / "skipped.jsonl"
    ).read_text()


def test_going_back_to_an_interrupted_evaluation_makes_up_for_it(
    dataset: str, tmp_path: Path, poisoned: pytest.MonkeyPatch
) -> None:
    """Its checkpoint is the only one: its line is finished once after each time."""
    settings, out = config(steps=12, max_skipped=3, log_every=1, evaluate_every=3), tmp_path / "run"

    def interrupted(*arguments: Any) -> dict[str, float]:
        raise EvaluationInterrupted

    with poisoned.context() as patched, pytest.raises(StoppedError, match="after step 3 of 12"):
        patched.setattr(heldout, "evaluate", interrupted)
        here(settings, dataset, out)
    run = here(settings, dataset, out, stop_at=10)
    assert "rolled back to step 3" in run.said("warning")
    found = progress(run)
    assert (found.step, found.pending, found.best is None) == (10, None, False)
    before = lines(out / "metrics.jsonl")
    here(settings, dataset, out)
    after = lines(out / "metrics.jsonl")
    assert after[:10] == before
    assert [line["step"] for line in after] == list(range(1, 13))
    assert [line["step"] for line in after if "heldout_loss" in line] == [3, 6, 9, 12]


def test_the_second_time_it_ends_and_names_the_rows(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "cloze.model.train.loop.data.DatasetSource.step_batches",
        worker.DatasetSource.step_batches,
    )
    monkeypatch.setattr(
        "cloze.model.train.evaluate.scoring.PretrainModule._loss",
        worker.scoring.PretrainModule._loss,
    )
    worker.poison(40, 10_000)
    with pytest.raises(
        ClozeError,
        match=(
            r"those of the last are \d+, .*although training went back to step 4 before.*take "
            r"these rows out"
        ),
    ):
        here(SETTINGS, dataset, tmp_path / "run", **EVERY)


def test_without_a_checkpoint_there_is_nothing_to_go_back_to(
    dataset: str, tmp_path: Path, poisoned: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ClozeError, match="no good checkpoint before them to go back to"):
        here(SETTINGS, dataset, tmp_path / "run")


def test_weights_that_are_not_finite_are_no_checkpoint(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update spoils the weights just before a save: what is saved is good, and training goes on
    from the one before.
    """
    update, calls = TorchEngine.step, [0]

    def spoils(self: TorchEngine, learning_rate: float, step: int | None = None) -> torch.Tensor:
        norm = update(self, learning_rate, step)
        calls[0] += 1
        if calls[0] == 8:
            with torch.no_grad():
                self._parameters[0].view(-1)[0] = float("inf")
        return norm

    monkeypatch.setattr(TorchEngine, "step", spoils)
    run = here(SETTINGS, dataset, tmp_path / "run", **EVERY)
    assert "rolled back to step 4" in run.said("warning")
    assert progress(run).passed == [[4, 4]]
    assert all(
        torch.isfinite(tensor).all()
        for tensor in checkpoint.load(str(run.checkpoint)).state.values()
    )


@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    "stage",
    [
        "zero0",
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("zero1", "zero3", "fsdp3")),
    ],
)
@pytest.mark.usefixtures("warm")
def test_ranks_go_back_together(
    dataset: str, tmp_path: Path, poisoned: pytest.MonkeyPatch, stage: str
) -> None:
    """Two ranks of any engine come to the weights of one process."""
    alone = here(SETTINGS, dataset, tmp_path / "alone", micro_batch=4, **EVERY)
    listener = Listener()
    train(
        dataset,
        tmp_path / "run",
        poisoned,
        listener,
        "poison 40 64",
        **OF_RANKS,
        **EVERY,
        **STAGES[stage],
        micro_batch=4,
    )
    assert any(said.startswith("rolled back to step 4") for said in listener.said)
    (newest,) = (tmp_path / "run").glob("checkpoints/step-*")
    found = state.read(str(newest))
    assert (found.progress.step, found.progress.updates, found.progress.passed) == (
        14,
        14,
        [[4, 4]],
    )
    theirs = state.read(str(alone.checkpoint))
    for name, tensor in found.weights.items():
        torch.testing.assert_close(tensor, theirs.weights[name], rtol=0, atol=3e-5)
    for name, tensor in found.optimizer.items():
        torch.testing.assert_close(tensor, theirs.optimizer[name], rtol=0, atol=3e-5)
