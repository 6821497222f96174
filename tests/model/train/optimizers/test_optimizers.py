"""Each optimizer's arithmetic, beside a plain implementation of its paper's in float64, or torch's
own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cloze.model.families.models import new_backbone, new_model
from cloze.model.families.registry import model_config, parse_model
from cloze.model.train.config import PretrainConfig
from cloze.model.train.distributed import single_process_group
from cloze.model.train.optimizers import OPTIMIZERS, optimizer_kind
from cloze.model.train.optimizers.adam import TensorwiseAdam
from cloze.model.train.optimizers.muon import Muon, assign_matrices, newton_schulz
from cloze.model.train.optimizers.parameters import (
    FlatShard,
    TensorExtent,
    _stacked,
    optimizer_states,
    parameter_groups,
    parameter_role,
    set_learning_rate,
    squares,
)
from cloze.model.train.setup import hyperparameters, step_duration
from cloze.model.train.spec.schedules import Schedule, StepDuration
from cloze.model.train.spec.train_spec import TrainingHyperparameters
from tests.model.train.engine_cases import CHANGES
from tests.model.train.ranks import TINY
from tests.tiny_models import TRANSFORMERS, tiny_config

STEPS, RATE, DECAY, BETAS, EPS = 6, 0.02, 0.1, (0.9, 0.98), 1e-6


def _recipe(optimizer: str, **values: Any) -> TrainingHyperparameters:
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


def _group(parameters: list[Tensor], *, matrices: bool, hidden: int = 0) -> dict[str, Any]:
    decay = DECAY if matrices else 0.0
    return {
        "params": parameters,
        "weight_decay": decay,
        "rate": 1.0,
        "matrices": matrices,
        "hidden": hidden,
    }


def _given(*shapes: tuple[int, ...]) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Weights, and the gradients of each step: the fourth is fifty times as large."""
    torch.manual_seed(3)
    weights = [torch.randn(shape) for shape in shapes]
    gradients = [
        [torch.randn(shape) * (50.0 if step == 3 else 1.0) for shape in shapes]
        for step in range(STEPS)
    ]
    return weights, gradients


