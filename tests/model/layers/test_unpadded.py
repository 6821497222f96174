"""Leaving out padding, or what no head reads, changes no result: outputs and gradients, packed rows, and when it is done."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from model.families.pretraining import PretrainingModel
from model.layers.layout import BUCKETS, begins, buckets, packed, sequences
from model.objectives import objectives, total_loss
from tests.tiny_models import tiny_batch, tiny_model

FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "megatron-bert": {},
    "roberta": {},
    "albert": {"embedding_size": 8},
    "spanbert": {},
    "modern": {"type_vocab_size": 0, "local_attention": 4},
}
ALL_ROWS = {**FAMILIES, "longformer": {"attention_window": (4, 4), "type_vocab_size": 1}}


def pack(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The batch's rows as sequences of half as many rows twice as long."""
    lengths = batch["attention_mask"].sum(1).tolist()
    rows, width = len(lengths) // 2, 2 * batch["input_ids"].shape[1]
    names = ("input_ids", "token_type_ids", "attention_mask")
    found = {name: torch.zeros(rows, width, dtype=batch[name].dtype) for name in names}
    places = []
    for number, length in enumerate(lengths):
        row = number // 2
        first = 0 if number % 2 == 0 else lengths[number - 1]
        for name in names:
            found[name][row, first : first + length] = batch[name][number, :length]
        places.append(row * width + first + torch.arange(batch["input_ids"].shape[1]))
    found["sequence_starts"] = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    found["masked_positions"] = torch.cat(places)[batch["masked_positions"]]
    return found


def uneven(rows: int = 11) -> dict[str, Tensor]:
    """Rows of many lengths, whose masked tokens have a neighbour on both sides, as spans do: [CLS] and [SEP] are never masked."""
    batch = tiny_batch(rows=rows, length=29)
    places = batch["masked_positions"]
    followed = batch["attention_mask"].flatten().roll(-1)[places] & (places % 29 > 0)
    return batch | {name: batch[name][followed] for name in ("masked_positions", "masked_labels")}


