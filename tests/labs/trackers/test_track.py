"""`cloze track`: the metrics of a training reach a tracker once, while it goes on and afterwards."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core.stages.stage import METRICS_LOG
from cloze.flows.cli import main
from cloze.flows.tracking.trackers import TRACKERS
from cloze.labs.trackers.command import follow


class Memory:
    """A tracker that keeps what it is given."""

    made: list[Memory]

    def __init__(self, directory: Path, name: str) -> None:
        self.directory, self.name, self.closed = directory, name, False
        self.points: list[tuple[int, float, dict[str, float]]] = []
        type(self).made.append(self)

    def log(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        self.points.append((step, time, dict(metrics)))

    def flush(self) -> None: ...

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> type[Memory]:
    Memory.made = []
    monkeypatch.setitem(TRACKERS, "memory", Memory)
    return Memory


def write(path: Path, *steps: int, end: str = "\n", **more: Any) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"step": n, "loss": 1 / n, "time": 100.0 + n, **more}) for n in steps]
    (path / METRICS_LOG).write_text("\n".join(lines) + end)
    return path


def test_a_log_is_sent_and_the_last_line_says_what_was_not(
    memory: type[Memory], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = write(tmp_path / "pretrain", 1, 3, phase="long", nested={"a": 1})
    assert main(["track", str(artifact), "--to", "memory", "--out", str(tmp_path / "out")]) == 0
    (made,) = memory.made
    assert made.points == [(1, 101.0, {"loss": 1.0}), (3, 103.0, {"loss": 1 / 3})]
    assert (made.directory, made.name, made.closed) == (tmp_path / "out/pretrain", "pretrain", True)
    said = capsys.readouterr().out
    assert "1 training, 2 log lines" in said
    assert "no numbers are left out (nested, phase)" in said


def test_a_run_is_followed_and_each_step_is_sent_once(memory: type[Memory], tmp_path: Path) -> None:
    """The training is killed after step 6 and goes on from step 4; another one begins meanwhile."""
    first, second, corpus = (tmp_path / name for name in ("first", "second", "corpus"))
    corpus.mkdir()
    looks = [
        lambda: None,
        lambda: write(first, 2, 4, end='\n{"step": 6, "lo'),
        lambda: write(first, 2, 4, 6),
        lambda: (write(first, 2, 4), write(second, 5)),
        lambda: write(first, 2, 4, 6, 8),
    ]
    left = iter(looks)

    def goes_on() -> bool:
        look = next(left, None)
        if look is not None:
            look()
        return look is not None

    def paths() -> dict[str, str]:
        return {path.name: str(path) for path in (corpus, first, second) if path.exists()}

    trainings, others = follow(paths, lambda name: memory(tmp_path, name), goes_on, lambda: None)
    assert {made.name: [step for step, _, _ in made.points] for made in memory.made} == {
        "first": [2, 4, 6, 8],
        "second": [5],
    }
    assert all(made.closed for made in memory.made)
    assert (trainings["first"].lines, others) == (4, ["corpus"])


@given(st.lists(st.integers(0, 12), max_size=6))
@settings(max_examples=25, deadline=None)
def test_wherever_the_looks_cut_a_log_the_points_are_those_of_one_look(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    Memory.made = []
    path = tmp_path_factory.mktemp("log")
    steps = list(range(1, 13))
    states = iter([*sorted(cuts), 12])

    def goes_on() -> bool:
        length = next(states)
        write(path, *steps[:length])
        return length < 12

    states = iter([*sorted(cut for cut in cuts if cut < 12), 12])
    follow(lambda: {"x": str(path)}, lambda name: Memory(path, name), goes_on, lambda: None)
    assert [step for step, _, _ in Memory.made[0].points] == steps


def test_a_run_without_trainings_and_an_unknown_tracker_are_told(
    memory: type[Memory], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "corpus").mkdir()
    assert main(["track", str(tmp_path / "corpus"), "--to", "memory"]) == 3
    assert "has no training with metrics yet" in capsys.readouterr().err
    assert main(["track", str(tmp_path / "corpus"), "--to", "memry"]) == 2
    assert "did you mean 'memory'" in capsys.readouterr().err


def test_tensorboard_reads_the_points(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard ([tensorboard])")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    artifact = write(tmp_path / "pretrain", 1, 3)
    for _ in range(2):  # the second call replaces what the first has written
        assert main(["track", str(artifact), "--to", "tensorboard", "--out", str(tmp_path)]) == 0
    events = EventAccumulator(str(tmp_path / "pretrain")).Reload()
    assert [(point.step, point.wall_time) for point in events.Scalars("loss")] == [
        (1, 101.0),
        (3, 103.0),
    ]
    assert (artifact / METRICS_LOG).exists()


def test_weights_and_biases_keeps_the_points_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="needs wandb ([wandb])")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    artifact = write(tmp_path / "pretrain", 1, 3)
    for _ in range(2):
        assert main(["track", str(artifact), "--to", "wandb", "--out", str(tmp_path / "w")]) == 0
    (file,) = (tmp_path / "w/pretrain/wandb").glob("offline-run-*/run-*.wandb")
    content, at, found = file.read_bytes(), 7, []
    while at < len(content):  # records as LevelDB's: checksum, length and type before each
        _, size, _ = struct.unpack_from("<IHB", content, at)
        data, at = content[at + 7 : at + 7 + size], at + 7 + size
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            items = {
                item.key or item.nested_key[0]: item.value_json for item in record.history.item
            }
            found.append((int(items["_step"]), float(items["loss"]), float(items["_timestamp"])))
    assert found == [(1, 1.0, 101.0), (3, pytest.approx(1 / 3), 103.0)]
