"""What a night looks at: checkpoints of any training below the runs, and which of them it takes."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloze.core import storage
from cloze.core.artifacts.artifact import Manifest
from cloze.core.errors import UsageError
from cloze.flows.graph.overrides import WORD
from cloze.flows.nightly import missed
from cloze.flows.nightly.discovery import (
    CheckpointInfo,
    choose,
    find_checkpoints,
    label,
    parse_since,
)
from cloze.flows.nightly.suite import NightSettings


def training(
    place: Path,
    fingerprint: str,
    steps: list[int],
    *,
    stage: str = "pretrain",
    milestones: tuple[int, ...] = (),
    time: float = 1000,
) -> Path:
    """An unfinished training as it lies on the disk."""
    for step in steps:
        mark = place / "checkpoints" / f"step-{step:08d}" / "checkpoint.json"
        mark.parent.mkdir(parents=True)
        mark.touch()
        os.utime(mark, (time + step, time + step))
    storage.write_bytes(
        str(place / "_building.json"),
        json.dumps({"stage": stage, "fingerprint": fingerprint, "build": "b1"}).encode(),
    )
    storage.write_bytes(
        str(place / "_logs" / "job.json"),
        json.dumps({"config": {"milestones": milestones}, "inputs": {"dataset": "gone"}}).encode(),
    )
    return place


def test_all_trainings_are_found_and_nothing_else(tmp_path: Path) -> None:
    made = training(tmp_path / "demo" / "pretrain-aaa", "a" * 64, [10, 20], milestones=(10,))
    (tmp_path / "demo" / "pretrain").symlink_to(made.name)  # the run's link: the same checkpoints
    training(tmp_path / "single", "b" * 64, [5])  # of the verb
    training(tmp_path / "demo" / "finetune-ccc", "c" * 64, [3], stage="finetune")
    training(tmp_path / ".night" / "champions", "d" * 64, [3])
    (made / "checkpoints" / "step-00000030").mkdir()  # not complete yet
    (made / "checkpoints" / "_removed-step-00000005").mkdir()
    (tmp_path / "other" / "checkpoints" / "step-00000001").mkdir(parents=True)
    found = find_checkpoints(tmp_path)
    assert [(item.run, item.step, item.milestone, item.newest) for item in found] == [
        ("single", 5, False, True),
        ("demo", 10, True, False),
        ("demo", 20, False, True),
    ]
    assert found[1].key == f"{'a' * 64}/checkpoints/step-00000010"
    assert found[1].made_from == {}
    assert Path(found[1].path) == (made / "checkpoints" / "step-00000010").resolve()


def test_milestones_in_words_are_milestones_once_the_training_is_finished(tmp_path: Path) -> None:
    made = training(tmp_path / "demo" / "pretrain-aaa", "a" * 64, [10, 20, 30], milestones=(10,))
    manifest = Manifest(
        stage="pretrain", version=1, fingerprint="a" * 64, config={"milestones": [10]}, parents={},
        files=(), summary={"milestone_words": {"1000": "checkpoints/step-00000020"}},
    )  # fmt: skip
    storage.write_bytes(str(made / "manifest.json"), json.dumps(asdict(manifest)).encode())
    assert [item.milestone for item in find_checkpoints(tmp_path)] == [True, True, False]


def test_of_a_mixture_the_first_dataset_that_is_still_there_is_brought_along(
    tmp_path: Path,
) -> None:
    made = training(tmp_path / "demo" / "pretrain-aaa", "a" * 64, [10])
    for name in ("news", "wiki"):
        storage.write_bytes(str(tmp_path / name / "manifest.json"), b"{}")
    inputs = {f"dataset/{name}": str(tmp_path / name) for name in ("wiki", "news", "books")}
    storage.write_bytes(
        str(made / "_logs" / "job.json"), json.dumps({"config": {}, "inputs": inputs}).encode()
    )
    assert find_checkpoints(tmp_path)[0].made_from == {"dataset": str(tmp_path / "news")}


def test_no_runs_are_no_failure(tmp_path: Path) -> None:
    assert find_checkpoints(tmp_path / "none") == []


def found(
    key: str,
    step: int,
    *,
    newest: bool = False,
    milestone: bool = False,
    run: str = "demo",
    written: float = 0,
) -> CheckpointInfo:
    return CheckpointInfo(
        key=f"{key}/checkpoints/step-{step:08d}", path=f"/runs/{key}/{step}", run=run,
        training=f"/runs/{key}", build="", step=step,
        written=written or step, milestone=milestone, newest=newest, made_from={},
    )  # fmt: skip


ONE = [found("a" * 64, 10), found("a" * 64, 20, milestone=True), found("a" * 64, 30, newest=True)]


@pytest.mark.parametrize(
    ("checkpoints", "steps"),
    [
        (("newest",), [30]),
        (("milestones",), [20]),
        (("newest", "milestones"), [30, 20]),
        (("all",), [30, 10, 20]),
    ],
)
def test_which_checkpoints(checkpoints: tuple[str, ...], steps: list[int]) -> None:
    choice = choose(ONE, set(), checkpoints=checkpoints)
    assert [item.step for item in choice.selected] == steps
    assert len(choice.skipped) == 3 - len(steps)


def test_what_was_seen_is_not_new_unless_it_is_asked_for_by_time() -> None:
    seen = {item.key for item in ONE}
    assert choose(ONE, seen).new == ()
    lines = [{"started": 40, "seen": [*seen], "results": []}]
    journal: Any = SimpleNamespace(nights=lambda: lines, evaluated=set)

    def since(moment: float) -> list[int]:
        every = missed.choose(ONE, journal, NightSettings(), missed.NO_SCHEDULE, moment, 50)
        return [item.step for item in every.selected]

    assert (since(15), since(30), since(31)) == ([30, 20], [30], [])


def test_a_night_has_its_fill_and_the_rest_waits() -> None:
    many = [
        *ONE,
        *(
            found(letter * 64, 5, newest=True, run=letter, written=written)
            for letter, written in (("b", 40), ("c", 50))
        ),
    ]
    choice = choose(many, set(), checkpoints=("all",), limit=3)
    assert [item.run for item in choice.selected] == [
        "c",
        "b",
        "demo",
    ]  # the newest of each training first
    assert [item.step for item in choice.waiting] == [10, 20]  # then what has waited longest
    assert choice.skipped == []


def test_labels_can_be_parts_of_names_and_stay() -> None:
    assert label("two words", 10, "a" * 64) == "two_words.10.aaaaaaaa"
    assert WORD.fullmatch(label("é/1", 10, "b" * 64))


def test_since() -> None:
    assert parse_since("36h", 200_000, "UTC") == 200_000 - 36 * 3600
    assert (
        parse_since("2026-11-20", 0, "UTC") - parse_since("2026-11-20", 0, "Europe/Zurich") == 3600
    )
    assert parse_since("2026-11-20T10:00+01:00", 0, "UTC") == parse_since(
        "2026-11-20T09:00", 0, "UTC"
    )
    with pytest.raises(UsageError, match="yesterday"):
        parse_since("yesterday", 0, "UTC")


def test_a_copy_of_a_run_adds_no_candidates(tmp_path: Path) -> None:
    """The same weights twice would widen every interval of the gate and use up the limit."""
    for number, name in enumerate(("copy", "demo")):
        training(tmp_path / name / "pretrain-aaa", "a" * 64, [10, 20], time=2000 - 1000 * number)
    choice = choose(find_checkpoints(tmp_path), set())
    assert [(item.run, item.step) for item in choice.new] == [("demo", 10), ("demo", 20)]
    assert [item.step for item in choice.selected] == [20]
