"""The engine fsdp beside the table of engines: one process, its memory, and weights that do not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cloze.core.errors import DataError
from cloze.model import checkpoint
from cloze.model.families.registry import model_config
from cloze.model.train.engines.fsdp import FSDPEngine
from cloze.model.train.plan.estimates import ComputeOptions, StepCost, approximate_parameters
from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import STILL, config, digests, here, job, run_all
from tests.slices import few

FILES = ("model.safetensors", "training/optimizer.safetensors")


@pytest.mark.parametrize("optimizer", few(["adamw", "muon"], "muon"))
def test_one_process_trains_to_the_same_bits(tmp_path: Path, optimizer: str) -> None:
    """Dropout is on; the second half goes on from a checkpoint of the other engine."""
    dataset = write_dataset(tmp_path / "data")
    settings = config(precision="bf16", optimizer=optimizer)
    usual = here(settings, dataset, tmp_path / "usual", micro_batch=4)
    here(settings, dataset, tmp_path / "found", micro_batch=4, engine="fsdp", stop_at=2)
    here(settings, dataset, tmp_path / "found", micro_batch=4, stop_at=4)
    found = here(settings, dataset, tmp_path / "found", micro_batch=4, engine="fsdp")
    mine, theirs = digests(found.checkpoint), digests(usual.checkpoint)
    assert [mine[file] for file in FILES] == [theirs[file] for file in FILES]


@pytest.mark.parametrize("optimizer", few(["adamw", "lamb", "muon"], "lamb"))
def test_a_rank_may_have_no_row_of_a_parameter(tmp_path: Path, optimizer: str) -> None:
    """Three ranks, and a pair head with two rows: statistics, saves and loading included."""
    dataset = write_dataset(tmp_path / "data", vocab_size=67)
    settings = config(steps=4, optimizer=optimizer, model=STILL, log_every=1)
    usual = here(settings, dataset, tmp_path / "usual", micro_batch=8)
    again = [job(settings, dataset, tmp_path / "three", engine="fsdp", micro_batch=2)] * 2
    run_all(again, 3, [2, None])
    ours, theirs = (lines(tmp_path / name / "metrics.jsonl") for name in ("three", "usual"))
    for name in ("loss", "grad_norm"):
        expected = [line[name] for line in theirs]
        assert [line[name] for line in ours] == pytest.approx(expected, rel=1e-3), name
    found = checkpoint.weights(str(max((tmp_path / "three" / "checkpoints").glob("step-*"))))
    for name, tensor in checkpoint.weights(str(usual.checkpoint)).items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=3e-5)


def test_weights_of_another_model_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_dataset(tmp_path / "data")
    engines = []
    distribute = FSDPEngine._distribute

    def kept(self: FSDPEngine, *args: object) -> None:
        engines.append(self)
        distribute(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(FSDPEngine, "_distribute", kept)
    here(config(steps=1), dataset, tmp_path / "run", engine="fsdp")
    weights = dict(engines[0].weights())
    name = "encoder.layers.0.feed_forward.up.weight"
    for wrong in (
        {**weights, name: weights[name][1:]},
        {key: value for key, value in weights.items() if key != name},
    ):
        with pytest.raises(DataError, match=name):
            engines[0].load_weights(wrong)


def test_its_memory_is_counted() -> None:
    model = model_config("bert-large").model_copy(update={"vocab_size": 30_522})
    weights = 4 * approximate_parameters(model)
    how = ComputeOptions(fsdp=True)

    def state(ranks: int, zero: int = 3, how: ComputeOptions = how) -> float:
        return StepCost.of(model, 128, how, ranks=ranks, zero=zero).memory(0).state

    assert state(8) - state(16) == pytest.approx(4 * weights / 16)
    assert state(8) < 0.7 * state(8, 2) < state(8, 2) < StepCost.of(model, 128).memory(0).state
    offloaded = replace(how, offload=True)
    assert state(8, how=offloaded) == state(16, how=offloaded) < state(16)
