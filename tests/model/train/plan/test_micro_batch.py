"""`--micro-batch auto`: what fits is found, all ranks take the same, and training comes to the
same.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloze.core.errors import ClozeError
from cloze.core.stages.execution import Execution
from cloze.model.train.plan import micro_batch
from cloze.model.train.plan.micro_batch import FILE, extrapolate_rows
from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import STILL, config, here, job, run_all

GB = 1e9


def memory(whole: float, fixed: float, a_row: float, tried: list[int]):  # type: ignore[no-untyped-def]
    """A device that has `whole` bytes, of which so many rows take `fixed` and `a_row` each."""

    def peak(rows: int) -> float | None:
        tried.append(rows)
        found = fixed + a_row * rows
        return None if found > whole else found

    return peak


@pytest.mark.parametrize(
    ("room", "fixed", "most", "wanted"),
    [
        (72, 10, 512, 56),  # 62 rows, and a multiple of 8
        (72, 10, 40, 40),  # all of the step's rows
        (15.5, 10, 512, 5),
        (72, 71.5, 512, 0),
        (72, 70.5, 512, 1),
    ],
)
def test_rows_are_doubled_until_memory_is_out_and_what_is_left_is_worked_out(
    room: float, fixed: float, most: int, wanted: int
) -> None:
    tried: list[int] = []
    assert extrapolate_rows(memory(80 * GB, fixed * GB, GB, tried), room * GB, most) == wanted
    assert tried == sorted(set(tried))
    assert len(tried) <= 11


def test_auto_is_found_written_down_and_comes_to_the_same_weights(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    settings = config(model=STILL, steps=3)
    auto = here(settings, dataset, tmp_path / "auto", micro_batch="auto")
    small = here(settings, dataset, tmp_path / "small", micro_batch=2)
    assert auto.outcome is not None
    assert auto.outcome.summary["micro_batch"] == 8, "all of the batch fits this machine"
    assert "8 rows of 32 tokens fit at once" in auto.said("note")
    assert json.loads((tmp_path / "auto" / FILE).read_text())["micro_batch"] == 8
    found, wanted = (lines(Path(run.build.path) / "metrics.jsonl") for run in (auto, small))
    assert [line["loss"] for line in found] == pytest.approx(
        [line["loss"] for line in wanted], rel=1e-5
    )
    assert [line["grad_norm"] for line in found] == pytest.approx(
        [line["grad_norm"] for line in wanted], rel=1e-4
    )


def test_trying_leaves_the_training_as_it_would_be_without(tmp_path: Path) -> None:
    """Dropout and all: the random numbers of the training are its own."""
    dataset = write_dataset(tmp_path / "data")
    auto = here(config(steps=3), dataset, tmp_path / "auto", micro_batch="auto")
    fixed = here(config(steps=3), dataset, tmp_path / "fixed", micro_batch=8)
    weights = "model.safetensors"
    assert (auto.checkpoint / weights).read_bytes() == (fixed.checkpoint / weights).read_bytes()


def test_one_that_is_resumed_cuts_its_batch_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or its dropout would be drawn otherwise."""
    dataset = write_dataset(tmp_path / "data")
    monkeypatch.setattr(micro_batch, "_on_cpu", lambda *_: 4)
    here(config(steps=4), dataset, tmp_path / "run", micro_batch="auto", stop_at=2)
    monkeypatch.setattr(micro_batch, "_on_cpu", lambda *_: 8)
    resumed = here(config(steps=4), dataset, tmp_path / "run", micro_batch="auto")
    assert resumed.outcome is not None
    assert resumed.outcome.summary["micro_batch"] == 4
    straight = here(config(steps=4), dataset, tmp_path / "straight", micro_batch=4)
    assert (resumed.checkpoint / "model.safetensors").read_bytes() == (
        straight.checkpoint / "model.safetensors"
    ).read_bytes()


def test_where_not_one_row_fits_it_says_what_would_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_dataset(tmp_path / "data")
    monkeypatch.setattr(micro_batch.processes, "free_memory", lambda of_machine: 0.0)
    with pytest.raises(
        ClozeError, match="not one row of 32 tokens fits .* --activation-checkpointing"
    ):
        here(config(), dataset, tmp_path / "run", micro_batch="auto")


def test_ranks_agree_on_what_fits(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    run_all(
        [job(config(steps=2), dataset, tmp_path / "run", micro_batch="auto", zero=1, threads=1)], 2
    )
    assert json.loads((tmp_path / "run" / FILE).read_text())["micro_batch"] == 4
    assert [line["step"] for line in lines(tmp_path / "run" / "metrics.jsonl")][-1] == 2


@pytest.mark.parametrize("bad", [0, -1, "all"])
def test_a_micro_batch_is_a_number_or_auto(bad: object) -> None:
    assert Execution(micro_batch="auto").micro_batch == "auto"
    with pytest.raises(ValueError, match="micro_batch"):
        Execution.model_validate({"micro_batch": bad})
