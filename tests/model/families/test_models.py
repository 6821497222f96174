"""Models of a family: shapes, what may influence what, the tied decoder, and loading; on BERT where
all are alike.
"""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch

from cloze.core.errors import DataError
from cloze.model.families.models import (
    is_backbone,
    load_backbone,
    load_model,
    new_model,
    vocab_parameters,
)
from cloze.model.families.registry import FAMILIES
from tests.conftest import REPOSITORY
from tests.tiny_models import PIECES, tiny_batch, tiny_config, tiny_model


def test_shapes_of_the_outputs() -> None:
    batch = tiny_batch(rows=3, length=10)
    outputs = tiny_model()(batch)
    assert outputs["hidden"].shape == (3, 10, 16)
    assert outputs["mlm_logits"].shape == (len(batch["masked_positions"]), len(PIECES))
    assert outputs["pair_logits"].shape == (3, 2)


def test_no_masked_positions_is_a_batch_too() -> None:
    batch = {**tiny_batch(), "masked_positions": torch.zeros(0, dtype=torch.int64)}
    assert tiny_model()(batch)["mlm_logits"].shape == (0, len(PIECES))


def test_logits_at_masked_positions_are_those_of_the_whole_head() -> None:
    batch, model = tiny_batch(), tiny_model()
    outputs = model(batch)
    everywhere = model.masked_lm(outputs["hidden"], model.encoder.embeddings.word.weight)
    torch.testing.assert_close(
        outputs["mlm_logits"], everywhere.flatten(0, 1)[batch["masked_positions"]]
    )


def test_what_stands_in_padding_changes_nothing() -> None:
    batch, model = tiny_batch(), tiny_model()
    padding = ~batch["attention_mask"]
    assert padding.any()
    changed = {
        **batch,
        "input_ids": batch["input_ids"].masked_fill(padding, 9),
        "token_type_ids": batch["token_type_ids"] | padding,
    }
    first, second = model(batch), model(changed)
    torch.testing.assert_close(
        first["hidden"][~padding], second["hidden"][~padding], atol=0, rtol=0
    )
    torch.testing.assert_close(first["pair_logits"], second["pair_logits"], atol=0, rtol=0)


def test_more_padding_and_other_rows_change_nothing() -> None:
    batch, model = tiny_batch(rows=3, length=8), tiny_model()
    hidden = model(batch)["hidden"]
    for row in range(3):
        length = int(batch["attention_mask"][row].sum())
        alone = {
            name: batch[name][row : row + 1, :length] for name in ("input_ids", "token_type_ids")
        }
        found = model.encoder(alone["input_ids"], None, alone["token_type_ids"])
        torch.testing.assert_close(found[0], hidden[row, :length], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["input_ids", "token_type_ids"])
def test_every_input_matters(name: str) -> None:
    batch, model = tiny_batch(), tiny_model()
    values = batch[name].clone()
    values[0, 2] = (
        (values[0, 2] + 1) % 2 if name == "token_type_ids" else 5 + (values[0, 2] - 4) % 20
    )
    assert not model(batch)["pair_logits"][0].allclose(
        model({**batch, name: values})["pair_logits"][0], atol=1e-4
    )


def test_order_matters() -> None:
    model, ids = tiny_model(), torch.tensor([[2, 7, 8, 3], [2, 8, 7, 3]])
    pooled = model.pooler(model.encoder(ids, None, torch.zeros_like(ids)))
    assert not pooled[0].allclose(pooled[1], atol=1e-4)


def test_the_decoder_is_tied_and_stored_once() -> None:
    model = tiny_model()
    names = [
        name for name, tensor in model.state_dict().items() if tensor.shape == (len(PIECES), 16)
    ]
    assert names == ["encoder.embeddings.word.weight"]
    batch = tiny_batch()
    model(batch)["mlm_logits"].sum().backward()
    absent = [token for token in range(len(PIECES)) if token not in batch["input_ids"]]
    gradient = model.encoder.embeddings.word.weight.grad
    assert gradient is not None
    assert gradient[absent].abs().sum() > 0  # through the decoder alone


