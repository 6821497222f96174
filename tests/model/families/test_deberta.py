"""What DeBERTa is about, apart from parity: whose gradient reaches what, sequences in packed rows,
sizes, and how much of it there is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cloze.core.errors import UsageError
from cloze.model import checkpoint
from cloze.model.families.deberta import DebertaConfig
from cloze.model.families.models import first_weights, load_backbone, load_model, new_model
from cloze.model.families.registry import model_config, presets
from cloze.model.layers import layout as layout_module
from cloze.model.objectives import objectives
from cloze.model.train.plan import estimates
from cloze.model.use.scorer import SentenceScorer
from tests.model.layouts import Choice, laid, pack, varlen_on_cpu
from tests.model.scores import score
from tests.tiny_models import tiny_batch, tiny_config, tiny_model, write_checkpoint

RTD = {"family": "deberta", "pretraining": "rtd", "enhanced_mask_decoder": True}
TABLE, DELTA = "encoder.embeddings.word.weight", "encoder.embeddings.word.delta"


@pytest.fixture(autouse=True)
def _kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_module, "varlen_attention", varlen_on_cpu)


def moved(model: Any) -> Any:
    """The model with differences that are not zero."""
    with torch.no_grad():
        model.encoder.embeddings.word.delta.normal_(std=0.3)
    return model


def reached(model: Any, objective: str) -> set[str]:
    """The parameters that the objective's gradient reaches, each somewhere."""
    batch = tiny_batch()
    model.zero_grad()
    score(objectives((objective,))[0], model(batch), batch).total.backward()
    return {
        name for name, p in model.named_parameters() if p.grad is not None and bool(p.grad.any())
    }


def test_each_network_has_its_own_gradient_of_the_embeddings() -> None:
    model = moved(tiny_model(**RTD))
    by_generator, by_discriminator = reached(model, "mlm"), reached(model, "rtd")
    assert {name for name in by_generator if not name.startswith("generator.")} == {TABLE}
    assert not any(name.startswith("generator.") for name in by_discriminator)
    assert TABLE not in by_discriminator
    assert DELTA in by_discriminator
    assert by_generator | by_discriminator == {name for name, _ in model.named_parameters()}
    assert not any("word" in name for name in model.generator.state_dict())


