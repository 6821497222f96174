"""GPT-2 against transformers, beside what holds of every family: all layouts, the loss, and a
hundred steps of training.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cloze.core.errors import DataError
from cloze.model.families.registry import model_config
from cloze.model.layers.batch import unmask
from cloze.model.objectives import objectives
from tests.model.datasets import lines, write_dataset
from tests.model.layouts import laid
from tests.model.scores import score, total_loss
from tests.model.train.ranks import STILL, config, here
from tests.parity.families import FORWARD, GRADIENTS, Case, batch_of, their_inputs, transformers
from tests.parity.test_training_steps import STEPS, beginning, losses

CASE = Case(family="gpt2")


def their_loss(theirs: Any, batch: dict[str, Tensor]) -> Tensor:
    """Of the rows as they were before the masks."""
    ids, real = unmask(batch), batch["attention_mask"]
    inputs = {**their_inputs(theirs, batch), "input_ids": ids}
    found: Tensor = theirs(**inputs, labels=ids.masked_fill(~real, -100)).loss
    return found


def our_loss(ours: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return total_loss([score(objective, ours(batch), batch) for objective in objectives(("lm",))])


@pytest.mark.parametrize("choice", ["padded", "buckets"])
@pytest.mark.parametrize("length", [4, 13, 32])
def test_loss_and_gradients_agree(length: int, choice: Any) -> None:
    theirs = CASE.theirs()
    ours = CASE.ours(theirs)
    batch = batch_of(CASE, 5, length)
    loss, expected = our_loss(ours, laid(batch, choice)), their_loss(theirs, batch)
    torch.testing.assert_close(loss, expected, **FORWARD)
    loss.backward()
    expected.backward()
    gradients = CASE.hub.to_state(
        {name: part.grad for name, part in ours.named_parameters() if part.grad is not None}
    )
    reference = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert gradients.keys() == reference.keys()
    for name, gradient in reference.items():
        torch.testing.assert_close(
            gradients[name], gradient, **GRADIENTS, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("choice", ["padded", "buckets"])
def test_a_packed_row_is_read_as_its_documents_alone(choice: Any) -> None:
    """Theirs reads each document in a row of its own."""
    theirs = CASE.theirs()
    ours = CASE.ours(theirs)
    ids = torch.randint(5, 40, (2, 16), generator=torch.Generator().manual_seed(1))
    first = torch.zeros(2, 16, dtype=torch.bool)
    bounds = [[0, 5, 6, 16], [0, 9, 16]]
    for row, begins in enumerate(bounds):
        first[row, begins[:-1]] = True
    real = torch.ones_like(first)
    packed = {
        "input_ids": ids,
        "attention_mask": real,
        "token_type_ids": 0 * ids,
        "sequence_first": first,
    }
    found = ours(laid(packed, choice))["lm_logits"]
    for row, begins in enumerate(bounds):
        for begin, end in zip(begins, begins[1:], strict=False):
            torch.testing.assert_close(
                found[row, begin:end], theirs(ids[row : row + 1, begin:end]).logits[0], **FORWARD
            )


@pytest.mark.soak
def test_a_hundred_steps_lose_the_same(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset", pair_task=None)
    settings = config(
        steps=STEPS, log_every=1, evaluate_every=STEPS, model={**STILL, "family": "gpt2"}
    )
    here(settings, dataset, tmp_path / "run", micro_batch=8)
    trained = [line["loss"] for line in lines(tmp_path / "run" / "metrics.jsonl")]

    model, shape, batches = beginning(dataset, settings)
    values = CASE.hub.to_config(shape, shape.heads, None)
    theirs = transformers.GPT2LMHeadModel(transformers.AutoConfig.for_model(**values)).train()
    theirs.load_state_dict(CASE.hub.to_state(copy.deepcopy(model.state_dict())), strict=False)
    reference = losses(theirs, their_loss, settings, batches)
    assert len(trained) == STEPS
    assert (
        trained[-1] < trained[0] - 0.5
    )  # it learns: equal losses of models that stand still would say little
    np.testing.assert_allclose(trained, reference, atol=1e-4)


def test_files_of_the_base_model_with_its_buffers_are_read(tmp_path: Path) -> None:
    """As openai-community/gpt2 has them: no prefix, masks among the weights, and a config that says
    only what GPT2Config lacks.
    """
    theirs = CASE.theirs()
    bare = {
        name.removeprefix("transformer."): tensor
        for name, tensor in theirs.transformer.state_dict().items()
    }
    bare |= {"h.0.attn.bias": torch.ones(1, 1, 4, 4), "h.1.attn.masked_bias": torch.tensor(-1e4)}
    expected = CASE.ours(theirs).state_dict()
    found = CASE.hub.from_state(bare, "theirs")
    assert found.keys() == expected.keys()
    assert all(found[name].equal(tensor) for name, tensor in expected.items())
    plain = {
        "model_type": "gpt2",
        "vocab_size": 50257,
        "n_ctx": 1024,
        "n_embd": 768,
        "n_head": 12,
        "n_layer": 12,
    }
    assert CASE.hub.from_config(plain, "config.json") == model_config("gpt2", vocab_size=50257)
    with pytest.raises(DataError, match=r"resid_pdrop \(0.1\) and embd_pdrop \(0.0\) differ"):
        CASE.hub.from_config({**plain, "embd_pdrop": 0.0}, "config.json")
    with pytest.raises(DataError, match="scale_attn_by_inverse_layer_idx True"):
        CASE.hub.from_config({**plain, "scale_attn_by_inverse_layer_idx": True}, "config.json")
