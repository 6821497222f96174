"""A classifier computes the last layer where its pooler reads it, which changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cloze.model.families.models import new_backbone
from cloze.model.layers.encoder import Encoder
from cloze.model.tasks.heads import SequenceClassifier
from tests.tiny_models import TRANSFORMERS, tiny_batch, tiny_config

CASES = [*((family, {}) for family in [*TRANSFORMERS, "elmo"]), ("ltr", {"bilstm": True})]


@pytest.mark.parametrize(("family", "changes"), CASES)
def test_logits_are_those_of_all_positions(
    family: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(family=family, **changes)
    torch.manual_seed(1)
    backbone = new_backbone(config)
    network = SequenceClassifier(
        backbone.encoder, backbone.pooler, config.hidden_size, 3, 0.0
    ).eval()
    batch = tiny_batch(rows=5, length=16)
    segments = batch["token_type_ids"].clamp(max=config.type_vocab_size - 1)
    batch = {**batch, "token_type_ids": segments}
    found = network(batch)
    asked: list[bool] = []
    run = Encoder.run

    def everywhere(self: Encoder, hidden: Any, layout: Any, chosen: Any = None) -> Any:
        asked.append(chosen is not None)
        states = run(self, hidden, layout)
        return states if chosen is None else states.flatten(0, -2).index_select(0, chosen)

    monkeypatch.setattr(Encoder, "run", everywhere)
    torch.testing.assert_close(network(batch), found, atol=1e-6, rtol=1e-5)
    stacks = 2 if config.is_encoder_decoder else 1
    assert asked == [getattr(backbone.pooler, "reads_first", False)] * stacks
    with torch.no_grad():  # the first state alone is looked at where the pooler says so
        states = network.encoder(
            batch["input_ids"], batch["attention_mask"], batch["token_type_ids"]
        )
        read = backbone.pooler(states, batch["attention_mask"])
        torch.testing.assert_close(network.classifier(read), found, atol=1e-6, rtol=1e-5)
