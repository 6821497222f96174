"""Megatron-BERT against transformers, beside what holds of every family: the loss of both
objectives and every gradient.
"""

from __future__ import annotations

import pytest
import torch

from cloze.model.objectives import objectives
from tests.model.scores import score, total_loss
from tests.parity.families import FORWARD, GRADIENTS, Case, their_inputs, their_labels
from tests.tiny_models import tiny_batch

CASE = Case(family="megatron-bert")


@pytest.mark.parametrize("length", [4, 13, 32])
def test_logits_loss_and_gradients_agree(length: int) -> None:
    theirs = CASE.theirs()
    ours = CASE.ours(theirs)
    batch = tiny_batch(rows=5, length=length, seed=length)
    outputs, expected = ours(batch), theirs(**their_inputs(theirs, batch), **their_labels(batch))
    masked = expected.prediction_logits.flatten(0, 1)[batch["masked_positions"]]
    torch.testing.assert_close(outputs["mlm_logits"], masked, **FORWARD)
    torch.testing.assert_close(outputs["pair_logits"], expected.seq_relationship_logits, **FORWARD)
    loss = total_loss(
        [score(objective, outputs, batch) for objective in objectives(("mlm", "nsp"))]
    )
    torch.testing.assert_close(loss, expected.loss, **FORWARD)
    loss.backward()
    expected.loss.backward()
    gradients = {
        CASE.hub.keys.to_hf(name): parameter.grad for name, parameter in ours.named_parameters()
    }
    reference = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert gradients.keys() == reference.keys()
    for name, gradient in reference.items():
        torch.testing.assert_close(gradients[name], gradient, **GRADIENTS)
