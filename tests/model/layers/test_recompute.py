"""Layers that are computed again for the gradient: the same bits as layers that keep what they
computed, in every family.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cloze.model.layers.encoder import Encoder, enable_activation_checkpointing
from cloze.model.objectives import choose
from cloze.model.train.evaluate.scoring import PretrainModule
from tests.slices import few
from tests.tiny_models import (
    TRANSFORMERS,
    dataset_info,
    tiny_batch,
    tiny_config,
    tiny_model,
    write_tokenizer,
)

DROPOUT = {"hidden_dropout": 0.1, "attention_dropout": 0.1}


def gradients(
    family: str, precision: Any, names: tuple[str, ...], again: bool
) -> tuple[float, dict[str, torch.Tensor], int]:
    """A step's loss and gradients, and how many numbers are kept for them."""
    model = tiny_model(family=family, num_hidden_layers=4, **DROPOUT)
    if again:
        enable_activation_checkpointing(model)
    scoring = PretrainModule(model, names, precision).train()
    batch = tiny_batch(rows=4, length=12)
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    torch.manual_seed(5)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss, _ = scoring(batch, torch.ones(len(names)))
    loss.backward()
    found = {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return float(loss.detach()), found, sum(kept.values())


@pytest.mark.parametrize(
    ("family", "precision"),
    few(
        [
            pytest.param(family, precision, id=f"{family}-{precision}")
            for family in (*TRANSFORMERS, "elmo")
            for precision in ("fp32", "bf16")
        ],
        "bert-bf16",
        *(f"{family}-fp32" for family in (*TRANSFORMERS, "elmo")),
    ),
)
def test_gradients_are_the_same_bits_and_less_is_kept(
    family: str, precision: str, tmp_path: Any
) -> None:
    config = tiny_config(family, num_hidden_layers=4, **DROPOUT)
    pieces = write_tokenizer(tmp_path)
    pair = "sop" if family == "albert" else "nsp" if "pair" in config.heads else None
    names = tuple(choose(config, dataset_info(pieces, pair_task=pair), None, None))
    loss, usual, kept = gradients(family, precision, names, again=False)
    loss_again, found, kept_again = gradients(family, precision, names, again=True)
    assert loss_again == loss
    assert found.keys() == usual.keys()
    for name, gradient in usual.items():
        assert torch.equal(found[name], gradient), name
    assert any(gradient.abs().sum() > 0 for gradient in usual.values())
    assert kept_again < 0.9 * kept


def test_nothing_is_computed_again_where_there_is_no_gradient() -> None:
    model = tiny_model(num_hidden_layers=4)
    enable_activation_checkpointing(model)
    assert any(
        isinstance(part, Encoder) and part.activation_checkpointing for part in model.modules()
    )
    calls: list[int] = []
    model.encoder.layers[1].register_forward_pre_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        model(tiny_batch())
    assert len(calls) == 1
    outputs = model.train()(tiny_batch())
    outputs["hidden"].sum().backward()
    assert len(calls) == 3, "once forward, once again"
