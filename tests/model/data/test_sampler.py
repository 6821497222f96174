"""The order of the data: a permutation an epoch, found in O(1), the same however it is cut."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core import random_keys
from cloze.model.data.sampler import Sampler, permute, shard_range

COUNTS = st.integers(1, 3000)
SEEDS = st.integers(0, (1 << 63) - 1)


@given(COUNTS, SEEDS)
@settings(max_examples=25, deadline=None)
def test_a_key_names_a_bijection(count: int, seed: int) -> None:
    found = permute(np.arange(count), count, random_keys.fold_in(seed))
    assert np.array_equal(np.sort(found), np.arange(count))


@given(st.integers(1, 400), st.integers(1, 7), SEEDS, st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_an_epoch_visits_every_row_once_with_its_mask_copy(
    rows: int, copies: int, seed: int, epoch: int
) -> None:
    found, masks = Sampler(rows, copies, seed).locate(np.arange(epoch * rows, (epoch + 1) * rows))
    assert np.array_equal(np.sort(found), np.arange(rows))
    assert (masks == epoch % copies).all()


@given(st.integers(1, 500), SEEDS, st.integers(0, 2000), st.integers(1, 200))
@settings(max_examples=20, deadline=None)
def test_any_sample_is_found_without_those_before_it(
    rows: int, seed: int, start: int, size: int
) -> None:
    sampler = Sampler(rows, 3, seed)
    together = sampler.locate(np.arange(start, start + size))
    alone = [sampler.locate(np.array([sample])) for sample in range(start, start + size)]
    assert np.array_equal(together[0], [row[0] for row, _ in alone])
    assert np.array_equal(together[1], [copy[0] for _, copy in alone])


def test_epochs_and_seeds_differ_and_the_order_looks_random() -> None:
    sampler, rows = Sampler(5000, 1, 7), 5000
    orders = [sampler.locate(np.arange(epoch * rows, (epoch + 1) * rows))[0] for epoch in range(3)]
    orders.append(Sampler(rows, 1, 8).locate(np.arange(rows))[0])
    for number, order in enumerate(orders):
        for other in orders[number + 1 :]:
            assert (order == other).mean() < 0.01
        assert abs(np.corrcoef(np.arange(rows), order)[0, 1]) < 0.05
        assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.05


@given(st.integers(0, 10_000), st.integers(0, 500), st.integers(1, 40))
def test_shares_are_the_whole_and_even(start: int, size: int, parts: int) -> None:
    pieces = [shard_range(start, start + size, part, parts) for part in range(parts)]
    assert [sample for low, high in pieces for sample in range(low, high)] == list(
        range(start, start + size)
    )
    lengths = [high - low for low, high in pieces]
    assert max(lengths) - min(lengths) <= 1
