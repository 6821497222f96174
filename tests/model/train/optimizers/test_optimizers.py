"""Each optimizer's arithmetic, beside a plain implementation of its paper's in float64, or torch's
own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cloze.model.families.models import new_model
from cloze.model.families.registry import model_config
from cloze.model.train.config import PretrainConfig
from cloze.model.train.distributed import single_process_group
from cloze.model.train.optimizers import OPTIMIZERS, optimizer_kind
from cloze.model.train.optimizers.adam import TensorwiseAdam
from cloze.model.train.optimizers.flat_shards import FlatShard, TensorExtent, squares
from cloze.model.train.optimizers.muon import Muon
from cloze.model.train.optimizers.parameters import (
    optimizer_states,
    parameter_groups,
)
from cloze.model.train.spec.schedules import Schedule, StepDuration
from cloze.model.train.spec.train_spec import TrainingHyperparameters

STEPS, RATE, DECAY, BETAS, EPS = 6, 0.02, 0.1, (0.9, 0.98), 1e-6


def recipe_of(optimizer: str, **values: Any) -> TrainingHyperparameters:
    return TrainingHyperparameters(
        duration=StepDuration(steps=STEPS, span=STEPS),
        learning_rate=RATE,
        schedule=Schedule(),
        seed=1,
        precision=values.pop("precision", "fp32"),
        optimizer=optimizer,
        betas=BETAS,
        eps=EPS,
        weight_decay=DECAY,
        **values,
    )


def group_of(parameters: list[Tensor], *, matrices: bool, hidden: int = 0) -> dict[str, Any]:
    decay = DECAY if matrices else 0.0
    return {
        "params": parameters,
        "weight_decay": decay,
        "rate": 1.0,
        "matrices": matrices,
        "hidden": hidden,
    }


def given_weights(*shapes: tuple[int, ...]) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Weights, and the gradients of each step: the fourth is fifty times as large."""
    torch.manual_seed(3)
    weights = [torch.randn(shape) for shape in shapes]
    gradients = [
        [torch.randn(shape) * (50.0 if step == 3 else 1.0) for shape in shapes]
        for step in range(STEPS)
    ]
    return weights, gradients


def trained_by(
    optimizer: torch.optim.Optimizer, parameters: list[Tensor], gradients: list[list[Tensor]]
) -> list[Tensor]:
    for number, step in enumerate(gradients):
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1.0 - number / STEPS) * group["rate"]
        optimizer.step()
    return parameters


def _plain_lamb(
    weight: Tensor, moments: tuple[Tensor, Tensor], decay: float, ratio: bool, gradient: Tensor
) -> Tensor:
    """Algorithm 2 of You et al. (2020): r + λ w."""
    update = moments[0] / (moments[1].sqrt() + EPS) + decay * weight
    return update * (weight.norm() / update.norm()) if ratio else update


def _plain_stable(
    weight: Tensor, moments: tuple[Tensor, Tensor], decay: float, ratio: bool, gradient: Tensor
) -> Tensor:
    """Algorithm 2 of Wortsman et al. (2023)."""
    clipped = (gradient**2 / moments[1].clamp(min=EPS**2)).mean().sqrt().clamp(min=1.0)
    return (moments[0] / (moments[1].sqrt() + EPS) + decay * weight) / clipped


@pytest.mark.parametrize(
    ("name", "update"), [("lamb", _plain_lamb), ("stable-adamw", _plain_stable)]
)
def test_the_updates_are_those_of_the_paper(name: str, update: Callable[..., Tensor]) -> None:
    weights, gradients = given_weights((7, 5), (3, 4), (5,), (2,))
    found = [weight.clone() for weight in weights]
    groups = [group_of(found[:2], matrices=True), group_of(found[2:], matrices=False)]
    trained_by(optimizer_kind(name).build(groups, recipe_of(name)), found, gradients)
    for number, weight in enumerate(weights):
        expected, mean, square = (
            weight.double(),
            torch.zeros_like(weight).double(),
            torch.zeros_like(weight).double(),
        )
        for step in range(STEPS):
            gradient = gradients[step][number].double()
            mean = BETAS[0] * mean + (1 - BETAS[0]) * gradient
            square = BETAS[1] * square + (1 - BETAS[1]) * gradient**2
            moments = mean / (1 - BETAS[0] ** (step + 1)), square / (1 - BETAS[1] ** (step + 1))
            matrix = number < 2
            change = update(expected, moments, DECAY if matrix else 0.0, matrix, gradient)
            expected = expected - RATE * (1.0 - step / STEPS) * change
        torch.testing.assert_close(found[number].double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["lamb", "stable-adamw", "muon"])
