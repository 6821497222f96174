"""Phases: training that goes on from a checkpoint of another one, and checkpoints that are kept for
phases to branch from.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from cloze.core.artifacts import artifact
from cloze.core.artifacts.checkpoints import COMPLETE
from cloze.core.errors import DataError, UsageError
from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.execution import Execution
from cloze.model import checkpoint
from cloze.model.train import optimizers
from cloze.model.train.stage import STAGE
from tests.model.datasets import lines, strip_timing, write_dataset
from tests.model.train.ranks import (
    STANDS,
    config,
    digests,
    here,
    job,
    kill_standing,
    stand_still_when,
    standing,
    worker,
)

WHOLE = ("model.safetensors", "training/optimizer.safetensors", "config.json")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("data")
    write_dataset(place / "short", rows=50)
    write_dataset(place / "long", length=40, seed=2)
    write_dataset(place / "longer", length=48, seed=3)
    write_dataset(place / "unpaired", pair_task=None, seed=4)
    return place


def pretrain(
    dataset: Path, out: Path, begin: dict[str, str] | None = None, **values: Any
) -> BuildResult:
    execution = Execution(threads=1, device="cpu", **values.pop("execution", {}))
    inputs = {"dataset": str(dataset), **(begin or {})}
    return execute(STAGE, config(log_every=1, **values), inputs, str(out), execution=execution)


@pytest.fixture(scope="module")
def trunk(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten steps of a schedule of twenty, and what is kept of them."""
    out = tmp_path_factory.mktemp("trunk") / "pretrain"
    pretrain(
        data / "short",
        out,
        steps=10,
        schedule_steps=20,
        milestones=(4, 99),
        execution={"checkpoint_every": 3},
    )
    return out


def state(run: Path, step: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (run / f"checkpoints/step-{step:08d}/training/state.json").read_text()
    )
    return found


def logged(run: Path) -> list[dict[str, Any]]:
    return [strip_timing(line) for line in lines(run / "metrics.jsonl")]


def last(run: Path) -> dict[str, str]:
    """The hashes of what the newest checkpoint holds of model and optimizer."""
    found = digests(max(run.glob("checkpoints/step-*")))
    return {name: found[name] for name in WHOLE}


def test_two_phases_under_one_schedule_are_one_training(
    data: Path, trunk: Path, tmp_path: Path
) -> None:
    """Dropout is on, and the twenty steps go three times round the rows: order, masks and bias
    correction go on.
    """
    straight = pretrain(data / "short", tmp_path / "straight", steps=20, schedule_steps=20)
    phase = pretrain(
        data / "short", tmp_path / "phase", {"continue": str(trunk)}, steps=10, schedule_steps=20
    )
    assert last(tmp_path / "phase") == last(tmp_path / "straight")
    both = [
        {name: value for name, value in line.items() if not name.startswith("heldout_")}
        for run in (trunk, tmp_path / "phase")
        for line in logged(run)
    ]
    alone = [
        {name: value for name, value in line.items() if not name.startswith("heldout_")}
        for line in logged(tmp_path / "straight")
    ]
    assert both == alone
    ours, theirs = state(tmp_path / "phase", 20), state(tmp_path / "straight", 20)
    assert all(
        ours[name] == theirs[name] for name in ("step", "samples", "updates", "tokens", "skipped")
    )
    assert (theirs["samples"], ours["run"]["start_position"]["sample"]) == (160, 80)
    assert (straight.manifest.rows, phase.manifest.rows) == (160, 80)
    assert (
        straight.manifest.tokens
        == artifact.read_manifest(str(trunk)).tokens + phase.manifest.tokens
    )
    assert phase.manifest.counters == {"steps/applied": 10, "steps/skipped": 0}
    assert (phase.manifest.summary["steps"], phase.manifest.summary["begun_at"]) == (20, 10)
    assert phase.manifest.summary["first_loss"] == logged(tmp_path / "phase")[0]["loss"]


def test_a_phase_may_have_another_dropout(data: Path, trunk: Path, tmp_path: Path) -> None:
    begin, out = {"continue": str(trunk)}, tmp_path / "run"
    pretrain(data / "short", out, begin, steps=1, model={"hidden_dropout": 0.3})
    saved = checkpoint.load_metadata(str(max(out.glob("checkpoints/step-*")))).model
    assert (saved.hidden_dropout, saved.attention_dropout) == (0.3, 0.1)


def with_two_checkpoints() -> None:
    """In a rank: it stands still when there are so many."""
    run = Path(os.environ[STANDS]).parent / "killed"
    stand_still_when(lambda: len(list(run.glob(f"checkpoints/step-*/{COMPLETE}"))) == 2)


