"""ELMo is trained by the loop of all families: it learns, and resumes with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import STILL, config, digests, here

MODEL = {**STILL, "family": "elmo", "filters": [[1, 4], [3, 6]], "highway_layers": 1}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_dataset(tmp_path_factory.mktemp("rows") / "dataset", pair_task=None)


def test_it_learns_and_goes_on_with_the_same_bits(dataset: str, tmp_path: Path) -> None:
    settings = config(model=MODEL, steps=80, global_batch=16, learning_rate=3e-2, log_every=1)
    straight = here(settings, dataset, tmp_path / "straight")
    logged = lines(tmp_path / "straight" / "metrics.jsonl")
    losses = [line["loss"] for line in logged if "loss" in line]
    assert sum(losses[-3:]) < sum(losses[:3]) - 1.0
    here(settings, dataset, tmp_path / "stopped", stop_at=13)
    resumed = here(settings, dataset, tmp_path / "stopped")
    weights = [digests(run.checkpoint)["model.safetensors"] for run in (straight, resumed)]
    assert weights[0] == weights[1]
