"""From examples to batches: nothing is lost, nothing comes twice, and padding changes no answer."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.model.tasks.encode import encode, evaluation_batches, training_batches, truncate
from cloze.model.tasks.heads import new_network
from cloze.model.tasks.predict import predict
from cloze.model.tasks.source import TaskObjective
from cloze.model.tasks.table import load_task
from cloze.model.train.distributed import World

ALONE = World(rank=0, size=1, device=torch.device("cpu"))


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 60))
def test_truncation_is_berts(first, second, room):
    a, b = first, second
    while a + b > room:  # _truncate_seq_pair of google-research/bert's run_classifier.py
        if a > b:
            a -= 1
        else:
            b -= 1
    assert truncate(first, second, room) == (a, b)


@given(
    st.lists(st.integers(3, 128), min_size=1, max_size=300),
    st.integers(1, 9),
    st.integers(0, 2**63 - 1),
    st.integers(0, 5),
)
@settings(max_examples=40, deadline=None)
def test_every_example_comes_once_an_epoch_in_full_batches(lengths, size, seed, epoch):
    lengths = np.array(lengths)
    batches = training_batches(lengths, size, seed, epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert sorted(map(len, batches))[1:] == [size] * (len(batches) - 1)
    again = training_batches(lengths, size, seed, epoch)
    assert all((a == b).all() for a, b in zip(batches, again, strict=True))
    inferred = evaluation_batches(lengths, 128 * size)
    assert sorted(np.concatenate(inferred).tolist()) == list(range(len(lengths)))
    ordered = lengths[np.concatenate(inferred)]
    assert (np.diff(ordered) <= 0).all()
    assert all(lengths[batch].max() * len(batch) <= 128 * size for batch in inferred)
    assert all(  # and no batch had room for a sample of the next one
        lengths[batch].max() * (len(batch) + 1) > 128 * size for batch in inferred[:-1]
    )


def test_epochs_and_seeds_have_orders_of_their_own_and_batches_like_lengths():
    lengths = np.arange(3000) * 7919 % 120 + 3
    orders = {
        tuple(np.concatenate(training_batches(lengths, 16, seed, epoch)))
        for seed in (1, 2)
        for epoch in (0, 1)
    }
    assert len(orders) == 4
    spread = [int(np.ptp(lengths[batch])) for batch in training_batches(lengths, 16, 1, 0)]
    assert np.mean(spread) < 120 / 8


def test_sequences_are_framed_and_truncated_ones_counted(pieces):
    data = encode(["good film", "the film is very very good"], None, pieces, max_length=5)
    words = [[pieces.backend.id_to_token(int(i)) for i in sequence] for sequence in data.sequences]
    assert words == [["[CLS]", "good", "film", "[SEP]"], ["[CLS]", "the", "film", "is", "[SEP]"]]
    assert data.truncated == 1


def test_a_text_cannot_make_a_special_token(pieces):
    data = encode(["good [SEP] film"], None, pieces, max_length=32)
    assert data.sequences[0].tolist().count(pieces.special.sep) == 1


def test_pairs_have_two_segments(pieces):
    data = encode(["good film", "bad"], ["the plot", "cold , dull"], pieces, max_length=32)
    batch = data.batch([0, 1])
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1]]
    assert batch["attention_mask"].all()
    assert (batch["input_ids"] == pieces.special.sep).sum(1).tolist() == [2, 2]


def test_targets_come_with_their_samples(pieces):
    targets = {
        "stars": np.array([0.5, 3.0, 4.5], np.float32),
        "span": np.array([[0, 1], [1, 2], [2, 2]]),
    }
    batch = encode(["good", "bad", "good film"], None, pieces, 32, targets).batch([2, 0])
    assert batch["stars"].tolist() == [4.5, 0.5]
    assert batch["span"].tolist() == [[2, 2], [0, 1]]
    assert batch["input_ids"].shape == (2, 4)


def test_padding_is_masked_and_belongs_to_no_segment(pieces):
    data = encode(["good", "good film with the cast"], None, pieces, max_length=32)
    batch = data.batch(np.array([0, 1]))
    assert batch["attention_mask"].sum(1).tolist() == [3, 7]
    assert batch["input_ids"][0, 3:].tolist() == [pieces.special.pad] * 4
    assert batch["token_type_ids"].sum() == 0
    assert batch["attention_mask"].dtype == torch.bool


def test_company_in_a_batch_changes_no_answer(pieces, shape):
    texts = [("good film the plot is cold and dull . " * 3)[: 5 * n] for n in range(1, 25)]
    task, meaning = load_task("sst2"), {"labels": ["0", "1"]}
    objective = TaskObjective(
        task, new_network(task, shape, None, meaning, None, seed=1), "fp32", ALONE.device
    ).eval()
    together = predict(objective, encode(texts, None, pieces, 32), ALONE)
    alone = [predict(objective, encode([text], None, pieces, 32), ALONE)[0] for text in texts]
    np.testing.assert_allclose(together, alone, atol=1e-6)
    np.testing.assert_allclose(np.sum(together, axis=1), 1.0, atol=1e-6)
