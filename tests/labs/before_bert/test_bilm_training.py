"""ELMo is trained by the loop of all families: it learns, resumes with the same bits, and two ranks
train it as one process does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import STAGES, STILL, config, digests, here, job, run_all

MODEL = {
    **STILL,
    "family": "elmo",
    "filters": [[1, 4], [3, 6]],
    "highway_layers": 1,
    "softmax_size": 20,
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_dataset(tmp_path_factory.mktemp("rows") / "dataset", pair_task=None)


def test_it_learns_and_goes_on_with_the_same_bits(dataset: str, tmp_path: Path) -> None:
    settings = config(model=MODEL, steps=40, global_batch=16, learning_rate=5e-2, log_every=1)
    straight = here(settings, dataset, tmp_path / "straight")
    assert "FIRST LOSS" not in straight.said("warning")
    logged = lines(tmp_path / "straight" / "metrics.jsonl")
    losses = [line["loss"] for line in logged if "loss" in line]
    assert sum(losses[-3:]) < sum(losses[:3]) - 1.0
    here(settings, dataset, tmp_path / "stopped", stop_at=13)
    resumed = here(settings, dataset, tmp_path / "stopped")
    weights = [digests(run.checkpoint)["model.safetensors"] for run in (straight, resumed)]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    "names",
    [("zero3",), pytest.param(("torch", "zero1", "fsdp3"), marks=pytest.mark.soak)],
    ids="-".join,
)
@pytest.mark.soak
def test_two_ranks_train_and_resume_as_one_process(
    dataset: str, tmp_path: Path, names: tuple[str, ...]
) -> None:
    settings = config(model=MODEL, steps=4, log_every=1)
    here(settings, dataset, tmp_path / "one", micro_batch=4)
    stages = {name: STAGES.get(name, {}) for name in names}
    straight, stopped = (
        [
            job(settings, dataset, tmp_path / f"{name}-{stage}", micro_batch=4, **execution)
            for stage, execution in stages.items()
        ]
        for name in ("straight", "stopped")
    )
    stops = [None] * len(straight) + [2] * len(stopped) + [None] * len(stopped)
    run_all([*straight, *stopped, *stopped], 2, stops)

    def losses(name: str) -> list[float]:
        return [x["loss"] for x in lines(tmp_path / name / "metrics.jsonl") if "loss" in x]

    def saved(name: str) -> dict[str, str]:
        return digests(max((tmp_path / name).glob("checkpoints/step-*")))

    for stage in stages:
        assert losses(f"straight-{stage}") == pytest.approx(losses("one"), abs=3e-6), stage
        assert saved(f"stopped-{stage}") == saved(f"straight-{stage}"), stage
