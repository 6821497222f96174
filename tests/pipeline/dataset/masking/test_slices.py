"""Rows that are cut into slices: nothing of a row is lost, and none sees its neighbour's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.pipeline.dataset.masking.candidates import UnmaskedRows
from tests.pipeline.dataset.masking.rows import make_rows


@given(st.lists(st.integers(5, 9), min_size=1, max_size=7), st.data())
@pytest.mark.parametrize("has_spans", [True, False])
def test_a_slice_has_its_rows_and_no_others(
    has_spans: bool, lengths: list[int], data: st.DataObject
) -> None:
    rows = make_rows(lengths)
    if has_spans:
        rows = replace(rows, marks=np.arange(sum(lengths)).astype(np.uint8))
    first = data.draw(st.integers(0, len(lengths)))
    end = data.draw(st.integers(first, len(lengths)))
    found = rows.slice(first, end)
    assert len(found) == end - first
    assert found.keys.tolist() == rows.keys[first:end].tolist()
    assert found.segment_start.tolist() == rows.segment_start[first:end].tolist()
    assert np.diff(found.offsets).tolist() == lengths[first:end]
    before, size = sum(lengths[:first]), sum(lengths[first:end])
    assert found.offsets[0] == 0
    assert found.input_ids.tolist() == rows.input_ids[before : before + size].tolist()
    assert (found.marks is None) == (not has_spans)
    if found.marks is not None:
        assert found.marks.tolist() == list(range(before, before + size))


def test_slices_together_are_the_whole() -> None:
    rows = make_rows([5, 6, 7, 8])
    parts: list[UnmaskedRows] = [rows.slice(n, n + 1) for n in range(4)]
    assert np.concatenate([part.input_ids for part in parts]).tolist() == rows.input_ids.tolist()
    assert np.shares_memory(parts[2].input_ids, rows.input_ids)
