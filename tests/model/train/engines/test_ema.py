"""The average of the weights while training: what it is, at every engine, through resumes on other
ranks, and what it costs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cloze.model import checkpoint
from cloze.model.families.registry import model_config
from cloze.model.tensors import LazyTensors
from cloze.model.train.optimizers.ema import WeightEMA, ema_decay_at
from cloze.model.train.plan.estimates import (
    HEAP,
    ComputeOptions,
    approximate_parameters,
    training_memory,
)
from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import STAGES, STILL, config, digests, here, job, run_all

DECAY = 0.8
EVERY = config(steps=6, log_every=1, ema=DECAY, milestones=(1, 2, 3, 4, 5), evaluate_every=2)
PLAIN = EVERY.model_copy(update={"ema": None})
TRAINED = "weights.safetensors"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset", vocab_size=67)


@pytest.fixture(scope="module")
def averaged(dataset: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("averaged") / "pretrain"
    here(EVERY, dataset, out, micro_batch=4)
    return out


@pytest.fixture(scope="module")
def plain(dataset: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("plain") / "pretrain"
    here(PLAIN, dataset, out, micro_batch=4)
    return out


def at(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}"


def model(run: Path, step: int) -> dict[str, torch.Tensor]:
    return dict(checkpoint.weights(str(at(run, step))))


def trained(run: Path, step: int) -> dict[str, torch.Tensor]:
    return dict(LazyTensors.open(str(at(run, step) / "training"), TRAINED))


def test_training_is_the_same_with_and_without(averaged: Path, plain: Path) -> None:
    """Dropout is on, and the average is measured on the way."""
    for step in (1, 4, 6):
        ours, theirs = trained(averaged, step), model(plain, step)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert (
        digests(at(averaged, 6))["training/optimizer.safetensors"]
        == digests(at(plain, 6))["training/optimizer.safetensors"]
    )
    losses = [[line["loss"] for line in lines(run / "metrics.jsonl")] for run in (averaged, plain)]
    assert losses[0] == losses[1]
    assert not (at(plain, 6) / "training" / TRAINED).exists()


def test_the_model_is_the_average_of_the_weights_of_all_steps(averaged: Path) -> None:
    """Taken from the kept steps, by the definition: the first checkpoint's average comes from the
    weights before it.
    """
    found = model(averaged, 1)
    for step in range(2, 7):
        now, decay = trained(averaged, step), ema_decay_at(DECAY, step - 1)
        found = {name: decay * found[name] + (1 - decay) * now[name] for name in found}
        for name, tensor in model(averaged, step).items():
            torch.testing.assert_close(tensor, found[name], rtol=1e-5, atol=1e-7)
    assert any(
        not torch.equal(model(averaged, 6)[name], tensor)
        for name, tensor in trained(averaged, 6).items()
    )


def test_its_held_out_loss_is_told_beside_the_other(averaged: Path, plain: Path) -> None:
    measured = [line for line in lines(averaged / "metrics.jsonl") if "heldout_loss" in line]
    assert [line["step"] for line in measured] == [1, 2, 3, 4, 5, 6]
    without = [
        line["heldout_loss"] for line in lines(plain / "metrics.jsonl") if "heldout_loss" in line
    ]
    assert [line["heldout_loss"] for line in measured] == without
    assert all(line["heldout_ema_loss"] != line["heldout_loss"] for line in measured[1:])
    assert all(
        {"heldout_ema_accuracy", "heldout_ema_perplexity", "heldout_ema_nsp_loss"} <= line.keys()
        for line in measured
    )


def test_stopped_and_resumed_it_is_the_same_average(
    dataset: str, averaged: Path, tmp_path: Path
) -> None:
    here(EVERY, dataset, tmp_path / "halves", micro_batch=4, stop_at=2)
    here(EVERY, dataset, tmp_path / "halves", micro_batch=4)
    assert digests(at(tmp_path / "halves", 6)) | {"training/state.json": ""} == digests(
        at(averaged, 6)
    ) | {"training/state.json": ""}


@pytest.mark.parametrize(
    ("straight", "first_stages", "over_stages"),
    [
        (("zero0", "zero2"), ("zero3",), ("fsdp3",)),
        pytest.param(
            tuple(STAGES), ("zero1", "zero3", "fsdp3"), ("zero3", "fsdp3"),
            marks=pytest.mark.soak,
        ),
    ],
    ids=["some", "all"],
)  # fmt: skip
def test_every_engine_averages_alike_and_goes_on_from_any_other(
    dataset: str,
    tmp_path: Path,
    straight: tuple[str, ...],
    first_stages: tuple[str, ...],
    over_stages: tuple[str, ...],
) -> None:
    """ZeRO 1 to 3 and fsdp average each rank's part; half-way another engine on another number of ranks
    takes over.
    """
    settings = config(
        steps=4, log_every=1, ema=DECAY, grad_clip=100.0, model=STILL, milestones=(2,)
    )
    here(settings, dataset, tmp_path / "one", micro_batch=8)
    for stage in over_stages:
        here(settings, dataset, tmp_path / f"one-then-{stage}", micro_batch=8, stop_at=2)
    stages = [
        job(settings, dataset, tmp_path / stage, micro_batch=2, **STAGES[stage])
        for stage in straight
    ]
    first = [
        job(settings, dataset, tmp_path / f"{stage}-then-one", micro_batch=2, **STAGES[stage])
        for stage in first_stages
    ]
    over = [
        job(settings, dataset, tmp_path / f"one-then-{stage}", micro_batch=2, **STAGES[stage])
        for stage in over_stages
    ]
    stops = [*([None] * len(stages)), *([2] * len(first)), *([None] * len(over))]
    run_all([*stages, *first, *over], 2, stops)
    for stage in first_stages:
        here(settings, dataset, tmp_path / f"{stage}-then-one", micro_batch=8)
    reference, weights = model(tmp_path / "one", 4), trained(tmp_path / "one", 4)
    changed = [f"{stage}-then-one" for stage in first_stages]
    for name in (*straight, *changed, *(f"one-then-{stage}" for stage in over_stages)):
        ours, raw = model(tmp_path / name, 4), trained(tmp_path / name, 4)
        assert ours.keys() == reference.keys()
        for key in reference:
            torch.testing.assert_close(
                ours[key], reference[key], rtol=0, atol=1e-5, msg=f"{name} {key}"
            )
            torch.testing.assert_close(
                raw[key], weights[key], rtol=0, atol=1e-5, msg=f"{name} {key}"
            )
        heldout = [
            line["heldout_ema_loss"]
            for line in lines(tmp_path / name / "metrics.jsonl")
            if "heldout_ema_loss" in line
        ]
        theirs = [
            line["heldout_ema_loss"]
            for line in lines(tmp_path / "one" / "metrics.jsonl")
            if "heldout_ema_loss" in line
        ]
        assert heldout == pytest.approx(theirs, abs=1e-5)


def test_a_skipped_step_leaves_the_average_alone() -> None:
    weights = [torch.ones(3)]
    average = WeightEMA(weights)
    weights[0].fill_(2.0)
    average.update(0.5, torch.zeros(()))
    assert average.values[0].tolist() == [1.0, 1.0, 1.0]
    average.update(0.5, torch.ones(()))
    assert average.values[0].tolist() == [1.5, 1.5, 1.5]
    average.swap()
    assert (weights[0].tolist(), average.values[0].tolist()) == ([1.5] * 3, [2.0] * 3)


def test_a_phase_goes_on_with_the_average_or_begins_one(
    dataset: str, averaged: Path, plain: Path, tmp_path: Path
) -> None:
    one = config(steps=1, log_every=1, ema=DECAY)
    here(one, dataset, tmp_path / "on", more={"continue": str(at(averaged, 6))})
    here(one, dataset, tmp_path / "begun", more={"continue": str(at(plain, 6))})
    for name, before in (("on", model(averaged, 6)), ("begun", model(plain, 6))):
        now, decay = trained(tmp_path / name, 7), ema_decay_at(DECAY, 6)
        for key, tensor in model(tmp_path / name, 7).items():
            torch.testing.assert_close(
                tensor, decay * before[key] + (1 - decay) * now[key], rtol=1e-5, atol=1e-7
            )
    here(
        config(steps=1, log_every=1),
        dataset,
        tmp_path / "off",
        more={"continue": str(at(averaged, 6))},
    )
    assert all(
        torch.equal(trained(tmp_path / "begun", 7)[key], value)
        for key, value in model(tmp_path / "off", 7).items()
    )


def test_its_memory_is_counted() -> None:
    bert, plain = (
        model_config("bert-base").model_copy(update={"vocab_size": 30_522}),
        ComputeOptions(device="cpu", bf16=False),
    )
    weights = 4 * approximate_parameters(bert)
    for ranks, zero, share in ((1, 0, 1.0), (2, 0, 1.0), (2, 1, 0.5), (4, 3, 0.25)):
        before = training_memory(bert, 128, 8, ranks=ranks, zero=zero, how=plain)
        after = training_memory(
            bert, 128, 8, ranks=ranks, zero=zero, how=replace(plain, averaging=True)
        )
        assert after.state - before.state == pytest.approx(HEAP * share * weights)
        assert after.saving - before.saving == pytest.approx(HEAP * weights / ranks)


def test_weights_that_travel_in_bf16_are_averaged_in_fp32(dataset: str, tmp_path: Path) -> None:
    settings = config(
        steps=3,
        log_every=1,
        ema=DECAY,
        precision="bf16",
        grad_reduce_dtype="bf16",
        milestones=(1, 2),
    )
    here(settings, dataset, tmp_path / "run")
    here(settings, dataset, tmp_path / "halves", stop_at=2)
    here(settings, dataset, tmp_path / "halves")
    now, decay = trained(tmp_path / "run", 3), ema_decay_at(DECAY, 2)
    for name, tensor in model(tmp_path / "run", 3).items():
        torch.testing.assert_close(
            tensor,
            decay * model(tmp_path / "run", 2)[name] + (1 - decay) * now[name],
            rtol=1e-5,
            atol=1e-7,
        )
        assert torch.equal(tensor, model(tmp_path / "halves", 3)[name])
