"""Leaving out padding, or what no head reads, changes no result: outputs and gradients, packed
rows, and when it is done.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cloze.model.data.layouts import (
    BUCKETS,
    Sequences,
    buckets,
    choose_layout,
    layout_for,
    make_layout,
    packed,
)
from cloze.model.families.pretraining import PretrainingModel
from cloze.model.layers import layout as layout_module
from cloze.model.objectives import objectives
from tests.model.layouts import Choice, attention_maps, laid, pack, sequences_of, varlen_on_cpu
from tests.model.scores import score, total_loss
from tests.tiny_models import tiny_batch, tiny_model

FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "megatron-bert": {},
    "roberta": {},
    "albert": {"embedding_size": 8},
    "spanbert": {},
    "modern": {"type_vocab_size": 0, "local_attention": 4},
    "deberta": {"position_buckets": 8, "conv_kernel_size": 3},
}
ALL_ROWS = {**FAMILIES, "longformer": {"attention_window": (4, 4), "type_vocab_size": 1}}
CHOICES: tuple[Choice, ...] = ("padded", "buckets", "packed")


@pytest.fixture(autouse=True)
def _kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packed layout's kernel exists on GPUs alone; here its contract is computed in
    its place.
    """
    monkeypatch.setattr(layout_module, "varlen_attention", varlen_on_cpu)


def uneven(rows: int = 11) -> dict[str, Tensor]:
    """Rows of many lengths, whose masked tokens have a neighbour on both sides, as spans do: [CLS]
    and [SEP] are never masked.
    """
    batch = tiny_batch(rows=rows, length=29)
    places = batch["masked_positions"]
    followed = batch["attention_mask"].flatten().roll(-1)[places] & (places % 29 > 0)
    return batch | {name: batch[name][followed] for name in ("masked_positions", "masked_labels")}


