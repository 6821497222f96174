"""Ragged arrays against lists of lists: empty rows, no rows, rows that are taken twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core.arrow import (
    SCALE,
    quantize,
    read_vectors,
    vectors_batch,
    vectors_schema,
    write_arrow,
)
from cloze.core.errors import DataError
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


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=3), st.integers(1, 3))
def test_vectors_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, batches: list[int], width: int
) -> None:
    """No batch, empty ones, several; a key each, and unit length but for a zero vector."""
    path = str(tmp_path_factory.mktemp("vectors") / "v.arrow")
    count = sum(batches)
    keys = np.arange(count, dtype=np.uint64) * 7
    raw = np.arange(count * width).reshape(count, width)
    vectors, ends = quantize(raw), np.cumsum(batches, dtype=np.int64)
    parts = [slice(int(end) - size, int(end)) for size, end in zip(batches, ends, strict=True)]
    rows = [vectors_batch(keys[part], vectors[part]) for part in parts]
    write_arrow(path, vectors_schema(width), rows)
    found_keys, found = read_vectors(path)
    assert (found_keys.tolist(), found.tolist()) == (keys.tolist(), vectors.tolist())
    assert (found.shape, found.dtype, found_keys.dtype) == ((count, width), np.int16, np.uint64)
    lengths = np.linalg.norm(found.astype(np.float64), axis=1)
    for row, length in zip(raw, lengths, strict=True):
        assert length == pytest.approx(SCALE if row.any() else 0, rel=1e-3)


def test_a_file_of_other_columns_has_no_vectors(tmp_path: Path) -> None:
    import pyarrow as pa

    for number, table in enumerate(
        (
            pa.table({"key": [1], "vector": [[1.0, 2.0]]}),  # of any length
            pa.table({"key": [1]}),
            pa.table({"vector": [[1]], "key": [1]}),
        )
    ):
        path = str(tmp_path / f"{number}.arrow")
        write_arrow(path, table.schema, table.to_batches())
        with pytest.raises(DataError, match="contains no vectors"):
            read_vectors(path)