def test_the_discriminator_reads_the_sum_and_so_does_fine_tuning() -> None:
    model, batch = moved(tiny_model(**RTD)), tiny_batch()
    del batch["masked_labels"]
    before = model(batch)
    state = dict(model.state_dict())
    encoder = load_backbone(tiny_config(**RTD), state).encoder
    assert DELTA in state
    assert not any("delta" in name for name, _ in encoder.named_parameters())
    found = encoder(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
    torch.testing.assert_close(found, before["hidden"], atol=1e-5, rtol=0)
    found.sum().backward()
    assert encoder.embeddings.word.weight.grad.any()
    state[TABLE], state[DELTA] = state[TABLE] + 1.0, state[DELTA] - 1.0
    model.load_state_dict(state)
    after = model(batch)
    torch.testing.assert_close(after["hidden"], before["hidden"], atol=1e-5, rtol=0)
    assert not torch.allclose(
        after["mlm_logits"], before["mlm_logits"], atol=1e-2
    )  # the generator reads the table alone


@pytest.mark.parametrize("choice", ["padded", "buckets", "packed"])
@pytest.mark.parametrize(
    "changes",
    [{"enhanced_mask_decoder": True, "conv_kernel_size": 5, "position_buckets": 8}, RTD],
    ids=["mlm", "rtd"],
)
def test_packed_sequences_are_as_they_are_alone(changes: dict[str, Any], choice: Choice) -> None:
    """Positions, the convolution and the first token are those of the sequence, in every layout."""
    model = tiny_model(**{"family": "deberta", **changes})
    alone = tiny_batch(rows=6, length=13)
    del alone["masked_labels"]
    packed, real = pack(alone), alone["attention_mask"]
    for expected, found in (
        (model(alone), model(laid(alone, choice))),
        (model(alone), model(laid(packed, choice))),
    ):
        torch.testing.assert_close(
            found["mlm_logits"], expected["mlm_logits"], atol=1e-5, rtol=1e-5
        )
        for name in expected.keys() - {"mlm_logits"}:
            mask = packed["attention_mask"] if found[name].shape[:2] != real.shape else real
            torch.testing.assert_close(
                found[name][mask], expected[name][real], atol=1e-5, rtol=1e-5
            )


@pytest.mark.parametrize("choice", ["buckets", "packed"])
def test_gradients_are_those_of_padded_rows(choice: Choice) -> None:
    model = tiny_model(
        family="deberta", enhanced_mask_decoder=True, conv_kernel_size=3, position_buckets=8
    )
    model.predicts_all_positions = False
    batch = tiny_batch(rows=9, length=29)

    def gradients(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        model.zero_grad()
        score(objectives(("mlm",))[0], model(batch), batch).total.backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    first, second = gradients(batch), gradients(laid(batch, choice))
    assert first.keys() == second.keys() == {name for name, _ in model.named_parameters()}
    for name, gradient in first.items():
        torch.testing.assert_close(second[name], gradient, atol=1e-4, rtol=1e-4)


def test_only_masked_positions_ask_in_training() -> None:
    model, batch = (
        tiny_model(family="deberta", enhanced_mask_decoder=True, num_hidden_layers=3),
        tiny_batch(),
    )
    model.predicts_all_positions = False
    seen: list[Any] = []
    for layer in model.encoder.layers:
        layer.feed_forward.register_forward_hook(
            lambda _, __, states: seen.append(tuple(states.shape))
        )
    model(batch)
    masked = (len(batch["masked_positions"]), 16)
    assert seen == [(4, 12, 16), (4, 12, 16), masked, masked]


def test_a_student_takes_the_layers_of_a_teacher_without_absolute_positions() -> None:
    """And the word embeddings as the discriminator reads them."""
    model, student = (
        moved(tiny_model(**RTD, num_hidden_layers=4)),
        tiny_config(family="distilbert", type_vocab_size=0),
    )
    state = model.state_dict()
    taken = first_weights(student, tiny_config(**RTD, num_hidden_layers=4), state)
    query = "encoder.layers.{}.attention.query.weight"
    assert taken[query.format(1)].equal(state[query.format(2)])
    assert taken[TABLE].equal(state[TABLE] + state[DELTA])
    assert "encoder.embeddings.position.weight" not in taken


def test_rows_that_are_too_long_are_refused() -> None:
    model, batch = tiny_model(family="deberta", max_position_embeddings=12), tiny_batch(length=12)
    model(batch)
    with pytest.raises(
        ValueError, match=r"a row of 13 tokens is longer than max_position_embeddings \(12\)"
    ):
        model(tiny_batch(length=13))


def test_heads_and_objectives_follow_from_how_it_is_pretrained() -> None:
    plain, decoder, replaced = (
        tiny_config(family="deberta", **changes)
        for changes in ({}, {"enhanced_mask_decoder": True}, {"pretraining": "rtd"})
    )
    assert [set(model.heads) for model in (plain, decoder, replaced)] == [
        {"masked_lm"},
        {"masked_lm", "decoder"},
        {"masked_lm", "discriminator"},
    ]
    assert (plain.default_objectives("nsp"), replaced.default_objectives(None)) == (
        ("mlm",),
        ("mlm", "rtd"),
    )
    assert (plain.loss_weights(), replaced.loss_weights()) == ({}, {"rtd": 10.0})
    assert model_config("deberta-v3-base").auxiliary_models[0].num_hidden_layers == 6
    assert (
        model_config("deberta-v3-base", generator_layers=4).auxiliary_models[0].num_hidden_layers
        == 4
    )


@pytest.mark.parametrize(
    "changes",
    [{"enhanced_mask_decoder": True}, {"pretraining": "rtd", "enhanced_mask_decoder": True}],
)
def test_verbs_name_pieces_through_the_decoder(changes: dict[str, Any], tmp_path: Path) -> None:
    path = write_checkpoint(
        tmp_path / "checkpoint", tmp_path / "scratch", family="deberta", **changes
    )
    scorer = SentenceScorer(path)
    loaded, special = checkpoint.load(path), scorer.pieces.special
    model = load_model(loaded.model, loaded.state)
    inner = scorer.pieces.backend.encode("the cat sat", add_special_tokens=False).ids
    expected = []
    for place, token in enumerate(inner, start=1):
        ids = torch.tensor([[special.cls, *inner, special.sep]])
        ids[0, place] = special.mask
        batch = {
            "input_ids": ids,
            "token_type_ids": 0 * ids,
            "masked_positions": torch.tensor([place]),
        }
        with torch.inference_mode():
            expected.append(float(model(batch)["mlm_logits"].log_softmax(-1)[0, token]))
    assert scorer.scored(["the cat sat"])[0].log_probabilities.tolist() == pytest.approx(
        expected, abs=1e-5
    )


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"pos_att_type": []}, "must name c2p, p2c, or both"),
        ({"pos_att_type": ["c2p", "c2p"]}, "must name c2p, p2c, or both"),
        ({"conv_kernel_size": 4}, r"conv_kernel_size \(4\) must be odd; use 5"),
        (
            {"max_relative_positions": 100},
            r"max_relative_positions \(100\) is too few for position_buckets \(256\).* use 130",
        ),
        (
            {"enhanced_mask_decoder": True, "position_biased_input": True},
            "whose input has no positions",
        ),
    ],
)
def test_sizes_that_cannot_be_are_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(
        UsageError, match=f"^model: .*{sentence}"
    ) as caught:  # and not all values that there are
        model_config({"family": "deberta", **values})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