def test_a_cut_parameter_is_updated_like_a_whole_one(name: str) -> None:
    """Three parameters in one flat tensor with padding between them, as ZeRO lays them."""
    single_process_group(torch.device("cpu"))  # that sums are added up in
    weights, gradients = given_weights((6, 4), (3, 3), (5, 2))
    pieces = [
        TensorExtent(number, 0, start, weights[number].numel())
        for number, start in enumerate((0, 26, 36))
    ]

    def laid(tensors: list[Tensor], filler: float) -> Tensor:
        flat = torch.full((48,), filler)
        for piece, tensor in zip(pieces, tensors, strict=True):
            flat[piece.start : piece.start + piece.length] = tensor.flatten()
        return flat

    rest = group_of([torch.zeros(2)], matrices=False)  # which has no gradient
    whole = [weight.clone() for weight in weights]
    trained_by(
        optimizer_kind(name).build(
            [group_of(whole, matrices=True, hidden=1), rest], recipe_of(name)
        ),
        whole,
        gradients,
    )
    flat = laid(weights, 7.0)
    optimizer = optimizer_kind(name).build(
        [group_of([flat], matrices=True, hidden=1), rest], recipe_of(name)
    )
    assert isinstance(optimizer, TensorwiseAdam | Muon)
    optimizer.shards = {
        flat: FlatShard(tuple(tuple(weight.shape) for weight in weights), tuple(pieces))
    }
    trained_by(optimizer, [flat], [[laid(step, 3.0)] for step in gradients])
    inside = laid([torch.ones_like(weight) for weight in weights], 0.0) > 0
    if name == "muon":  # a whole matrix' norm is not added up piece by piece
        torch.testing.assert_close(flat[inside], laid(whole, 7.0)[inside], rtol=1e-5, atol=1e-6)
    else:
        assert torch.equal(flat, laid(whole, 7.0))


def test_a_norm_is_exact_where_a_tensor_is_large() -> None:
    """torch's own, on a CPU, is off by .1 to .7 % for a word table: a trust ratio would depend on
    where ZeRO cuts.
    """
    tensor = torch.full((30_000 * 512,), 0.02)
    exact = float(tensor.double().square().sum())
    assert float(squares([tensor])) == pytest.approx(exact, rel=3e-6)
    assert float(tensor.norm().square()) != pytest.approx(exact, rel=1e-4)


def test_lambs_rate_is_its_paper_s_and_higher_in_fewer_steps() -> None:
    def rate(before: int = 0, **values: Any) -> float:
        return PretrainConfig(optimizer="lamb", **values).peak_learning_rate(before)

    for batch in (512, 4096, 32_768):  # Table 4: the same samples in any batch
        samples = 32_768 * 15_625
        for length in (
            {"steps": samples // batch},
            {"steps": 9, "schedule_steps": samples // batch},
            {"max_time": "10m"},
        ):
            assert rate(global_batch=batch, **length) == pytest.approx(
                5e-3 * (batch / 32_768) ** 0.5
            ), length
    assert rate(global_batch=128, steps=2_500) == pytest.approx(5e-3 * 2.5)
    assert rate(500, global_batch=128, steps=2_000) == rate(
        global_batch=128, steps=2_500
    )  # a phase's count from the first's
    assert rate(global_batch=128, steps=20) == pytest.approx(0.02)
    assert rate(learning_rate=1e-3) == 1e-3


def test_what_is_said_is_the_fingerprint_not_how() -> None:
    """AdamW said or not is one training."""
    assert (
        PretrainConfig(optimizer="adamw").fingerprint_fields()
        == PretrainConfig().fingerprint_fields()
    )
    assert PretrainConfig(optimizer="lamb").fingerprint_fields() == {"optimizer": "lamb"}
    assert PretrainConfig(optimizer="lamb", learning_rate=1e-3).fingerprint_fields() == {
        "optimizer": "lamb",
        "learning_rate": 1e-3,
    }


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_device_can_leave_a_step_out_by_itself(name: str) -> None:
    """The first one, and one between others: weights and states stay bit by bit, and the others are
    what they are without it.
    """
    weights, gradients = given_weights((7, 5), (4, 6), (5,))
    bad = [torch.full_like(weight, torch.nan) for weight in weights]

    def built(found: list[Tensor]) -> torch.optim.Optimizer:
        groups = [
            group_of(found[:1], matrices=True, hidden=int(name == "muon")),
            group_of(found[1:2], matrices=True),
            group_of(found[2:], matrices=False),
        ]
        return optimizer_kind(name).build(groups, recipe_of(name))

    found, expected = ([weight.clone() for weight in weights] for _ in range(2))
    optimizer, plain = built(found), built(expected)
    for number, step in enumerate([bad, *gradients[:2], bad, *gradients[2:]]):
        optimizer.found_inf = torch.tensor(float(step is bad))  # type: ignore[attr-defined]
        before = [one.clone() for one in found] + [
            part.clone() for one in found for part in optimizer.state[one].values()
        ]
        trained_by(optimizer, found, [step])
        after = found + [part for one in found for part in optimizer.state[one].values()]
        if step is not bad:
            trained_by(plain, expected, [step])
        elif number == 0:
            assert all(part.isfinite().all() for part in after)
            assert [float(optimizer.state[one]["step"]) for one in found] == [0.0] * 3
            assert all(map(torch.equal, weights, found))
        else:
            assert all(map(torch.equal, before, after))
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_table_of_states_is_what_the_optimizer_holds(name: str) -> None:
    """Of every parameter, whatever its place: else a checkpoint would lose some."""
    model = new_model(model_config("bert-tiny", vocab_size=50))
    settings = recipe_of(name)
    optimizer = optimizer_kind(name).build(parameter_groups(model, settings), settings)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    held = {
        f"{parameter}/{key}"
        for parameter, tensor in model.named_parameters()
        for key, value in optimizer.state[tensor].items()
        if value.shape == tensor.shape
    }
    assert held == {
        f"{parameter}/{key}" for parameter, _, key in optimizer_states(model, optimizer_kind(name))
    }