def learnt(
    model: PretrainingModel, batch: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Outputs, and gradients by parameter."""
    names = ["mlm"] + ["nsp"] * (model.pair is not None) + ["sbo"] * hasattr(model, "span_boundary")
    model.zero_grad()
    outputs = model(batch)
    total_loss([score(objective, outputs, batch) for objective in objectives(names)]).backward()
    return outputs, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("packed_rows", [False, True])
@pytest.mark.parametrize("family", ALL_ROWS)
def test_the_last_layer_where_heads_read_is_the_whole_one(
    family: str, packed_rows: bool, choice: Choice
) -> None:
    model = tiny_model(family=family, max_position_embeddings=64, **ALL_ROWS[family])
    batch = uneven(rows=10)
    filler = {
        "masked_positions": torch.zeros(3, dtype=torch.int64),
        "masked_labels": torch.full((3,), -100),
    }
    batch |= {name: torch.cat([batch[name], more]) for name, more in filler.items()}
    if packed_rows:
        batch = {
            **pack(batch),
            "masked_labels": batch["masked_labels"],
            "pair_labels": batch["pair_labels"][:5],
        }
    elif family == "longformer" and choice == "padded":
        batch["global_attention_mask"] = torch.arange(29).expand(10, -1) % 13 == 0
    batch = laid(batch, choice)
    whole, first = learnt(model, batch)
    model.predicts_all_positions = False
    seen = []
    model.encoder.layers[-1].register_forward_hook(lambda _, __, states: seen.append(states.shape))
    read, second = learnt(model, batch)
    assert read.keys() == whole.keys() - {"hidden"}
    assert seen == [(sum(len(places) for places in model.head_positions(batch).values()), 16)]
    real = batch["masked_labels"] != -100
    for name, output in read.items():
        chosen = real if len(output) == len(real) else slice(None)
        torch.testing.assert_close(output[chosen], whole[name][chosen], atol=1e-5, rtol=1e-5)
    assert first.keys() == second.keys()
    for name, gradient in first.items():
        torch.testing.assert_close(second[name], gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("choice", CHOICES[1:])
@pytest.mark.parametrize("family", ALL_ROWS)
def test_outputs_and_gradients_are_those_of_padded_rows(family: str, choice: Choice) -> None:
    model = tiny_model(family=family, **ALL_ROWS[family])
    batch = uneven()
    padded, first = learnt(model, batch)
    without, second = learnt(model, laid(batch, choice))
    for name in padded.keys() - {"hidden"}:
        torch.testing.assert_close(without[name], padded[name], atol=1e-5, rtol=1e-5)
    real = batch["attention_mask"]
    torch.testing.assert_close(
        without["hidden"][real], padded["hidden"][real], atol=1e-5, rtol=1e-5
    )
    assert not without["hidden"][~real].any()
    assert first.keys() == second.keys()
    for name, gradient in first.items():
        torch.testing.assert_close(second[name], gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_sequences_are_as_they_are_alone(family: str, choice: Choice) -> None:
    """So no token sees another document, and positions begin anew."""
    model = tiny_model(family=family, **FAMILIES[family])
    alone = tiny_batch(rows=6, length=13)
    expected = model(alone)["mlm_logits"]
    torch.testing.assert_close(
        model(laid(pack(alone), choice))["mlm_logits"], expected, atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("choice", CHOICES)
def test_another_document_in_the_row_changes_nothing(choice: Choice) -> None:
    model, batch = tiny_model(), laid(pack(tiny_batch(rows=4, length=13)), choice)
    number = batch["sequence_first"].cumsum(1) * batch["attention_mask"]
    first, second = number == 1, number == 2
    other = {
        **batch,
        "input_ids": torch.where(second, 5 + (batch["input_ids"] - 4) % 20, batch["input_ids"]),
    }
    before, after = model(batch)["hidden"], model(other)["hidden"]
    assert before[first].equal(after[first])
    assert not before[second].allclose(after[second], atol=1e-2)


@pytest.mark.parametrize("packed_rows", [False, True])
def test_every_real_token_is_there_once(packed_rows: bool) -> None:
    batch = tiny_batch(rows=20, length=31)
    if packed_rows:
        batch = pack(batch)
    real = batch["attention_mask"]
    sequences = sequences_of(batch)
    expected = real.flatten().nonzero().squeeze(1)
    for tokens in (buckets(sequences), packed(sequences)):
        kept = tokens.flat_positions if tokens.real is None else tokens.flat_positions[tokens.real]
        assert kept.sort().values.equal(expected)
        assert real.flatten()[kept].all()
        back = tokens.put_back(batch["input_ids"].flatten()[tokens.flat_positions].float()[:, None])
        assert back.squeeze(2).long().equal(batch["input_ids"] * real)
        assert tokens.flat_positions[tokens.slots[expected]].equal(expected)
        first = sequences.first if packed_rows else 31 * torch.arange(20).numpy()
        assert (tokens.positions[tokens.slots[torch.from_numpy(first)]] == 0).all()


def test_buckets_have_few_shapes_and_little_padding() -> None:
    generator = np.random.default_rng(0)
    shapes, numbers = set(), set()
    for _ in range(50):
        lengths = generator.integers(1, 129, 32)
        tokens = buckets(Sequences.alone(lengths, 128))
        shapes |= set(tokens.groups)
        numbers.add(len(tokens.flat_positions))
        assert len(tokens.groups) == BUCKETS
        assert lengths.sum() < len(tokens.flat_positions) <= lengths.sum() + 128
        assert sum(rows * width for rows, width in tokens.groups) < 1.5 * lengths.sum()  # padded: 2
    assert len(shapes) <= 8  # eight rows, by multiples of 16
    assert all(number % 128 == 0 for number in numbers)


@pytest.mark.parametrize(
    ("compiled", "device", "varlen", "unpads", "packed_rows", "expected"),
    [
        (False, "cpu", False, True, False, "buckets"),
        (False, "cpu", False, True, True, "buckets"),
        (True, "cpu", False, True, False, "rows"),  # one fixed shape
        (True, "cuda", True, True, True, "packed"),  # layers are compiled for any shape
        (False, "cuda", True, True, False, "packed"),
        (False, "cuda", True, True, True, "packed"),
        (
            False,
            "cuda",
            False,
            True,
            False,
            "rows",
        ),  # fp32, an old card, wide heads: masked attention
        (False, "cuda", False, True, True, "rows"),
        (False, "cpu", False, False, False, "rows"),  # Longformer with its global tokens
        (False, "cuda", True, False, False, "rows"),
        (False, "cpu", False, False, True, "buckets"),  # packed rows have none
        (False, "cuda", True, False, True, "packed"),
    ],
)
def test_the_layout_of_a_run(
    compiled: bool, device: str, varlen: bool, unpads: bool, packed_rows: bool, expected: str
) -> None:
    assert (
        choose_layout(
            compiled=compiled, device=device, varlen=varlen, unpads=unpads, packed_rows=packed_rows
        )
        == expected
    )


def test_the_layout_of_networks() -> None:
    cpu = torch.device("cpu")
    bert, longformer = tiny_model(), tiny_model(family="longformer", **ALL_ROWS["longformer"])
    assert layout_for([bert], cpu, torch.float32) == "buckets"
    assert layout_for([bert], cpu, torch.bfloat16, compiled=True) == "rows"
    assert layout_for([bert, longformer], cpu, torch.float32) == "rows"
    assert layout_for([longformer], cpu, torch.float32, packed_rows=True) == "buckets"


@pytest.mark.parametrize(
    ("kind", "length", "several", "expected"),
    [
        ("buckets", 16, False, "buckets"),
        ("buckets", 32, False, None),  # too full on a CPU
        ("buckets", 32, True, "buckets"),
        ("packed", 16, False, "packed"),
        (
            "packed",
            32,
            False,
            "packed",
        ),  # a GPU's kernel is faster than masked attention however full the batch is
        ("rows", 16, False, None),
        ("rows", 32, True, "rows"),
    ],
)
def test_padding_is_left_out_where_there_is_enough_of_it(
    kind: Any, length: int, several: bool, expected: str | None
) -> None:
    lengths = np.full(8, length)
    found = make_layout(
        kind, Sequences(shape=(8, 32), first=np.arange(8) * 32, lengths=lengths, packed=several)
    )
    kind = "rows"
    if found is not None and found.flat_positions is not None:
        kind = "buckets" if found.causal_first is None else "packed"
    assert (None if found is None else kind) == expected


def test_a_row_of_padding_alone_is_left_out_unharmed() -> None:
    model, batch = tiny_model(), tiny_batch(rows=5, length=12)
    expected = model(batch)["hidden"]
    batch["attention_mask"][2:4] = False
    found = model(laid(batch, "buckets"))["hidden"]
    assert not found[2:4].any()
    others = batch["attention_mask"]
    torch.testing.assert_close(found[others], expected[others], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_maps_of_every_family(family: str) -> None:
    """Probabilities, one map a layer, and of what the model really does: the values that they mix
    are its own.
    """
    model, batch = tiny_model(family=family, **FAMILIES[family]), tiny_batch(rows=3, length=11)
    ids, real, segments = batch["input_ids"], batch["attention_mask"], batch["token_type_ids"]
    maps = attention_maps(model.encoder, ids, real, segments)
    assert [tuple(found.shape) for found in maps] == [(3, 4, 11, 11)] * 2
    for found in maps:
        torch.testing.assert_close(found.sum(-1), torch.ones(3, 4, 11))
        assert not found.transpose(0, 1)[:, ~real[:, None, :].expand(3, 11, 11)].any()


def test_maps_are_those_that_transformers_returns() -> None:
    from tests.parity.families import Case, their_inputs

    modern = {"type_vocab_size": 0, "local_attention": 4}
    for case in (
        Case(family="bert"),
        Case(family="modern", changes=modern),
        Case(family="deberta"),
    ):
        theirs = case.theirs()
        theirs.set_attn_implementation("eager")
        ours, batch = case.ours(theirs), tiny_batch(rows=3, length=11)
        ids, real = batch["input_ids"], batch["attention_mask"]
        with torch.no_grad():
            expected = theirs(**their_inputs(theirs, batch), output_attentions=True).attentions
        found = attention_maps(ours.encoder, ids, real, batch["token_type_ids"])
        for first, second in zip(found, expected, strict=True):
            torch.testing.assert_close(
                first.transpose(1, 2)[real], second.transpose(1, 2)[real], atol=1e-5, rtol=0
            )
