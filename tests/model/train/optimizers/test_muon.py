"""Muon: torch's where it takes a matrix, AdamW elsewhere; which it takes, and who computes them."""

from __future__ import annotations

import pytest
import torch

from cloze.model.families.models import new_backbone, new_model
from cloze.model.families.registry import model_config, parse_model
from cloze.model.train.config import PretrainConfig
from cloze.model.train.optimizers import optimizer_kind
from cloze.model.train.optimizers.muon import assign_matrices, newton_schulz
from cloze.model.train.optimizers.parameters import (
    _stacked,
    optimizer_states,
    parameter_groups,
    parameter_role,
)
from cloze.model.train.setup import hyperparameters, step_duration
from tests.model.train.engine_cases import CHANGES
from tests.model.train.optimizers.test_optimizers import (
    DECAY,
    RATE,
    given_weights,
    group_of,
    recipe_of,
    trained_by,
)
from tests.model.train.ranks import TINY
from tests.tiny_models import TRANSFORMERS, tiny_config


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_muon_is_torchs_muon_and_adamw(precision: str) -> None:
    """Wide, tall and square matrices; a vector and a table by AdamW."""
    shapes = (12, 20), (20, 12), (16, 16), (9,), (30, 8)
    weights, gradients = given_weights(*shapes)
    found = [weight.clone() for weight in weights]
    groups = [
        group_of(found[:3], matrices=True, hidden=1),
        group_of(found[3:4], matrices=False),
        group_of(found[4:], matrices=True),
    ]
    trained_by(
        optimizer_kind("muon").build(groups, recipe_of("muon", precision=precision)),
        found,
        gradients,
    )
    others = [group_of(weights[3:4], matrices=False), group_of(weights[4:], matrices=True)]
    muon = torch.optim.Muon(
        weights[:3], lr=RATE, weight_decay=DECAY, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    muon.param_groups[0]["rate"] = 1.0
    first = [weight.clone() for weight in weights]
    trained_by(muon, weights[:3], [step[:3] for step in gradients])
    trained_by(
        optimizer_kind("adamw").build(others, recipe_of("adamw")),
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
    settings = recipe_of("muon")
    optimizer = optimizer_kind("muon").build(parameter_groups(model, settings), settings)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    torch.manual_seed(2)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    for group in optimizer.param_groups:
        group["lr"] = RATE * group["rate"]
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
    settings = recipe_of("muon")
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
