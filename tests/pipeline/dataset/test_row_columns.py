"""Lists of a row that only some datasets have go wherever its tokens go."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.core.ragged import Ragged, offsets_of
from cloze.pipeline.dataset.rows import LISTS, RowBlock, part_schema


def block(lengths: list[int], names: list[str]) -> RowBlock:
    """Rows whose lists say by their numbers which row they are of."""
    count, rows = len(lengths), np.arange(len(lengths))
    offsets = offsets_of(np.array(lengths, np.int64))
    values = np.repeat(rows, lengths)
    return RowBlock(
        rank=rows.astype(np.uint64),
        ids=Ragged(values.astype(np.uint16), offsets),
        segment_start=rows.astype(np.int32),
        pair_label=np.full(count, -1, np.int8),
        document=rows.astype(np.uint64),
        offset=rows.astype(np.int64),
        columns={
            name: Ragged(values.astype(LISTS[name].to_pandas_dtype()), offsets) for name in names
        },
    )


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=8),
    st.lists(st.sampled_from(sorted(LISTS)), unique=True),
    st.data(),
)
def test_columns_follow_their_rows(lengths: list[int], names: list[str], data: st.DataObject):
    whole = block(lengths, names)
    order = data.draw(st.permutations(range(len(lengths))))
    moved = whole.take(np.array(order))
    cut = data.draw(st.integers(0, len(lengths)))
    parts = [moved.take(np.arange(cut)), moved.take(np.arange(cut, len(lengths)))]
    arrow = RowBlock.concatenate(parts).to_arrow()
    schema = part_schema(1000, names)
    assert {*arrow.schema.names} == {*schema.names}
    again = RowBlock.from_arrow(arrow.select(schema.names).cast(schema))
    assert set(again.columns) == set(names)
    assert ("marks" in names) == (again.with_keys(1).marks is not None)
    for name in names:
        for row, source in enumerate(order):
            own = again.columns[name]
            assert set(own.values[own.offsets[row] : own.offsets[row + 1]].tolist()) == {source}


@pytest.mark.parametrize("name", sorted(LISTS))
def test_a_schema_has_the_columns_that_are_asked_for(name: str) -> None:
    assert name in part_schema(1000, [name]).names
    assert name not in part_schema(1000, []).names