def learnt(model: PretrainingModel, batch: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Outputs, and gradients by parameter."""
    names = ["mlm"] + ["nsp"] * (model.pair is not None) + ["sbo"] * hasattr(model, "span_boundary")
    model.zero_grad()
    outputs = model(batch)
    total_loss([objective.score(outputs, batch) for objective in objectives(names)]).backward()
    return outputs, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("choice", ["never", "always"])
@pytest.mark.parametrize("packed_rows", [False, True])
@pytest.mark.parametrize("family", ALL_ROWS)
def test_the_last_layer_where_heads_read_is_the_whole_one(family: str, packed_rows: bool, choice: Any) -> None:
    model = tiny_model(family=family, max_position_embeddings=64, **ALL_ROWS[family])
    batch = uneven(rows=10)
    filler = {"masked_positions": torch.zeros(3, dtype=torch.int64), "masked_labels": torch.full((3,), -100)}
    batch |= {name: torch.cat([batch[name], more]) for name, more in filler.items()}
    if packed_rows:
        batch = {**pack(batch), "masked_labels": batch["masked_labels"], "pair_labels": batch["pair_labels"][:5]}
    elif family == "longformer":
        batch["global_attention_mask"] = torch.arange(29).expand(10, -1) % 13 == 0
    model.encoder.unpad = choice
    whole, first = learnt(model, batch)
    model.everywhere = False
    seen = []
    model.encoder.layers[-1].register_forward_hook(lambda _, __, states: seen.append(states.shape))
    read, second = learnt(model, batch)
    assert read.keys() == whole.keys() - {"hidden"}
    assert seen == [(sum(len(places) for places in model.places(batch).values()), 16)]
    real = batch["masked_labels"] != -100
    for name, output in read.items():
        chosen = real if len(output) == len(real) else slice(None)
        torch.testing.assert_close(output[chosen], whole[name][chosen], atol=1e-5, rtol=1e-5)
    assert first.keys() == second.keys()
    for name, gradient in first.items():
        torch.testing.assert_close(second[name], gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_and_gradients_are_those_of_padded_rows(family: str) -> None:
    model = tiny_model(family=family, **FAMILIES[family])
    batch = uneven()
    found = []
    for choice in ("never", "always"):
        model.encoder.unpad = choice
        found.append(learnt(model, batch))
    (padded, first), (without, second) = found
    for name in padded.keys() - {"hidden"}:
        torch.testing.assert_close(without[name], padded[name], atol=1e-5, rtol=1e-5)
    real = batch["attention_mask"]
    torch.testing.assert_close(without["hidden"][real], padded["hidden"][real], atol=1e-5, rtol=1e-5)
    assert not without["hidden"][~real].any()
    assert first.keys() == second.keys()
    for name, gradient in first.items():
        torch.testing.assert_close(second[name], gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("choice", ["never", "always"])
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_sequences_are_as_they_are_alone(family: str, choice: Any) -> None:
    """So no token sees another document, and positions begin anew."""
    model = tiny_model(family=family, **FAMILIES[family])
    alone = tiny_batch(rows=6, length=13)
    model.encoder.unpad = "never"
    expected = model(alone)["mlm_logits"]
    model.encoder.unpad = choice
    torch.testing.assert_close(model(pack(alone))["mlm_logits"], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("choice", ["never", "always"])
def test_another_document_in_the_row_changes_nothing(choice: Any) -> None:
    model, batch = tiny_model(), pack(tiny_batch(rows=4, length=13))
    model.encoder.unpad = choice
    number = begins(batch["sequence_starts"], batch["attention_mask"]).cumsum(1) * batch["attention_mask"]
    first, second = number == 1, number == 2
    other = {**batch, "input_ids": torch.where(second, 5 + (batch["input_ids"] - 4) % 20, batch["input_ids"])}
    before, after = model(batch)["hidden"], model(other)["hidden"]
    assert before[first].equal(after[first])
    assert not before[second].allclose(after[second], atol=1e-2)


@pytest.mark.parametrize("packed_rows", [False, True])
def test_every_real_token_is_there_once(packed_rows: bool) -> None:
    batch = tiny_batch(rows=20, length=31)
    if packed_rows:
        batch = pack(batch)
    real = batch["attention_mask"]
    starts = begins(batch["sequence_starts"], real) if packed_rows else None
    expected = real.flatten().nonzero().squeeze(1)
    for tokens in (buckets(real, starts), packed(real, starts)):
        kept = tokens.places if tokens.real is None else tokens.places[tokens.real]
        assert kept.sort().values.equal(expected)
        assert tokens.take(real)[slice(None) if tokens.real is None else tokens.real].all()
        back = tokens.put_back(tokens.take(batch["input_ids"]).float()[:, None])
        assert back.squeeze(2).long().equal(batch["input_ids"] * real)
    first, lengths = sequences(real, starts)
    assert int(lengths.sum()) == len(expected)
    assert (starts.sum() if starts is not None else len(real)) == len(first)


def test_where_sequences_begin() -> None:
    """The collator counts among real tokens, row after row."""
    real = torch.arange(5) < torch.tensor([[4], [5], [2]])
    found = begins(torch.tensor([0, 3, 4, 9, 11], dtype=torch.int32), real)
    assert found.int().tolist() == [[1, 0, 0, 1, 0], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0]]


def test_buckets_have_few_shapes_and_little_padding() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = set()
    for _ in range(50):
        lengths = torch.randint(1, 129, (32,), generator=generator)
        real = torch.arange(128) < lengths[:, None]
        tokens = buckets(real, None)
        shapes |= set(tokens.groups)
        assert len(tokens.groups) == BUCKETS
        assert len(tokens.places) < 1.5 * int(real.sum())  # padded: about 2
    assert len(shapes) <= 8  # eight rows, by multiples of 16


def test_padding_is_left_out_where_there_is_enough_of_it() -> None:
    encoder = tiny_model().encoder
    full, half = torch.ones(8, 32, dtype=torch.bool), torch.arange(32) < torch.tensor([[16]] * 8)
    assert encoder._tokens(half, None) is not None
    assert encoder._tokens(full, None) is None
    assert encoder._tokens(None, None) is None
    encoder.unpad = "never"
    assert encoder._tokens(half, None) is None
    encoder.unpad = "always"
    assert encoder._tokens(full, None) is not None


def test_a_row_of_padding_alone_is_left_out_unharmed() -> None:
    model, batch = tiny_model(), tiny_batch(rows=5, length=12)
    expected = model(batch)["hidden"]
    model.encoder.unpad = "always"
    batch["attention_mask"][2:4] = False
    found = model(batch)["hidden"]
    assert not found[2:4].any()
    others = batch["attention_mask"]
    torch.testing.assert_close(found[others], expected[others], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_maps_of_every_family(family: str) -> None:
    """Probabilities, one map a layer, and of what the model really does: the values that they mix are its own."""
    model, batch = tiny_model(family=family, **FAMILIES[family]), tiny_batch(rows=3, length=11)
    ids, real, segments = batch["input_ids"], batch["attention_mask"], batch["token_type_ids"]
    maps = model.encoder.attention_maps(ids, real, segments)
    assert [tuple(found.shape) for found in maps] == [(3, 4, 11, 11)] * 2
    for found in maps:
        torch.testing.assert_close(found.sum(-1), torch.ones(3, 4, 11))
        assert not found.transpose(0, 1)[:, ~real[:, None, :].expand(3, 11, 11)].any()


def test_maps_are_those_that_transformers_returns() -> None:
    from tests.parity.families import Case, their_inputs

    for case in (Case(family="bert"), Case(family="modern", changes={"type_vocab_size": 0, "local_attention": 4})):
        theirs = case.theirs()
        theirs.set_attn_implementation("eager")
        ours, batch = case.ours(theirs), tiny_batch(rows=3, length=11)
        ids, real = batch["input_ids"], batch["attention_mask"]
        with torch.no_grad():
            expected = theirs(**their_inputs(theirs, batch), output_attentions=True).attentions
        found = ours.encoder.attention_maps(ids, real, batch["token_type_ids"])
        for first, second in zip(found, expected, strict=True):
            torch.testing.assert_close(first.transpose(1, 2)[real], second.transpose(1, 2)[real], atol=1e-5, rtol=0)
