"""`--activation-checkpointing` in a training: the same losses with every engine and ZeRO stage, and
to the bit in one process.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import STAGES, config, here, job, run_all

DEEPER = {"num_hidden_layers": 4}


def test_one_process_trains_to_the_same_bits(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    settings = config(model=DEEPER, steps=3)
    usual = here(settings, dataset, tmp_path / "usual", micro_batch=4)
    again = here(
        settings, dataset, tmp_path / "again", micro_batch=4, activation_checkpointing=True
    )
    found, wanted = (run.checkpoint / "model.safetensors" for run in (again, usual))
    assert found.read_bytes() == wanted.read_bytes()


@pytest.mark.parametrize(
    "stages",
    [
        ("fsdp3", "zero3"),
        pytest.param(("zero0", "zero1", "zero2", "fsdp2"), marks=pytest.mark.soak),
    ],
    ids="-".join,
)
@pytest.mark.soak
def test_every_zero_stage_trains_alike(tmp_path: Path, stages: tuple[str, ...]) -> None:
    dataset = write_dataset(tmp_path / "data")
    settings = config(model=DEEPER, steps=3)
    jobs = {
        stage: job(
            settings,
            dataset,
            tmp_path / stage,
            **STAGES[stage],
            micro_batch=2,
            threads=1,
            activation_checkpointing=True,
        )
        for stage in stages
    }
    usual = job(settings, dataset, tmp_path / "usual", zero=0, micro_batch=2, threads=1)
    run_all([usual, *jobs.values()], 2)
    wanted = [line["loss"] for line in lines(tmp_path / "usual" / "metrics.jsonl")]
    for stage in jobs:
        found = [line["loss"] for line in lines(tmp_path / stage / "metrics.jsonl")]
        assert found == pytest.approx(wanted, rel=1e-5), stage
