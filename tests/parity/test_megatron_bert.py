"""Megatron-BERT against transformers: the norms stand before the blocks, everything else is BERT's and tested there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from model.families.config import ModelConfig
from model.families.table import restore
from model.hub.export_stage import STAGE, ExportConfig
from model.hub.table import hub_of
from model.objectives import objectives, total_loss
from pipeline.core.execute import execute
from tests.parity.test_bert import TOLERANCE, their_inputs, their_labels
from tests.tiny_models import tiny_batch, tiny_config, tiny_model, write_checkpoint

transformers = pytest.importorskip("transformers", reason="parity is measured against transformers, which is not installed")
HUB = hub_of("megatron-bert")


def hugging_face() -> Any:
    """A random MegatronBertForPreTraining of the tiny sizes, biases and norms included."""
    torch.manual_seed(0)
    values = HUB.to_config(tiny_config(family="megatron-bert"), ModelConfig.heads, None)
    model = transformers.MegatronBertForPreTraining(transformers.MegatronBertConfig(**values)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("length", [4, 13, 32])
def test_logits_loss_and_gradients_agree(length: int) -> None:
    theirs = hugging_face()
    ours = restore(tiny_config(family="megatron-bert"), HUB.from_state(theirs.state_dict(), "theirs"))
    batch = tiny_batch(rows=5, length=length, seed=length)
    outputs, expected = ours(batch), theirs(**their_inputs(batch), **their_labels(batch))
    masked = expected.prediction_logits.flatten(0, 1)[batch["masked_positions"]]
    torch.testing.assert_close(outputs["mlm_logits"], masked, **TOLERANCE)
    torch.testing.assert_close(outputs["pair_logits"], expected.seq_relationship_logits, **TOLERANCE)
    loss = total_loss([objective.score(outputs, batch) for objective in objectives(("mlm", "nsp"))])
    torch.testing.assert_close(loss, expected.loss, **TOLERANCE)
    loss.backward()
    expected.loss.backward()
    gradients = {HUB.keys.theirs(name): parameter.grad for name, parameter in ours.named_parameters()}
    reference = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert gradients.keys() == reference.keys()
    for name, gradient in reference.items():
        torch.testing.assert_close(gradients[name], gradient, atol=1e-5, rtol=1e-4)


def test_no_key_is_left_over_on_either_side() -> None:
    theirs = set(hugging_face().state_dict()) - set(HUB.copies)
    ours = tiny_model(family="megatron-bert").state_dict()
    assert {HUB.keys.theirs(name) for name in ours} == theirs
    assert {HUB.keys.ours(name) for name in theirs} == set(ours)


def test_norms_are_not_those_of_bert() -> None:
    """The two families give different logits for the same shared weights, so the parity above is not BERT's own."""
    batch = tiny_batch()
    assert not torch.allclose(
        tiny_model()(batch)["mlm_logits"], tiny_model(family="megatron-bert")(batch)["mlm_logits"], atol=1e-2
    )


def test_export_checks_itself(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "checkpoint", tmp_path, family="megatron-bert")
    result = execute(STAGE, ExportConfig(), {"checkpoint": directory}, str(tmp_path / "hf"))
    assert result.manifest.summary["architecture"] == "MegatronBertForPreTraining"
    assert result.manifest.summary["max_logit_difference"] <= 1e-5
    loaded = transformers.AutoModelForPreTraining.from_pretrained(str(tmp_path / "hf"))
    assert type(loaded).__name__ == "MegatronBertForPreTraining"