def test_killed_in_its_middle_a_phase_on_longer_rows_goes_on(
    data: Path, trunk: Path, tmp_path: Path
) -> None:
    settings, begin = config(steps=20, global_batch=6, log_every=1), {"continue": str(trunk)}
    here(settings, str(data / "long"), tmp_path / "straight", more=begin)
    killed = job(
        settings,
        str(data / "long"),
        tmp_path / "killed",
        more=begin,
        threads=1,
        checkpoint_every=4,
        device="cpu",
    )
    processes, _ = worker(killed, **standing(f"{__name__}:with_two_checkpoints", tmp_path))
    kill_standing(processes, tmp_path)
    resumed = here(settings, str(data / "long"), tmp_path / "killed", more=begin)
    assert "resuming from checkpoints/step-000000" in resumed.said("note")
    assert last(tmp_path / "killed") == last(tmp_path / "straight")
    assert logged(tmp_path / "killed") == logged(tmp_path / "straight")
    assert [line["step"] for line in logged(tmp_path / "killed")] == list(range(11, 31))
    found = state(tmp_path / "killed", 30)
    assert (
        found["samples"],
        found["run"]["start_position"]["sample"],
        found["run"]["start_position"]["step"],
    ) == (
        120,
        0,
        10,
    )


def test_a_phase_that_was_begun_does_not_need_its_trunk(
    data: Path, trunk: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "trunk"
    shutil.copytree(trunk, copy)
    settings, begin = config(steps=8, log_every=1), {"continue": str(copy)}
    here(settings, str(data / "short"), tmp_path / "straight", more=begin)
    here(settings, str(data / "short"), tmp_path / "halves", more=begin, stop_at=13)
    shutil.rmtree(copy)
    here(settings, str(data / "short"), tmp_path / "halves", more=begin)
    assert last(tmp_path / "halves") == last(tmp_path / "straight")
    assert logged(tmp_path / "halves") == logged(tmp_path / "straight")


def test_samples_go_on_where_a_phase_has_another_batch(
    data: Path, trunk: Path, tmp_path: Path
) -> None:
    """80 samples were consumed; the next ones are 80 to 84, and not five times ten."""
    pretrain(data / "short", tmp_path / "phase", {"continue": str(trunk)}, steps=3, global_batch=5)
    assert state(tmp_path / "phase", 13)["samples"] == 95
    pretrain(
        data / "short",
        tmp_path / "third",
        {"continue": str(tmp_path / "phase")},
        steps=1,
        global_batch=8,
    )
    assert state(tmp_path / "third", 14)["samples"] == 103


def test_a_decay_branches_from_a_kept_checkpoint(data: Path, trunk: Path, tmp_path: Path) -> None:
    """By default a phase has a schedule of its own; the trunk is as it was. What is left to do is
    reckoned from where it begins.
    """
    before = last(trunk)
    assert sorted(path.name for path in (trunk / "checkpoints").iterdir()) == [
        "step-00000004",
        "step-00000010",
    ]
    manifest = artifact.read_manifest(str(trunk))
    assert manifest.summary["milestones"] == {"4": "checkpoints/step-00000004"}
    assert any(
        entry.path == "checkpoints/step-00000004/model.safetensors" for entry in manifest.files
    )
    assert artifact.verify(str(trunk)).ok
    branch = {"continue": str(trunk / "checkpoints" / "step-00000004")}
    pretrain(data / "short", tmp_path / "branch", branch, steps=4, warmup_steps=0)
    found = logged(tmp_path / "branch")
    assert [line["step"] for line in found] == [5, 6, 7, 8]
    assert [line["learning_rate"] for line in found] == pytest.approx(
        [3e-3, 2.25e-3, 1.5e-3, 0.75e-3]
    )
    assert last(trunk) == before
    run = here(config(steps=2), str(data / "short"), tmp_path / "told", more=branch)
    parts = [("step" in figures, done) for done, figures in run.reports]
    assert parts[0] == (True, 0)  # "step" names a part of its own: rates do not begin with it
    assert {done for named, done in parts if not named} == {4, 5, 6}


def test_a_branch_begins_its_own_log_window(data: Path, trunk: Path, tmp_path: Path) -> None:
    """Step 4 lies within a window of three: its sums are the trunk's, and so are its first loss and
    its best measurement.
    """
    settings = config(steps=10, schedule_steps=20, log_every=3, milestones=(4,), evaluate_every=2)
    here(settings, str(data / "short"), tmp_path / "other", checkpoint_every=3)
    at = "checkpoints/step-00000004"
    assert (
        digests(tmp_path / "other" / at)["model.safetensors"]
        == digests(trunk / at)["model.safetensors"]
    )
    assert state(tmp_path / "other", 4)["best"]["step"] <= 4
    runs = []
    for name, begin in (("a", trunk / at), ("b", tmp_path / "other" / at)):
        here(
            config(steps=2, log_every=1),
            str(data / "long"),
            tmp_path / name,
            more={"continue": str(begin)},
        )
        runs.append(
            (
                logged(tmp_path / name),
                state(tmp_path / name, 6)["first_loss"],
                state(tmp_path / name, 6)["best"],
            )
        )
    assert runs[0] == runs[1]
    assert runs[0][2]["step"] > 4


def test_what_cannot_go_on_is_one_sentence(
    data: Path, trunk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(
        sentence: str, dataset: str = "short", path: str | Path = trunk, **values: Any
    ) -> None:
        begin = {"continue": str(path), **values.pop("begin", {})}
        with pytest.raises((UsageError, DataError), match=sentence):
            pretrain(data / dataset, tmp_path / "refused", begin, steps=4, **values)
        shutil.rmtree(tmp_path / "refused", ignore_errors=True)

    refused("continue .* and checkpoint .* exclude each other", begin={"checkpoint": str(trunk)})
    refused(r"hidden_size \(64\) is not that of the checkpoint", model={"hidden_size": 64})
    refused(r"max_position_embeddings \(40\) is less than the dataset's length \(48\)", "longer")
    refused(
        r"schedule_steps \(12\) ends before step 14, the last of this phase \(4 after step 10\)",
        schedule_steps=12,
    )
    refused(
        r"step-00000008 does not exist; the training keeps those of step 4, 10: .*\(milestones\)",
        path=trunk / "checkpoints" / "step-00000008",
    )
    refused("nothing does not exist", path=tmp_path / "nothing")
    pretrain(data / "unpaired", tmp_path / "unpaired", steps=1)
    refused(
        "has no optimizer state of pooler.dense.weight, which was not trained there",
        path=tmp_path / "unpaired",
    )
    bare = tmp_path / "bare"
    shutil.copytree(
        trunk / "checkpoints" / "step-00000010", bare, ignore=shutil.ignore_patterns("training")
    )
    checkpoint.finalize(str(bare))
    refused(
        "has weights without a training's state; start a new training from them with checkpoint",
        path=bare,
    )
    shutil.copytree(trunk / "checkpoints", tmp_path / "unfinished" / "checkpoints")
    refused(
        "is not finished; wait for it, or name one of its checkpoints", path=tmp_path / "unfinished"
    )
    monkeypatch.setitem(optimizers.OPTIMIZERS, "other", optimizers.OPTIMIZERS["adamw"])
    refused(
        r"optimizer \(other\) is not that of .* \(adamw\), whose state it cannot continue with; "
        r"leave it out",
        optimizer="other",
    )


def test_a_phase_has_the_optimizer_of_its_trunk(data: Path, tmp_path: Path) -> None:
    """Said or not: its state is there, and no other could go on with it. Stopped in its middle,
    too.
    """
    pretrain(data / "short", tmp_path / "trunk", steps=2, optimizer="lamb")
    begin = {"continue": str(tmp_path / "trunk")}
    for name, values in (("said", {"optimizer": "lamb"}), ("left", {})):
        found = pretrain(data / "long", tmp_path / name, begin, steps=3, **values)
        assert found.manifest.summary["optimizer"] == "lamb"
    settings = config(steps=3, log_every=1)
    here(settings, str(data / "long"), tmp_path / "halves", more=begin, stop_at=4)
    here(settings, str(data / "long"), tmp_path / "halves", more=begin)
    assert last(tmp_path / "said") == last(tmp_path / "left") == last(tmp_path / "halves")


@pytest.mark.parametrize("dataset", ["unpaired", "short"])
def test_heads_that_no_objective_trains_are_named(data: Path, dataset: str, tmp_path: Path) -> None:
    """Also by a resumed training and a later phase; training the pair head gives it its weights."""
    expected = ("pair", "pooler") if dataset == "unpaired" else ()
    run = tmp_path / "run"
    pretrain(data / dataset, run, steps=3, execution={"checkpoint_every": 2})
    assert tuple(checkpoint.load(str(run)).untrained) == expected
    after = tmp_path / "after"
    pretrain(data / dataset, after, {"continue": str(run)}, steps=4)
    assert tuple(checkpoint.load(str(after)).untrained) == expected
    paired = tmp_path / "paired"
    pretrain(data / "short", paired, {"checkpoint": str(run)}, steps=1)
    assert tuple(checkpoint.load(str(paired)).untrained) == ()
