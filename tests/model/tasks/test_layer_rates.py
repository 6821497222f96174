"""Rates by layer, layers that open one after the other, and weights that no sample reaches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cloze.model.families.models import new_backbone
from cloze.model.tasks.finetune.fit import spread
from cloze.model.train.optimizers.parameters import (
    freeze_unused,
    gradual_unfreezing,
    layerwise_lr_multipliers,
)
from cloze.model.train.spec.interfaces import TrainModule
from tests.tiny_models import TRANSFORMERS, tiny_config


def test_rates_are_electra_s() -> None:
    """google-research/electra, model/optimization.py, `_get_layer_lrs`: decay ** (layers + 2 -
    depth).
    """
    names = [f"encoder.layers.{layer}.attention.query.weight" for layer in range(12)]
    rate = layerwise_lr_multipliers(
        [*names, "encoder.embeddings.word.weight", "pooler.dense.weight", "classifier.weight"], 0.8
    )
    assert [rate(name) for name in names] == [
        pytest.approx(0.8 ** (12 + 2 - (layer + 1))) for layer in range(12)
    ]
    assert rate("encoder.embeddings.word.weight") == pytest.approx(0.8**14)
    assert (
        rate("pooler.dense.weight"),
        rate("classifier.weight"),
        rate("heads.mrpc.classifier.bias"),
    ) == (0.8, 1.0, 1.0)


@pytest.mark.parametrize("family", [*TRANSFORMERS, "elmo"])
def test_in_every_family_rates_rise_from_the_embeddings_to_the_head(family: str) -> None:
    names = [
        f"encoder.{name}"
        for name, _ in new_backbone(tiny_config(family)).encoder.named_parameters()
    ]
    rate = layerwise_lr_multipliers(names, 0.5)
    lowest = {rate(name) for name in names if ".embeddings." in name}
    others = {rate(name) for name in names if ".embeddings." not in name}
    assert len(lowest) == 1
    assert max(lowest) < min(others) <= max(others) <= 0.5 < rate("classifier.weight")


@pytest.mark.parametrize("family", ["t5", "bart", "transformer"])
def test_a_decoder_and_a_second_encoder_count_their_own_layers(family: str) -> None:
    """Of 3 and 5 layers, with a retriever of 2: each stack's top has one rate, and its first step."""
    model = tiny_config(family, num_hidden_layers=3, num_decoder_layers=5)
    names = [f"encoder.{name}" for name, _ in new_backbone(model).encoder.named_parameters()]
    second = new_backbone(tiny_config(num_hidden_layers=2)).encoder.named_parameters()
    names += [f"retriever.encoder.{name}" for name, _ in second] + ["retriever.pooler.dense.weight"]
    rate, first = layerwise_lr_multipliers(names, 0.5), gradual_unfreezing(names, 1, 10)
    stacks = {"encoder.layers": 3, "encoder.decoder.layers": 5, "retriever.encoder.layers": 2}
    for stack, count in stacks.items():
        for layer in range(count):
            own = [name for name in names if name.startswith(f"{stack}.{layer}.")]
            assert own
            assert {rate(name) for name in own} == {0.5 ** (count + 1 - layer)}
            assert {first(name) for name in own} == {10 * (count - layer)}
    tables = [name for name in names if ".embeddings." in name]
    assert {rate(name) for name in tables if name.startswith("encoder.")} == {0.5**7}
    assert {rate(name) for name in tables if name.startswith("retriever.")} == {0.5**4}
    assert {first(name) for name in tables if name.startswith("retriever.")} == {30}
    assert (rate("retriever.pooler.dense.weight"), first("retriever.pooler.dense.weight")) == (
        0.5,
        0,
    )


def test_the_samples_that_decide_what_is_trained_are_from_all_over_the_data() -> None:
    """The first one alone may lack what others have; the shortest and the longest are among them."""
    numbers, lengths = np.arange(100), np.r_[np.full(50, 5), 64, np.full(48, 5), 3]
    chosen = spread(numbers, lengths)
    assert {0, 50, 99} <= set(chosen.tolist())
    assert len(chosen) <= 10
    assert spread(numbers[:1], lengths).tolist() == [0]


def test_a_weight_is_trained_if_one_batch_reaches_it() -> None:
    class Branching(TrainModule):
        """Has a second weight, which only batches of more than 4 tokens reach."""

        names = ("loss",)

        def __init__(self) -> None:
            super().__init__()
            self.model = nn.ParameterDict({name: torch.ones(1) for name in ("all", "long", "none")})

        def count_targets(self, batch: Any) -> list[int]:
            return [1]

        def forward(self, batch: Any, counts: Any = None) -> tuple[Tensor, Tensor]:
            loss = self.model["all"].sum()
            if batch["input_ids"].shape[1] > 4:
                loss = loss + self.model["long"].sum()
            return loss, loss.detach()

    short, long = ({"input_ids": torch.zeros(1, size)} for size in (2, 8))
    assert freeze_unused(Branching(), short) == ["long", "none"]
    for order in ((short, long), (long, short)):
        module = Branching()
        assert freeze_unused(module, *order) == ["none"]
        assert [weight.requires_grad for weight in module.model.values()] == [True, True, False]
        assert all(weight.grad is None for weight in module.model.values())


def test_groups_open_by_depth() -> None:
    names = [f"encoder.layers.{layer}.x.weight" for layer in range(5)]
    names += ["encoder.embeddings.x", "encoder.norm.x", "pooler.x", "classifier.x"]
    first = gradual_unfreezing(names, 2, 10)
    assert [first(name) for name in names] == [30, 20, 20, 10, 10, 30, 10, 0, 0]
