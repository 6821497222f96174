"""Ragged arrays against lists of lists: empty rows, no rows, rows that are taken twice."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cloze.core.ragged import Ragged, offsets_of, ranges

LISTS = st.lists(st.lists(st.integers(-9, 9), max_size=4), max_size=6)


def ragged(lists: list[list[int]]) -> Ragged:
    lengths = np.array([len(row) for row in lists], np.int64)
    return Ragged(
        np.array([value for row in lists for value in row], np.int64), offsets_of(lengths)
    )


def lists_of(rows: Ragged) -> list[list[int]]:
    return [
        rows.values[start:stop].tolist()
        for start, stop in zip(rows.offsets[:-1], rows.offsets[1:], strict=True)
    ]


@given(LISTS, st.data())
def test_rows_are_taken_in_the_order_that_is_asked(
    lists: list[list[int]], data: st.DataObject
) -> None:
    rows = ragged(lists)
    assert (len(rows), rows.lengths.tolist()) == (len(lists), [len(row) for row in lists])
    assert lists_of(rows) == lists
    places = st.lists(st.integers(0, len(lists) - 1), max_size=8) if lists else st.just([])
    index = np.array(data.draw(places), np.int64)
    assert lists_of(rows.take(index)) == [lists[number] for number in index]


@given(st.lists(LISTS, min_size=1, max_size=4))
def test_parts_follow_each_other(parts: list[list[list[int]]]) -> None:
    together = Ragged.concatenate([ragged(part) for part in parts])
    assert lists_of(together) == [row for part in parts for row in part]


@given(st.lists(st.tuples(st.integers(-5, 50), st.integers(0, 4)), max_size=6))
def test_ranges_are_those_of_python(pairs: list[tuple[int, int]]) -> None:
    starts, lengths = ([pair[number] for pair in pairs] for number in (0, 1))
    found = ranges(np.array(starts, np.int64), np.array(lengths, np.int64))
    assert found.tolist() == [n for start, length in pairs for n in range(start, start + length)]
