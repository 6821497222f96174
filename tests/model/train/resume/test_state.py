"""What a checkpoint says of its training, which of them stay, and which one goes on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cloze.core import storage
from cloze.core.artifacts import checkpoint_files, checkpoints
from cloze.core.artifacts.fence import Fence
from cloze.core.errors import DataError
from cloze.model.tensors import write_tensors
from cloze.model.train.resume import state
from cloze.model.train.resume.state import ResumeState
from cloze.model.train.spec.interfaces import StartPosition
from cloze.model.train.spec.progress import RunInfo, TrainerState
from tests.tiny_models import write_checkpoint

RUN = RunInfo(
    fingerprint="f" * 64, build="b", config={"steps": 9}, precision="fp32", compiled=False, engine="torch",
    zero=0, packages={"torch": "2"}, start_position=StartPosition(), data="d",
)  # fmt: skip
NONE: Any = None


def made(training: Path, step: int, /, **changes: Any) -> Path:
    """A complete checkpoint of the training state alone."""
    directory = training / "checkpoints" / f"step-{step:08d}"
    (directory / "training").mkdir(parents=True)
    content = state.content(TrainerState(step=step, tokens=100 * step), RUN)
    document = {**json.loads(content), **changes}
    content = json.dumps(document).encode()
    (directory / "training" / "state.json").write_bytes(content)
    files = [
        {
            "path": "training/state.json",
            "sha256": hashlib.sha256(content).hexdigest(),
            "size": len(content),
        }
    ]
    (directory / "checkpoint.json").write_text(json.dumps({"format": 1, "files": files}))
    return directory


def kept(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_the_state_is_json_in_lines_with_its_format() -> None:
    content = state.content(TrainerState(step=3), RUN)
    document = json.loads(content)
    assert content == (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()
    assert document == {"format": 5, "run": asdict(RUN), **asdict(TrainerState(step=3))}
    assert state.step_path(200) == "checkpoints/step-00000200"


def test_a_new_phase_keeps_the_counters_alone() -> None:
    progress = TrainerState(
        step=1, samples=2, updates=3, tokens=4, skipped=5, skipped_in_a_row=6, overflows=7, loss_scale=[8.0],
        window={"a": 1}, pending={"b": 1}, first_loss=2.0, best={"c": 1.0}, kept=[1], passed=[[1, 2]],
        places={"d": 3}, by_source=[4], budget=[5],
    )  # fmt: skip
    before = ResumeState(path="p", progress=progress, run=RUN, weights=NONE, optimizer=NONE)
    after = before.as_phase()
    assert before.same_run
    assert not after.same_run
    assert after.path == "p"
    assert after.progress == TrainerState(
        step=1, samples=2, updates=3, tokens=4, skipped=5, skipped_in_a_row=6, overflows=7, loss_scale=[8.0],
        places={"d": 3},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("keep", "milestones", "left"),
    [
        (1, (), [5]),
        (0, (), [5]),
        (2, (), [4, 5]),
        (9, (), [1, 2, 3, 4, 5]),
        (1, (2, 7), [2, 5]),
        (2, (1, 5), [1, 4, 5]),
    ],
)
def test_the_newest_and_milestones_stay(
    tmp_path: Path, keep: int, milestones: tuple[int, ...], left: list[int]
) -> None:
    for step in range(1, 6):
        made(tmp_path, step)
    (tmp_path / "checkpoints" / "step-00000009").mkdir()  # a save that was killed
    state.prune(str(tmp_path), keep, frozenset(milestones))
    assert kept(tmp_path) == [f"step-{step:08d}" for step in left]


def test_a_finished_training_keeps_one_and_nothing_damaged(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        made(tmp_path, step)
    checkpoints.quarantine(str(made(tmp_path, 4)))
    state.prune_finished(str(tmp_path), frozenset({1}))
    assert kept(tmp_path) == ["step-00000001", "step-00000003"]


def test_milestones_by_step_and_by_tokens(tmp_path: Path) -> None:
    for step in (1, 3, 5):
        made(tmp_path, step)
    path = str(tmp_path)
    assert state.milestone_checkpoints(path, frozenset({5, 3, 4})) == {
        "3": "checkpoints/step-00000003",
        "5": "checkpoints/step-00000005",
    }
    wanted = {9: 500.0, 1: 100.0, 2: 101.0, 7: 501.0, 0: 50.0}
    one, three, five = (f"checkpoints/step-0000000{step}" for step in (1, 3, 5))
    found = state.checkpoints_at_tokens(path, wanted, 0)
    assert list(found.items()) == [("0", one), ("1", one), ("2", three), ("9", five)]
    assert state.checkpoints_at_tokens(path, wanted, 100) == {"2": three, "9": five}
    assert state.checkpoints_at_tokens(path, wanted, 99) == {"1": one, "2": three, "9": five}
    assert state.checkpoints_at_tokens(str(tmp_path / "none"), {}, 0) == {}


def test_the_newest_that_is_whole_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, notes = str(tmp_path), list[str]()
    assert state.newest(path, RUN.fingerprint, notes, Fence()) is None
    first, second, third = (made(tmp_path, step) for step in (1, 2, 3))
    (third / "training" / "state.json").write_text("{}")
    assert state.newest(path, RUN.fingerprint, notes, Fence()) == str(second)
    (note,) = notes
    assert note.startswith(
        f"DAMAGED CHECKPOINT PASSED OVER: {third}/training/state.json has sha256 "
    )
    assert note.endswith("; use another checkpoint")
    assert caplog.messages == notes
    assert [name for name in kept(tmp_path) if name.startswith("step-")] == [
        "step-00000001",
        "step-00000002",
    ]
    with pytest.raises(DataError) as refused:
        state.newest(path, "e" * 64, notes, Fence())
    assert str(refused.value) == (
        f"{second} belongs to a run with other settings or data (fingerprint ffffffffffff, expected "
        f"eeeeeeeeeeee); use another directory"
    )
    for directory in (first, second):
        (directory / "training" / "state.json").unlink()
    with pytest.raises(DataError) as refused:
        state.newest(path, RUN.fingerprint, notes, Fence())
    assert str(refused.value) == (
        f"{tmp_path}/checkpoints has 2 checkpoints, none of which can be used (step-00000002 is the newest); "
        f"restore one, or remove the directory to start again from step 0"
    )
    assert len(notes) == 3


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"format": 4}, "has another format (4, this program reads 5); use another checkpoint"),
        ({"run": {}}, "has another format (5, this program reads 5); use another checkpoint"),
        ({"run": None}, "is missing or damaged ("),
    ],
)
def test_a_state_of_another_form_is_refused(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    directory = made(tmp_path, 1, **changes)
    with pytest.raises(DataError) as refused:
        state.read(str(directory))
    assert str(refused.value).startswith(f"{directory}/training/state.json {told}")
    assert str(refused.value).endswith("; use another checkpoint")


def test_hashes_are_taken_over_in_a_store_alone(tmp_path: Path) -> None:
    directory = made(tmp_path, 1)
    names = [state.step_path(1)]
    assert state.written_hashes(str(tmp_path), names) == {}
    content = (directory / "training" / "state.json").read_bytes()
    entry = (hashlib.sha256(content).hexdigest(), len(content))
    assert checkpoint_files.recorded_hashes(str(directory)) == {"training/state.json": entry}
    bucket = "memory://of-test-state"
    storage.write_bytes(
        f"{bucket}/{names[0]}/checkpoint.json", (directory / "checkpoint.json").read_bytes()
    )
    assert state.written_hashes(bucket, names) == {f"{names[0]}/training/state.json": entry}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (
            None,
            "{directory} has no complete checkpoint (checkpoint.json is missing); use another one",
        ),
        (
            '{"format": 2, "files": []}',
            "{name} has format 2, this program reads 1; use the Cloze that made it",
        ),
        ("{", "{name} is damaged (JSONDecodeError("),
        ('{"format": 1}', "{name} is damaged (KeyError('files')); use another checkpoint"),
        ('{"format": 1, "files": [1]}', "{name} is damaged (TypeError("),
    ],
)
def test_what_is_no_checkpoint_is_said(tmp_path: Path, content: str | None, told: str) -> None:
    directory = made(tmp_path, 1)
    name = directory / "checkpoint.json"
    name.unlink() if content is None else name.write_text(content)
    with pytest.raises(DataError) as refused:
        checkpoint_files.recorded_hashes(str(directory))
    assert str(refused.value).startswith(told.format(directory=directory, name=name))


def test_each_file_is_checked_but_not_those_of_the_training_alone(tmp_path: Path) -> None:
    directory = made(tmp_path, 1)
    file = directory / "training" / "state.json"
    checkpoint_files.verify(str(directory))
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    checkpoint_files.verify(str(directory), training=False)
    own, new = (hashlib.sha256(one).hexdigest()[:12] for one in (content, content[:-1]))
    with pytest.raises(DataError) as refused:
        checkpoint_files.verify(str(directory))
    assert str(refused.value) == (
        f"{file} has sha256 {new}… and {len(content) - 1} bytes, checkpoint.json says {own}… and {len(content)}; "
        f"use another checkpoint"
    )
    file.unlink()
    with pytest.raises(DataError) as refused:
        checkpoint_files.verify(str(directory))
    assert str(refused.value) == f"{file} is missing from the checkpoint; use another checkpoint"


@pytest.mark.parametrize("step", [0, 3])
def test_all_ranks_read_what_rank_zero_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(state, "read", lambda directory: f"read {directory}")
    other: Any = SimpleNamespace(decide_on_rank_zero=lambda choose: step, fence=Fence())
    wanted = f"read {tmp_path}/checkpoints/step-{step:08d}"
    assert state.resume(str(tmp_path), RUN.fingerprint, other, []) == wanted
    first: Any = SimpleNamespace(decide_on_rank_zero=lambda choose: choose(), fence=Fence())
    assert state.resume(str(tmp_path), RUN.fingerprint, first, []) is None
    made(tmp_path, step)
    assert state.resume(str(tmp_path), RUN.fingerprint, first, []) == wanted


def test_what_is_read_back(tmp_path: Path) -> None:
    directory = Path(
        write_checkpoint(tmp_path / "checkpoints" / "step-00000005", tmp_path / "scratch")
    )
    training = directory / "training"
    training.mkdir()
    progress = TrainerState(step=5, tokens=7, best={"a": 1.0})
    run = replace(RUN, start_position=StartPosition(step=2))
    (training / "state.json").write_bytes(state.content(progress, run))
    write_tensors(str(training / "optimizer.safetensors"), {"a/exp_avg": torch.ones(2)})
    found = state.read(str(directory))
    assert (found.path, found.progress, found.run, found.same_run) == (
        str(directory),
        progress,
        run,
        True,
    )
    assert list(found.optimizer) == ["a/exp_avg"]
    assert "encoder.embeddings.word.weight" in found.weights