SIZES = [*(name for name in presets() if name.startswith("deberta-")), "not shared"]


@pytest.mark.parametrize("vocabulary", [1_000, 128_100])
@pytest.mark.parametrize("name", SIZES)
def test_parameters_are_counted_to_a_per_cent(name: str, vocabulary: int) -> None:
    other = DebertaConfig(
        share_att_key=False, position_biased_input=True, position_buckets=-1, type_vocab_size=2
    )
    model = presets().get(name, other).model_copy(update={"vocab_size": vocabulary})
    with torch.device("meta"):
        counted = sum(parameter.numel() for parameter in new_model(model).parameters())
    assert estimates.approximate_parameters(model) == pytest.approx(counted, rel=0.01)


def test_operations_count_the_relative_positions_and_the_generator() -> None:
    """Base: 6 · 85M weights and 12 L D a layer three times, and half of that for the generator; a
    sixth of the logits.
    """
    model = model_config("deberta-v3-base", vocab_size=30_000)
    layers = 6 * 84.9e6 + 12 * 3 * 12 * 128 * 768
    assert estimates.flops_per_token(model, 128) == pytest.approx(
        1.5 * layers + 6 * 0.16 * 30_000 * 768, rel=0.01
    )


def test_backbones_are_as_large_as_the_authors_say() -> None:
    """microsoft/DeBERTa, README.md: backbone parameters, in millions."""
    for name, millions in {"v3-xsmall": 22, "v3-small": 44, "v3-base": 86, "v3-large": 304}.items():
        with torch.device("meta"):
            encoder = new_model(model_config(f"deberta-{name}", vocab_size=1_000)).encoder
        counted = sum(p.numel() for part, p in encoder.named_parameters() if "word" not in part)
        assert counted / 1e6 == pytest.approx(millions, rel=0.03), name
