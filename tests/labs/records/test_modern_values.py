"""Family modern-values: what its values read."""

from __future__ import annotations

import torch

from cloze.labs.records.value_layers import START, ValueAttention
from cloze.model.families.models import new_model
from cloze.model.layers.layout import BatchLayout
from tests.tiny_models import tiny_config


def test_values_have_a_share_of_the_first_states() -> None:
    model = new_model(tiny_config(family="modern-values")).eval()
    ids = torch.arange(12).view(2, 6)
    attention = model.encoder.layers[1].attention
    assert isinstance(attention, ValueAttention)
    assert attention.share.item() == START
    layout = BatchLayout((2, 6))
    embedded = model.encoder.embeddings(ids, torch.zeros_like(ids), None)
    model.encoder.run(embedded, layout)
    assert layout.memory is embedded
    hidden = torch.randn_like(embedded)
    with torch.no_grad():
        *_, mixed = attention.project(hidden, layout)
        attention.share.zero_()
        *_, plain = attention.project(hidden, layout)
    torch.testing.assert_close((mixed - plain).flatten(-2), START * embedded)


def test_each_layers_share_is_trained() -> None:
    model = new_model(tiny_config(family="modern-values")).train()
    ids = torch.arange(12).view(2, 6)
    model.encoder(ids, None, torch.zeros_like(ids)).square().sum().backward()
    for layer in model.encoder.layers:
        assert layer.attention.share.grad.abs() > 0