def _trained(
    optimizer: torch.optim.Optimizer, parameters: list[Tensor], gradients: list[list[Tensor]]
) -> list[Tensor]:
    for number, step in enumerate(gradients):
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        set_learning_rate(optimizer, RATE * (1.0 - number / STEPS))
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
    weights, gradients = _given((7, 5), (3, 4), (5,), (2,))
    found = [weight.clone() for weight in weights]
    groups = [_group(found[:2], matrices=True), _group(found[2:], matrices=False)]
    _trained(optimizer_kind(name).build(groups, _recipe(name)), found, gradients)
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
    weights, gradients = _given((6, 4), (3, 3), (5, 2))
    pieces = [
        TensorExtent(number, 0, start, weights[number].numel())
        for number, start in enumerate((0, 26, 36))
    ]

    def laid(tensors: list[Tensor], filler: float) -> Tensor:
        flat = torch.full((48,), filler)
        for piece, tensor in zip(pieces, tensors, strict=True):
            flat[piece.start : piece.start + piece.length] = tensor.flatten()
        return flat

    rest = _group([torch.zeros(2)], matrices=False)  # which has no gradient
    whole = [weight.clone() for weight in weights]
    _trained(
        optimizer_kind(name).build([_group(whole, matrices=True, hidden=1), rest], _recipe(name)),
        whole,
        gradients,
    )
    flat = laid(weights, 7.0)
    optimizer = optimizer_kind(name).build(
        [_group([flat], matrices=True, hidden=1), rest], _recipe(name)
    )
    assert isinstance(optimizer, TensorwiseAdam | Muon)
    optimizer.shards = {
        flat: FlatShard(tuple(tuple(weight.shape) for weight in weights), tuple(pieces))
    }
    _trained(optimizer, [flat], [[laid(step, 3.0)] for step in gradients])
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


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_muon_is_torchs_muon_and_adamw(precision: str) -> None:
    """Wide, tall and square matrices; a vector and a table by AdamW."""
    shapes = (12, 20), (20, 12), (16, 16), (9,), (30, 8)
    weights, gradients = _given(*shapes)
    found = [weight.clone() for weight in weights]
    groups = [
        _group(found[:3], matrices=True, hidden=1),
        _group(found[3:4], matrices=False),
        _group(found[4:], matrices=True),
    ]
    _trained(
        optimizer_kind("muon").build(groups, _recipe("muon", precision=precision)), found, gradients
    )
    others = [_group(weights[3:4], matrices=False), _group(weights[4:], matrices=True)]
    muon = torch.optim.Muon(
        weights[:3], lr=RATE, weight_decay=DECAY, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    muon.param_groups[0]["rate"] = 1.0
    first = [weight.clone() for weight in weights]
    _trained(muon, weights[:3], [step[:3] for step in gradients])
    _trained(
        optimizer_kind("adamw").build(others, _recipe("adamw")),
        weights[3:],
        [step[3:] for step in gradients],
    )
    for ours, theirs, before in zip(found[:3], weights[:3], first[:3], strict=True):
        assert (
            float((ours - theirs).norm() / (theirs - before).norm()) < 0.02
        )  # theirs is always bf16
    assert torch.equal(found[3], weights[3])
    assert torch.equal(found[4], weights[4])


def test_an_orthogonal_update_has_singular_values_near_one() -> None:
    """DeepSpeed's own Muon is plain SGD at stage 0, and AdamW under zero.Init: their updates are
    not orthogonal.
    """
    model = new_model(
        parse_model({**TINY, "family": "modern", "vocab_size": 67, "local_attention": 8})
    )
    settings = _recipe("muon")
    optimizer = optimizer_kind("muon").build(parameter_groups(model, settings), settings)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    torch.manual_seed(2)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    set_learning_rate(optimizer, RATE)
    optimizer.step()
    for name, parameter in model.named_parameters():
        if parameter_role(name, parameter) != "hidden":
            continue
        parts = 3 if name.endswith("qkv.weight") else 2 if name.endswith("up.weight") else 1
        change = (before[name] * (1 - RATE * DECAY) - parameter.detach()).chunk(
            parts
        )  # each of them is orthogonal
        for part in change:
            values = torch.linalg.svdvals(part / (RATE * 0.2 * max(part.shape) ** 0.5))
            assert float(values[-2]) > 0.6  # of a random square matrix the least one may be near 0
            assert float(values[0]) < 1.3


def test_the_iteration_flattens_what_is_not_rounding() -> None:
    """Singular values over three orders of magnitude come near 1; U and V stay."""
    torch.manual_seed(1)
    (left, _), (right, _) = (
        torch.linalg.qr(torch.randn(24, 24)),
        torch.linalg.qr(torch.randn(40, 24)),
    )
    values = torch.logspace(0, -2.5, 24)
    found = newton_schulz((left @ torch.diag(values / values.norm()) @ right.mT)[None])[0]
    across = left.mT @ found @ right
    assert float((across - torch.diag(across.diagonal())).abs().max()) < 1e-4
    assert float(across.diagonal().min()) > 0.3
    assert float(across.diagonal().max()) < 1.3


def test_the_work_is_shared_out_evenly() -> None:
    shapes = [(64, 64)] * 48 + [(64, 256)] * 12 + [(256, 64)] * 12
    owners = assign_matrices(shapes, 4)
    work = [
        sum(
            min(shape) ** 2 * max(shape)
            for shape, owner in zip(shapes, owners, strict=True)
            if owner == rank
        )
        for rank in range(4)
    ]
    assert max(work) <= 1.1 * min(work)


def test_muon_takes_the_layers_matrices_and_leaves_the_rest_to_adamw() -> None:
    model = new_model(
        parse_model(
            {
                **TINY,
                "family": "electra",
                "vocab_size": 67,
                "embedding_size": 16,
                "generator_size": 0.5,
            }
        )
    )
    settings = _recipe("muon")
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    hidden = {
        names[id(one)]
        for group in parameter_groups(model, settings)
        if group["hidden"]
        for one in group["params"]
    }
    assert {
        name
        for name, parameter in model.named_parameters()
        if ".layers." in name and parameter.ndim == 2
    } == hidden
    assert "generator.encoder.layers.0.attention.query.weight" in hidden
    states = {f"{name}/{key}" for name, _, key in optimizer_states(model, optimizer_kind("muon"))}
    assert {
        "encoder.layers.0.attention.query.weight/momentum",
        "generator.masked_lm.dense.weight/exp_avg_sq",
    } < states
    assert not any(f"{name}/exp_avg" in states for name in hidden)


@pytest.mark.parametrize("family", TRANSFORMERS)
def test_every_family_has_places(family: str) -> None:
    model = new_model(
        parse_model({**TINY, "family": family, "vocab_size": 67, **CHANGES.get(family, {})})
    )
    places = {name: parameter_role(name, parameter) for name, parameter in model.named_parameters()}
    assert places["encoder.embeddings.word.weight"] == "embeddings"
    assert {"embeddings", "hidden", "others"} == set(places.values())
    assert not any(
        parameter.ndim == 1
        for name, parameter in model.named_parameters()
        if places[name] == "hidden"
    )


def test_muon_turns_one_matrix_at_a_time() -> None:
    """Neither a table of two segments nor the four gates of an LSTM together are a matrix."""
    segments = new_model(parse_model({**TINY, "family": "xlnet", "vocab_size": 67}))
    tables = {
        name: parameter_role(name, parameter)
        for name, parameter in segments.named_parameters()
        if name.endswith("attention.segment.weight")
    }
    assert set(tables.values()) == {"embeddings"}
    gates = new_backbone(tiny_config("elmo")).encoder
    found = {
        name.rpartition(".")[2]: _stacked(gates, name)
        for name, _ in gates.named_parameters()
        if "lstm.weight" in name
    }
    assert found == {"weight_ih_l0": 4, "weight_hh_l0": 4, "weight_hr_l0": 1}


def test_places_have_rates_of_their_own() -> None:
    model = new_model(model_config("bert-tiny", vocab_size=50))
    given = PretrainConfig(
        embedding_lr_multiplier=0.5,
        hidden_lr_multiplier=2.0,
        learning_rate=1e-3,
        warmup_steps=0,
        steps=10,
    )
    pace = step_duration(given)
    settings = hyperparameters(given, "fp32", pace)
    rates = {
        id(one): group["rate"]
        for group in parameter_groups(model, settings)
        for one in group["params"]
    }
    for name, parameter in model.named_parameters():
        layer, matrix = ".layers." in name, parameter.ndim > 1
        assert rates[id(parameter)] == (
            0.5 if ".embeddings." in name else 2.0 if layer and matrix else 1.0
        ), name
    assert settings.learning_rates_at(pace.progress_at(5, 0, 0, (0, 0))) == {
        "learning_rate": pytest.approx(5e-4),
        "learning_rate_embeddings": pytest.approx(2.5e-4),
        "learning_rate_hidden": pytest.approx(1e-3),
    }
    usual = PretrainConfig()
    assert hyperparameters(usual, "fp32", step_duration(usual)).learning_rates_at(
        pace.progress_at(0, 0, 0, (0, 0))
    ).keys() == {"learning_rate"}


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
    weights, gradients = _given((7, 5), (4, 6), (5,))
    bad = [torch.full_like(weight, torch.nan) for weight in weights]

    def built(found: list[Tensor]) -> torch.optim.Optimizer:
        groups = [
            _group(found[:1], matrices=True, hidden=int(name == "muon")),
            _group(found[1:2], matrices=True),
            _group(found[2:], matrices=False),
        ]
        return optimizer_kind(name).build(groups, _recipe(name))

    found, expected = ([weight.clone() for weight in weights] for _ in range(2))
    optimizer, plain = built(found), built(expected)
    for number, step in enumerate([bad, *gradients[:2], bad, *gradients[2:]]):
        optimizer.found_inf = torch.tensor(float(step is bad))  # type: ignore[attr-defined]
        before = [one.clone() for one in found] + [
            part.clone() for one in found for part in optimizer.state[one].values()
        ]
        _trained(optimizer, found, [step])
        after = found + [part for one in found for part in optimizer.state[one].values()]
        if step is not bad:
            _trained(plain, expected, [step])
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
    settings = _recipe(name)
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
