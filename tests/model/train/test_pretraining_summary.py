"""What a training says of itself at its end: the last line of its progress, and its summary."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import Reporter
from cloze.model.data.shards import ShardedRows
from cloze.model.train.stage import STAGE
from tests.model.datasets import write_dataset
from tests.model.train.ranks import config


class Progress(Reporter):
    """Keeps all progress."""

    def __init__(self) -> None:
        self.told: list[tuple[float, float | None, str, dict[str, Any]]] = []

    def progress(
        self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]
    ) -> None:
        self.told.append((done, total, unit, dict(figures)))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "dataset"
    write_dataset(path)
    return path


def pretrain(dataset: Path, out: Path, report: Reporter, **values: Any) -> BuildResult:
    execution = Execution(threads=1, device="cpu", **values.pop("execution", {}))
    settings = config(log_every=1, **values)
    return execute(
        STAGE, settings, {"dataset": str(dataset)}, str(out), execution=execution, report=report
    )


def test_the_end_says_what_was_trained_on_and_what_it_took(dataset: Path, tmp_path: Path) -> None:
    progress, steps, batch = Progress(), 6, 4
    made = pretrain(
        dataset, tmp_path / "a", progress, steps=steps, global_batch=batch, heldout_rows=8,
        milestones=(2, 99), learning_rate=1e-3, execution={"checkpoint_every": 2},
    )  # fmt: skip
    assert progress.told[0] == (
        0, None, "steps", {"step": "reading the dataset, building the model"}
    )  # fmt: skip
    *_, (done, total, unit, memory) = progress.told
    assert (done, total, unit) == (steps, steps, "steps")
    assert memory["memory_bytes"] > 1 << 20
    assert memory["gpu_memory_bytes"] == 0
    summary, rows = made.manifest.summary, len(ShardedRows(str(dataset)))
    expected = {
        "steps": steps, "begun_at": 0, "device": "cpu", "world_size": 1, "precision": "fp32",
        "optimizer": "adamw", "learning_rate": 1e-3, "rows": rows, "skipped_steps": 0,
        "epochs": round(steps * batch / rows, 2), "peak_flops": None, "accumulation": 1,
        "micro_batch": batch, "zero": 0, "compiled": False,
    }  # fmt: skip
    assert {name: summary[name] for name in expected} == expected
    assert made.manifest.rows == steps * batch
    assert made.manifest.tokens == summary["tokens"] > 0
    assert Path(made.artifact, summary["checkpoint"]).is_dir()
    assert {
        int(step): Path(made.artifact, path).is_dir()
        for step, path in summary["milestones"].items()
    } == {2: True}
    assert summary["heldout_loss"] > 0
    assert summary["best_heldout"] is not None
    assert summary["tokens_per_second"] > 0
    assert not summary.keys() & {"dial", "datasets", "milestone_words", "retriever"}
    assert {name: made.manifest.counters.get(f"steps/{name}", 0) for name in ("applied", "skipped")} == {
        "applied": steps, "skipped": 0
    }  # fmt: skip


def test_what_was_not_asked_for_is_not_in_the_summary_and_what_was_is(
    dataset: Path, tmp_path: Path
) -> None:
    values = {"steps": 1, "heldout_rows": 0}
    summary = pretrain(dataset, tmp_path / "a", Progress(), **values).manifest.summary
    assert summary["tokens_per_second"] > 0  # of the only step: the session has none
    assert summary["milestones"] == {}
