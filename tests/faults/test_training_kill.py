"""Training that is killed or asked to stop at any moment goes on as if nothing had happened."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloze.core import storage
from cloze.core.artifacts import checkpoint_files, checkpoints
from cloze.core.errors import DataError
from cloze.model.train.resume import saving
from tests import warm
from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import config, digests, here, job, worker

SETTINGS = config(steps=6, log_every=2, evaluate_every=3)


class Killed(BaseException):
    """Ends a run as kill -9 would: nothing of ours catches it."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset")


@pytest.fixture(scope="module")
def straight(dataset: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a run that nobody disturbs leaves."""
    return digests(here(SETTINGS, dataset, tmp_path_factory.mktemp("straight") / "run").checkpoint)


@pytest.mark.parametrize("moment", range(10))
def test_killed_at_any_moment_of_a_checkpoint(
    dataset: str,
    straight: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: int,
) -> None:
    """The second checkpoint is cut off at its first, third, … touch of the disk; then training goes
    on.
    """
    saves, touches = [0], [0]

    def touched(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **named: Any) -> Any:
            if saves[0] == 2:
                touches[0] += 1
                if touches[0] > 2 * moment:
                    raise Killed
            return function(*arguments, **named)

        return wrapper

    save = saving.CheckpointSaver._save

    def counted(*arguments: Any) -> None:
        saves[0] += 1
        save(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(saving.CheckpointSaver, "_save", counted)
        patched.setattr(storage, "write_bytes", touched(storage.write_bytes))
        patched.setattr(storage, "atomic_output", touched(storage.atomic_output))
        patched.setattr(storage, "fsync_directory", touched(storage.fsync_directory))
        patched.setattr(Path, "rename", touched(Path.rename))
        patched.setattr(shutil, "rmtree", touched(shutil.rmtree))
        with pytest.raises(Killed):
            here(SETTINGS, dataset, tmp_path / "run", checkpoint_every=2, keep_checkpoints=1)
    complete = checkpoints.complete_steps(str(tmp_path / "run"))
    assert complete != []
    for left in complete:
        checkpoint_files.verify(left)
    again = here(SETTINGS, dataset, tmp_path / "run", checkpoint_every=2, keep_checkpoints=1)
    assert "resuming from checkpoints/step-0000000" in again.said("note")
    assert digests(again.checkpoint) == straight
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000006"]
    assert [line["step"] for line in lines(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4, 6]


@pytest.mark.soak
def test_kill_9_of_the_real_worker(dataset: str, tmp_path: Path) -> None:
    settings = config(steps=80)
    expected = here(settings, dataset, tmp_path / "straight").checkpoint
    killed = job(
        settings, dataset, tmp_path / "killed", threads=1, checkpoint_every=4, device="cpu"
    )
    (process,), log = worker(killed)
    deadline = time.monotonic() + 120
    while (
        len(list((tmp_path / "killed").glob("checkpoints/step-*/checkpoint.json"))) < 2
        and time.monotonic() < deadline
    ):
        assert process.poll() is None, log.read_text()
        time.sleep(0.005)
    warm.kill(process)
    resumed = here(settings, dataset, tmp_path / "killed", checkpoint_every=50)
    assert "resuming from checkpoints/step-" in resumed.said("note")
    assert resumed.reports[-1][0] == 80
    assert digests(resumed.checkpoint) == digests(expected)


def test_sigterm_to_one_rank_stops_all_with_a_checkpoint(dataset: str, tmp_path: Path) -> None:
    endless = job(
        config(steps=100_000, evaluate_every=100_000),
        dataset,
        tmp_path / "run",
        threads=1,
        device="cpu",
    )
    processes, log = worker(endless, 2)
    deadline = time.monotonic() + 120
    while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < deadline:
        assert all(process.poll() is None for process in processes), log.read_text()
        time.sleep(0.02)
    processes[1].terminate()
    assert [process.wait(timeout=60) for process in processes] == [4, 4], log.read_text()
    (saved,) = (tmp_path / "run" / "checkpoints").iterdir()
    checkpoint_files.verify(str(saved))
    assert "is saved: run again to continue" in log.read_text()


def _damage_weights(directory: Path) -> None:
    file = directory / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def _damage_state(directory: Path) -> None:
    (directory / "training" / "state.json").write_text("{")


def _cut_optimizer(directory: Path) -> None:
    file = directory / "training" / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:-7])


def _lose_the_end(directory: Path) -> None:
    (directory / "checkpoint.json").unlink()


DAMAGES = [_damage_weights, _damage_state, _cut_optimizer]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_older_one_used(
    dataset: str, straight: dict[str, str], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    here(SETTINGS, dataset, tmp_path / "run", stop_at=4, checkpoint_every=2, keep_checkpoints=3)
    damage(tmp_path / "run" / "checkpoints" / "step-00000004")
    again = here(SETTINGS, dataset, tmp_path / "run", checkpoint_every=2, keep_checkpoints=3)
    notes = again.said("note")
    assert "DAMAGED CHECKPOINT PASSED OVER" in notes
    assert "step-00000004" in notes
    assert "resuming from checkpoints/step-00000002" in notes
    assert digests(again.checkpoint) == straight
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000006"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_usable_checkpoint_is_never_step_zero(
    dataset: str, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    here(SETTINGS, dataset, tmp_path / "run", stop_at=4)
    damage(tmp_path / "run" / "checkpoints" / "step-00000004")
    with pytest.raises(DataError, match="has 1 checkpoints, none of which can be used"):
        here(SETTINGS, dataset, tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "step-00000004").is_dir()


def test_what_was_never_completed_is_no_checkpoint(
    dataset: str, straight: dict[str, str], tmp_path: Path
) -> None:
    """As a kill leaves it between the parts and `checkpoint.json`: the one before counts, or none,
    which is said.
    """
    here(SETTINGS, dataset, tmp_path / "run", stop_at=4, checkpoint_every=2, keep_checkpoints=3)
    _lose_the_end(tmp_path / "run" / "checkpoints" / "step-00000004")
    again = here(SETTINGS, dataset, tmp_path / "run", stop_at=4, keep_checkpoints=1)
    assert "resuming from checkpoints/step-00000002" in again.said("note")
    _lose_the_end(tmp_path / "run" / "checkpoints" / "step-00000004")
    again = here(SETTINGS, dataset, tmp_path / "run")
    assert (
        "starting again from step 0: no checkpoint was finished, 4 log lines are dropped"
        in again.said("note")
    )
    assert digests(again.checkpoint) == straight
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000006"]


def test_a_checkpoint_of_another_run_is_refused(dataset: str, tmp_path: Path) -> None:
    here(SETTINGS, dataset, tmp_path / "run", stop_at=4)
    with pytest.raises(DataError, match="belongs to a run with other settings or data"):
        here(SETTINGS, dataset, tmp_path / "run", fingerprint="e" * 64)


def test_lost_checkpoints_are_said_aloud(dataset: str, tmp_path: Path) -> None:
    here(SETTINGS, dataset, tmp_path / "run", stop_at=4)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    again = here(SETTINGS, dataset, tmp_path / "run")
    assert (
        "starting again from step 0: no checkpoint was finished, 4 log lines are dropped"
        in again.said("note")
    )
    assert [line["step"] for line in lines(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4, 6]


def test_a_half_written_log_line_goes(
    dataset: str, straight: dict[str, str], tmp_path: Path
) -> None:
    here(SETTINGS, dataset, tmp_path / "run", stop_at=4)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps({"step": 5}) + '\n{"step": 6, "lo')
    again = here(SETTINGS, dataset, tmp_path / "run")
    assert [line["step"] for line in lines(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4, 6]
    assert digests(again.checkpoint) == straight


@pytest.mark.parametrize("torn", ['{"step": 6, "lo', None, "null\n", '{"step": "x"}\n', "\0\0\0"])
def test_the_lines_that_are_kept_are_told_again(
    dataset: str, straight: dict[str, str], tmp_path: Path, torn: str | None
) -> None:
    """Whatever a kill, or a full disk, has left of the last one; None: all but its end."""
    first = here(SETTINGS, dataset, tmp_path / "run", stop_at=4)
    path = tmp_path / "run" / "metrics.jsonl"
    kept = path.read_text()
    path.write_text(kept[:-1] if torn is None else kept + torn)
    again = here(SETTINGS, dataset, tmp_path / "run")
    assert again.metrics[: len(first.metrics)] == first.metrics
    assert (
        [line["step"] for line in again.metrics]
        == [line["step"] for line in lines(path)]
        == [1, 2, 3, 4, 6]
    )
    assert digests(again.checkpoint) == straight
