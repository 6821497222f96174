"""Several datasets as one: which of them a sample comes from, in whose own order, and their rows
behind one table.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.model.data.mixture import (
    BLOCK,
    ConcatenatedRows,
    MixtureAssignment,
    MixtureSampler,
    quotas,
)
from cloze.model.data.sampler import Sampler
from cloze.model.data.shards import ShardedRows
from tests.model.data.test_bins import scattered
from tests.model.datasets import write_dataset

SEEDS = st.integers(0, (1 << 63) - 1)
WEIGHTS = st.lists(st.floats(0.01, 100.0), min_size=2, max_size=5)


@settings(max_examples=40, deadline=None)
@given(WEIGHTS, SEEDS, st.integers(1, 33), st.integers(0, 5 * BLOCK), st.integers(1, 400))
def test_each_dataset_goes_on_in_its_own_order_wherever_one_begins(
    weights: list[float], seed: int, group: int, start: int, count: int
) -> None:
    draw = MixtureAssignment(quotas(weights), seed, group)
    sources, numbers = draw.locate(np.arange(start, start + count))
    before, after = draw.before(start), draw.before(start + count)
    for source in range(len(weights)):
        mine = np.sort(numbers[sources == source])
        assert mine.tolist() == list(range(before[source], after[source])) or group > 1
        assert len(mine) == after[source] - before[source]
    shuffled = np.random.default_rng(0).permutation(count)
    again = draw.locate(np.arange(start, start + count)[shuffled])
    assert np.array_equal(again[0], sources[shuffled])
    assert np.array_equal(again[1], numbers[shuffled])
    whole = start // group == (start + group - 1) // group
    if whole and count >= group:  # a unit is a group of one dataset
        assert len(set(sources[:group].tolist())) == 1
        assert numbers[:group].tolist() == list(range(int(numbers[0]), int(numbers[0]) + group))


def test_samples_of_a_dataset_come_one_after_another_through_blocks() -> None:
    draw = MixtureAssignment(quotas([3, 1, 0.2]), 7)
    sources, numbers = draw.locate(np.arange(3 * BLOCK))
    for source in range(3):
        assert np.array_equal(numbers[sources == source], np.arange((sources == source).sum()))


@pytest.mark.parametrize("samples", [500, 5_000, 50_000])
def test_shares_of_the_draws_are_the_weights_within_their_error(samples: int) -> None:
    """Drawing without putting back strays less than independent draws, of which four standard
    errors are one in 16,000.
    """
    weights = [5.0, 3.0, 1.0, 0.1]
    shares = np.array(weights) / sum(weights)
    for seed in range(20):
        counts = np.array(MixtureAssignment(quotas(weights), seed).before(samples))
        errors = 4 * np.sqrt(samples * shares * (1 - shares)) + 2
        assert (np.abs(counts - samples * shares) <= errors).all(), (seed, counts)
    spread = [MixtureAssignment(quotas(weights), seed).before(samples)[1] for seed in range(20)]
    assert len(set(spread)) > 5  # and it is a draw, not a pattern


def test_shares_of_a_block_are_exact_to_a_65536th() -> None:
    found = MixtureAssignment(quotas([2, 1]), 1).before(BLOCK)
    assert found == list(quotas([2, 1])) == [43691, 21845]
    assert sum(quotas([1 / 3, 1 / 7, 1 / 11])) == BLOCK


def test_a_weight_near_zero_is_one_in_a_block_and_one_below_that_is_refused() -> None:
    assert quotas([BLOCK - 1, 1]) == (BLOCK - 1, 1)
    assert MixtureAssignment(quotas([BLOCK - 1, 1]), 3).before(4 * BLOCK) == [4 * (BLOCK - 1), 4]
    with pytest.raises(ValueError, match="1"):
        quotas([1.0, 1e-9])


@settings(max_examples=30, deadline=None)
@given(st.integers(3, 90), st.integers(3, 90), SEEDS, st.integers(0, 200))
def test_every_epoch_of_each_dataset_is_its_own_shuffled_order(
    first: int, second: int, seed: int, begun: int
) -> None:
    """Whatever is mixed with it, a dataset's rows and mask copies come in the order in which it
    would be read alone.
    """
    samplers = (Sampler(first, 2, seed), Sampler(second, 3, seed))
    mixed = MixtureSampler(samplers, MixtureAssignment(quotas([2, 1]), seed), (begun, 0))
    samples = np.arange(4 * (first + second))
    rows, copies = mixed.locate(samples)
    for number, (sampler, start, size) in enumerate(
        zip(samplers, (0, first), (first, second), strict=True)
    ):
        mine = (rows >= start) & (rows < start + size)
        begin = begun if number == 0 else 0
        alone = sampler.locate(np.arange(begin, begin + mine.sum()))
        assert np.array_equal(rows[mine] - start, alone[0])
        assert np.array_equal(copies[mine], alone[1])
        assert mixed.next_samples(len(samples))[number] == begin + mine.sum()


def test_rows_of_one_length_stay_together() -> None:
    """With length bins a group of samples is of one dataset and of one bin, at the same places as
    in a dataset alone.
    """
    bins = scattered([64, 96, 32])
    samplers = (Sampler(192, 1, 5, bins, 8), Sampler(192, 1, 5, bins, 8))
    mixed = MixtureSampler(samplers, MixtureAssignment(quotas([3, 2]), 5, 8), (0, 0))
    rows, _ = mixed.locate(np.arange(8 * 100))
    number = np.searchsorted(np.cumsum([64, 96]), np.zeros(1), side="right")
    assert number[0] == 0
    of = np.empty(192, np.int64)
    for place, start in enumerate((0, 64, 160)):
        of[bins.row(np.arange(start, start + (64, 96, 32)[place]))] = place
    for group in rows.reshape(-1, 8):
        assert len(set((group // 192).tolist())) == 1
        assert len(set(of[group % 192].tolist())) == 1


def test_rows_are_those_of_their_dataset(tmp_path: Path) -> None:
    parts = {
        name: ShardedRows(write_dataset(tmp_path / name, rows=20 + seed, seed=seed))
        for seed, name in enumerate(("a", "b", "c"))
    }
    mixed = ConcatenatedRows(parts, [0.5, 0.3, 0.2])
    assert len(mixed) == 20 + 21 + 22
    rows, copies = np.array([62, 0, 41, 20, 5, 40, 19]), np.array([0, 1, 0, 1, 0, 1, 0])
    found = mixed.take(rows, copies)
    assert mixed.source(rows).tolist() == [2, 0, 2, 1, 0, 1, 0]
    assert mixed.local(rows).tolist() == [21, 0, 0, 0, 5, 20, 19]
    at = 0
    for place, (name, row) in enumerate(zip("caccaab", (21, 0, 0, 0, 5, 20, 19), strict=True)):
        name = "abc"[int(mixed.source(rows)[place])]
        alone = parts[name].take(np.array([row]), copies[place : place + 1])
        length = int(found.lengths[place])
        assert np.array_equal(found.ids[at : at + length], alone.ids)
        assert int(found.counts[place]) == int(alone.counts[0])
        assert found.documents[place] == alone.documents[0]
        at += length
    assert mixed.by_source(rows, found.lengths) == [
        int(found.lengths[mixed.source(rows) == source].sum()) for source in range(3)
    ]
    assert len(mixed.take(rows[:0], copies[:0]).lengths) == 0
    assert math.isclose(sum(mixed.shares.values()), 1.0)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 29), st.integers(0, 9)), max_size=12))
def test_sums_have_a_place_for_each_dataset_whichever_rows_there_are(
    drawn: list[tuple[int, int]],
) -> None:
    """Of no row, of the first datasets only, of the last only."""
    mixed = ConcatenatedRows.__new__(ConcatenatedRows)
    mixed._shards, mixed._starts = [None] * 3, np.array([0, 10, 20])  # type: ignore[list-item]
    rows = np.array([row for row, _ in drawn], np.int64)
    values = np.array([value for _, value in drawn], np.int64)
    assert mixed.by_source(rows, values) == [
        sum(value for row, value in drawn if row // 10 == dataset) for dataset in range(3)
    ]
