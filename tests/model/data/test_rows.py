"""What is done with the rows of a batch is done with each of them, the last without masks too."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core.ragged import offsets_of
from cloze.labs.xlnet.two_stream import Permutation
from cloze.model.data.masks import MaskRateSchedule
from cloze.model.data.rows import MaskedRows

MEMORY = 3
SCHEDULE = MaskRateSchedule(last=0.2, first=2, steps=4, seed=5)
ORDER = Permutation(seed=5, memory=MEMORY)


@st.composite
def batches(draw: st.DrawFn) -> MaskedRows:
    """Rows of 1 to 9 tokens with none to all of them masked, packed or not."""
    masks = draw(st.lists(st.lists(st.booleans(), min_size=1, max_size=9), min_size=1, max_size=6))
    lengths = np.array([len(row) for row in masks])
    counts = np.array([sum(row) for row in masks])
    packed = draw(st.booleans())
    bounds = [draw(st.lists(st.integers(0, 8), max_size=3)) for _ in masks]
    count = len(masks)
    return MaskedRows(
        ids=100 + np.arange(lengths.sum()),
        lengths=lengths,
        segment_start=np.arange(count),
        pair_labels=np.arange(count) - 100,
        positions=np.concatenate([np.flatnonzero(row) for row in masks]),
        replacements=1000 + np.arange(counts.sum()),
        counts=counts,
        documents=np.arange(count).astype(np.uint64),
        sentences=7 * np.arange(count),
        boundaries=np.array([start for row in bounds for start in row if packed], np.int64),
        boundary_counts=np.array([len(row) for row in bounds]) if packed else None,
    )


def told(rows: MaskedRows) -> list[dict[str, Any]]:
    """Each row as plain values."""
    parts = {"ids": rows.lengths, "positions": rows.counts, "replacements": rows.counts}
    if rows.boundary_counts is not None:
        parts["boundaries"] = rows.boundary_counts
    found: list[dict[str, Any]] = [{} for _ in rows.lengths]
    for field in dataclasses.fields(rows):
        values = getattr(rows, field.name)
        if values is None or (field.name == "boundaries" and rows.boundary_counts is None):
            continue
        if field.name in parts:
            assert len(values) == parts[field.name].sum(), field.name
            offsets = offsets_of(parts[field.name])
            values = [values[a:b].tolist() for a, b in zip(offsets, offsets[1:], strict=False)]
        assert len(values) == len(found), field.name
        for row, value in zip(found, values, strict=True):
            row[field.name] = value
    return found


CHANGES: dict[str, Callable[[MaskedRows, Any], MaskedRows]] = {
    "thinned": lambda rows, samples: SCHEDULE.subsample(rows, samples, 5),
    "in an order": lambda rows, samples: ORDER.targets(rows),
    "bare": lambda rows, samples: rows.without_masks(samples % 2 == 0),
}


@pytest.mark.parametrize("change", CHANGES)
@settings(max_examples=60, deadline=None)
@given(rows=batches(), first=st.integers(0, 1 << 40))
def test_a_row_fares_in_a_batch_as_it_does_alone(change: str, rows: MaskedRows, first: int) -> None:
    samples = first + np.arange(len(rows.lengths))
    alone = [
        CHANGES[change](rows.ordered(np.array([n])), samples[n : n + 1])
        for n in range(len(samples))
    ]
    together = told(CHANGES[change](rows, samples))
    assert together == [row for one in alone for row in told(one)]
    assert together == told(MaskedRows.concatenate(alone))


@settings(max_examples=60, deadline=None)
@given(rows=batches(), data=st.data())
def test_rows_are_taken_in_any_order_and_put_together_again(
    rows: MaskedRows, data: st.DataObject
) -> None:
    numbers = data.draw(st.lists(st.integers(0, len(rows.lengths) - 1), max_size=8))
    taken = rows.ordered(np.array(numbers, np.int64))
    assert told(taken) == [told(rows)[number] for number in numbers]
    assert told(MaskedRows.concatenate([rows, taken])) == told(rows) + told(taken)


@settings(max_examples=60, deadline=None)
@given(rows=batches())
def test_what_is_predicted_in_an_order_keeps_its_own_token_and_the_memory_is_given(
    rows: MaskedRows,
) -> None:
    for before, after in zip(told(rows), told(ORDER.targets(rows)), strict=True):
        kept = [position for position in before["positions"] if position >= MEMORY]
        assert after == {
            **before,
            "positions": kept,
            "replacements": [before["ids"][position] for position in kept],
            "counts": len(kept),
        }
    offsets = offsets_of(rows.counts)
    numbers = ORDER.numbers(rows, np.arange(len(rows.lengths)))
    for begin, end in zip(offsets, offsets[1:], strict=False):
        assert sorted(numbers[begin:end]) == list(range(1, end - begin + 1))


def test_the_order_is_another_for_another_row_sample_and_seed() -> None:
    rows = _masked(64, 2)
    first, second = ORDER.numbers(rows, np.array([7, 7])).reshape(2, 64)
    assert first.tolist() == second.tolist(), "it depends on the sample, not on its place"
    others = [
        ORDER.numbers(rows, np.array([7, 8]))[64:],
        dataclasses.replace(ORDER, seed=6).numbers(rows, np.array([7, 7]))[:64],
    ]
    for other in others:
        assert (other != first).sum() > 48


def _masked(length: int, count: int) -> MaskedRows:
    """Rows of which every token is masked."""
    return dataclasses.replace(
        MaskedRows.none(),
        ids=np.tile(np.arange(length), count),
        lengths=np.full(count, length),
        segment_start=np.full(count, length),
        pair_labels=np.full(count, -100),
        positions=np.tile(np.arange(length), count),
        replacements=np.zeros(length * count, np.int64),
        counts=np.full(count, length),
        documents=np.zeros(count, np.uint64),
        sentences=np.zeros(count, np.int64),
    )


def test_the_share_of_masks_falls_in_a_line_and_what_is_used_later_was_used_before() -> None:
    shares = [SCHEDULE.share_at(step) for step in range(8)]
    assert shares == pytest.approx([1, 1, 1, 0.8, 0.6, 0.4, 0.2, 0.2])
    rows, samples = _masked(1000, 2), np.array([3, 4])
    before = {(n, m) for n in range(2) for m in range(1000)}
    for step, share in enumerate(shares):
        found = told(SCHEDULE.subsample(rows, samples, step))
        kept = {(n, position) for n, row in enumerate(found) for position in row["positions"]}
        assert kept <= before
        assert len(kept) == pytest.approx(2000 * share, abs=100)
        before = kept
    assert found[0]["positions"] != found[1]["positions"]
