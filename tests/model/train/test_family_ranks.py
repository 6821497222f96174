"""Every family over two ranks: the same training as in one process, with whole parameters and with cut ones (ZeRO 3)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from model import checkpoint
from model.families.table import FAMILIES
from model.train.config import PretrainConfig
from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import STILL, config, here, job, run_all
from tests.tiny_models import variants

STAGES = (0, 3)


def settings(family: str) -> PretrainConfig:
    return config(steps=2, clip=100.0, model={**STILL, "family": family, **variants(family)[0]})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("families")
    data = {
        "nsp": write_dataset(root / "nsp", vocab_size=67),
        "sop": write_dataset(root / "sop", vocab_size=67, pair_task="sop"),
    }
    jobs = []
    for family in sorted(FAMILIES):
        dataset = data["sop" if family == "albert" else "nsp"]
        here(settings(family), dataset, root / f"{family}-whole", micro_batch=8)
        jobs += [job(settings(family), dataset, root / f"{family}-zero{zero}", micro_batch=4, zero=zero) for zero in STAGES]
    run_all(jobs, 2)
    return root


@pytest.mark.parametrize("zero", STAGES)
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_family_trains_the_same_over_ranks(root: Path, family: str, zero: int) -> None:
    found = [root / name for name in (f"{family}-whole", f"{family}-zero{zero}")]
    losses = [[line["loss"] for line in lines(path / "metrics.jsonl")] for path in found]
    if family == "electra":  # what the generator draws follows the micro-batch
        assert losses[1] == pytest.approx(losses[0], rel=0.05)
        return
    assert losses[1] == pytest.approx(losses[0], abs=2e-5)
    states = [checkpoint.read_tensors(str(max((path / "checkpoints").glob("step-*")) / "model.safetensors")) for path in found]
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, rtol=0, atol=5e-5)
