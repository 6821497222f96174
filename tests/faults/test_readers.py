"""Checkpoints that are read while the training that writes them prunes: a reader gets a whole one
or one sentence.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from cloze.core.artifacts import checkpoint_files, checkpoints
from cloze.core.errors import DataError
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.model import checkpoint
from cloze.model.train.resume import state
from tests.model.datasets import write_dataset
from tests.model.train.ranks import config, here


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset")


def kept(run: Path) -> list[int]:
    return [checkpoints.parse_step(path) for path in checkpoints.complete_steps(str(run))]


def test_what_is_held_outlives_pruning_until_the_next(dataset: str, tmp_path: Path) -> None:
    settings, run = config(steps=8), tmp_path / "run"
    here(settings, dataset, run, stop_at=2)
    with checkpoints.pinned(str(run / "checkpoints" / "step-00000002")):
        here(settings, dataset, run, stop_at=6, checkpoint_every=1, keep_checkpoints=1)
        assert kept(run) == [2, 6]
        assert checkpoint.load(str(run / "checkpoints" / "step-00000002")).step == 2
    here(settings, dataset, run, checkpoint_every=1, keep_checkpoints=1)
    assert kept(run) == [8]


def test_an_input_is_held_as_long_as_the_build_goes_on(dataset: str, tmp_path: Path) -> None:
    """What is loaded names a tokenizer in the checkpoint, which is copied later."""
    run = tmp_path / "run"
    here(config(steps=4), dataset, run, stop_at=2)
    build = BuildContext(
        path=str(tmp_path), inputs={"checkpoint": str(run)}, execution=Execution(), fingerprint=""
    )
    with build.cleanup:
        loaded = checkpoint.load_input(build, build.inputs["checkpoint"])
        assert checkpoints.remove(loaded.path) is False
        assert Path(loaded.tokenizer).is_dir()
    assert checkpoints.remove(loaded.path) is True
    with pytest.raises(DataError, match="does not exist"):
        checkpoint.load(loaded.path)


def test_reading_beside_a_training_that_prunes(dataset: str, tmp_path: Path) -> None:
    """Of the training as a whole its newest checkpoint is read, always; of one by name, or it is
    said that it went.
    """
    run, ended = tmp_path / "run", threading.Event()
    here(config(steps=20), dataset, run, stop_at=1)
    whole, named, faults = list[int](), list[int](), list[str]()

    def read_newest() -> None:
        while not ended.is_set():
            try:
                whole.append(checkpoint.load(str(run)).step)
            except Exception as error:
                faults.append(f"newest: {error!r}")

    def read_oldest() -> None:
        while not ended.wait(0.02):  # what somebody holds all the time is never pruned
            oldest = next(iter(sorted((run / "checkpoints").glob("step-*"))), None)
            if oldest is None:
                continue
            try:
                named.append(checkpoint.load(str(oldest)).step)
            except DataError as error:
                if "does not exist" not in str(error) and "its training has removed it" not in str(
                    error
                ):
                    faults.append(f"oldest: {error!r}")
            except Exception as error:
                faults.append(f"oldest: {error!r}")

    readers = [threading.Thread(target=read_newest), threading.Thread(target=read_oldest)]
    for reader in readers:
        reader.start()
    try:
        here(config(steps=20), dataset, run, checkpoint_every=1, keep_checkpoints=1)
    finally:
        ended.set()
        for reader in readers:
            reader.join(30)
    assert faults == []
    assert len(set(whole)) > 1
    assert named
    state.prune(str(run), 1, frozenset())
    assert kept(run) == [20]


def test_a_checkpoint_that_vanishes_is_said_and_never_half_read(
    dataset: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    here(config(steps=4), dataset, run, stop_at=2)
    directory = run / "checkpoints" / "step-00000002"
    with checkpoint.resolve_pinned(str(directory)):
        shutil.rmtree(directory)  # by hand: nothing holds that back
        with pytest.raises(DataError, match="is missing"):
            checkpoint_files.verify(str(directory))
    with pytest.raises(DataError, match="has no complete checkpoint"):
        checkpoint.load(str(run))
