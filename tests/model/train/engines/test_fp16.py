"""`--precision fp16`: the loss is scaled; a gradient that overflows is skipped and told, and no
alarm; all of it resumes exactly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cloze.core.errors import ClozeError
from cloze.model.train import device_scalars
from cloze.model.train.device_scalars import LossScale
from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import STAGES, config, digests, here, job, run_all

SETTINGS: dict[str, Any] = {"precision": "fp16", "steps": 8, "log_every": 2, "max_skipped": 3}


def state(checkpoint: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((checkpoint / "training" / "state.json").read_text())
    return found


def test_the_scale_halves_at_an_overflow_and_doubles_after_many_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_scalars, "GROWTH_STEPS", 3)
    scale, norms = LossScale(torch.device("cpu")), iter([1.0, torch.inf, 1.0, torch.nan, 1.0, 1.0])
    found = []
    for norm in norms:
        scale.update(torch.tensor(norm))
        found.append(float(scale.value) / device_scalars.FIRST)
    assert found == [1, 0.5, 0.5, 0.25, 0.25, 0.25]
    other = LossScale(torch.device("cpu"))
    other.restore(scale.state())
    for one in (scale, other):
        one.update(torch.tensor(1.0))
        assert one.state() == [device_scalars.FIRST / 2, 0.0]
    for _ in range(40):
        scale.update(torch.tensor(torch.nan))
    assert float(scale.value) == device_scalars.LEAST


def test_overflows_are_skipped_told_and_no_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_dataset(tmp_path / "data")
    monkeypatch.setattr(device_scalars, "FIRST", 2.0**20)
    settings = config(**{**SETTINGS, "steps": 12, "max_skipped": 1})
    found = here(settings, dataset, tmp_path / "run", micro_batch=4)
    said = state(found.checkpoint)
    assert 12 > said["overflows"] > 1, "more in a row than would be an alarm"
    assert said["skipped"] == said["overflows"]
    assert said["skipped_in_a_row"] == 0
    assert said["updates"] == 12 - said["overflows"]
    assert said["loss_scale"][0] == 2.0 ** (20 - said["overflows"])
    assert lines(tmp_path / "run" / "metrics.jsonl")[-1]["loss_scale"] == said["loss_scale"][0]
    assert (
        "step 1 was skipped: its gradient overflows fp16 at a loss scale of 1,048,576, which "
        "is halved"
    ) in found.said("note")
    assert not (tmp_path / "run" / "skipped.jsonl").exists()
    here(settings, dataset, tmp_path / "halves", micro_batch=4, stop_at=2)
    assert digests(
        here(settings, dataset, tmp_path / "halves", micro_batch=4).checkpoint
    ) == digests(found.checkpoint)


def test_a_gradient_that_is_not_finite_at_the_least_scale_is_an_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_dataset(tmp_path / "data")
    monkeypatch.setattr(device_scalars, "FIRST", 1.0)
    wild = config(
        **{**SETTINGS, "steps": 30, "grad_clip": 0, "warmup_steps": 0}, learning_rate=1e38
    )
    with pytest.raises(ClozeError, match="3 steps in a row up to step"):
        here(wild, dataset, tmp_path / "run", micro_batch=4)


@pytest.mark.parametrize(
    "names",
    [("zero1", "fsdp3"), pytest.param(("zero0", "zero3"), marks=pytest.mark.soak)],
    ids="-".join,
)
def test_every_engine_scales_alike(tmp_path: Path, names: tuple[str, ...]) -> None:
    dataset = write_dataset(tmp_path / "data", vocab_size=67)
    settings = config(**SETTINGS)
    jobs = [
        job(settings, dataset, tmp_path / name, micro_batch=2, threads=1, **STAGES[name])
        for name in names
    ]
    changing = [
        job(settings, dataset, tmp_path / "changing", micro_batch=2, threads=1, **STAGES[name])
        for name in ("zero2", "fsdp2")
    ]
    run_all([*jobs, *changing], 2, [*([None] * len(jobs)), 4, None])
    wide = here(
        config(**{**SETTINGS, "precision": "fp32"}), dataset, tmp_path / "fp32", micro_batch=2
    )
    wanted = [line["loss"] for line in wide.metrics]
    for name in (*names, "changing"):
        found = lines(tmp_path / name / "metrics.jsonl")
        assert [line["loss"] for line in found] == pytest.approx(wanted, abs=0.03), name
        assert {line["loss_scale"] for line in found} == {device_scalars.FIRST}