def test_every_parameter_has_a_gradient() -> None:
    model = tiny_model()
    outputs = model(tiny_batch())
    (outputs["mlm_logits"].square().sum() + outputs["pair_logits"].square().sum()).backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_the_same_seed_builds_the_same_weights() -> None:
    first, second = tiny_model(3), tiny_model(3)
    assert all(
        second.state_dict()[name].equal(tensor) for name, tensor in first.state_dict().items()
    )


def test_the_first_loss_is_near_ln_v() -> None:
    torch.manual_seed(0)
    model = new_model(tiny_config(initializer_range=0.02)).eval()
    batch = tiny_batch(rows=16)
    loss = torch.nn.functional.cross_entropy(model(batch)["mlm_logits"], batch["masked_labels"])
    assert float(loss.detach()) == pytest.approx(math.log(len(PIECES)), abs=0.05)


def test_a_mask_without_padding_may_be_left_out() -> None:
    batch = tiny_batch()
    batch["attention_mask"] = torch.ones_like(batch["attention_mask"])
    without = {name: tensor for name, tensor in batch.items() if name != "attention_mask"}
    model = tiny_model()
    torch.testing.assert_close(model(batch)["mlm_logits"], model(without)["mlm_logits"])


def test_restore_gives_the_weights_back_in_evaluation_mode() -> None:
    model, batch = tiny_model(), tiny_batch()
    found = load_model(tiny_config(hidden_dropout=0.5), model.state_dict())
    assert not found.training
    assert found(batch)["mlm_logits"].equal(model(batch)["mlm_logits"])
    assert all(parameter.requires_grad for parameter in found.parameters())


def test_restore_of_the_backbone_ignores_other_heads() -> None:
    model = tiny_model()
    state = {name: tensor for name, tensor in model.state_dict().items() if is_backbone(name)}
    found = load_backbone(tiny_config(), {**state, "classifier.weight": torch.zeros(2, 16)})
    ids = tiny_batch()["input_ids"]
    assert found.encoder(ids, None, 0 * ids).equal(model.encoder(ids, None, 0 * ids))
    assert found.pooler(model.encoder(ids, None, 0 * ids)).equal(
        model.pooler(model.encoder(ids, None, 0 * ids))
    )


def test_restore_names_what_does_not_fit() -> None:
    state = dict(tiny_model().state_dict())
    with pytest.raises(DataError, match=r"lack pooler\.dense\.bias"):
        load_model(
            tiny_config(),
            {name: tensor for name, tensor in state.items() if name != "pooler.dense.bias"},
        )
    with pytest.raises(DataError, match=r"unknown parameter other\.weight"):
        load_model(tiny_config(), {**state, "other.weight": torch.zeros(1)})
    with pytest.raises(DataError, match=r"masked_lm\.bias has shape \(3,\)"):
        load_model(tiny_config(), {**state, "masked_lm.bias": torch.zeros(3)})


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_say_which_parameters_grow_with_the_vocabulary(family: str) -> None:
    """Just those whose shape has the vocabulary's size in it."""
    config = tiny_config(family=family)
    larger = new_model(config.model_copy(update={"vocab_size": config.vocab_size + 7})).state_dict()
    grown = [
        name
        for name, tensor in new_model(config).state_dict().items()
        if tensor.shape != larger[name].shape
    ]
    assert sorted(vocab_parameters(config)) == sorted(grown)


def test_answers_import_no_compiler() -> None:
    """A second of the start of `fill-mask` and other verbs."""
    program = """
import sys
from cloze.model.families.models import load_model
from tests.tiny_models import tiny_batch, tiny_config, tiny_model
for family in ("bert", "modern", "t5"):
    config, state = tiny_config(family=family), tiny_model(family=family).state_dict()
    load_model(config, state)(tiny_batch())
sys.exit(", ".join({"torch._dynamo", "sympy"} & set(sys.modules)) or 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
