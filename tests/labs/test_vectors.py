"""Files of vectors: read as they were written, and refused where they are of something else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core.arrow import write_arrow
from cloze.core.errors import DataError
from cloze.labs.vectors import SCALE, quantize, read_vectors, vectors_batch, vectors_schema


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
    assert found.shape == (count, width)
    assert (str(found.dtype), str(found_keys.dtype)) == ("int16", "uint64")
    lengths = np.linalg.norm(found.astype(np.float64), axis=1)
    for row, length in zip(raw, lengths, strict=True):
        assert length == pytest.approx(SCALE if row.any() else 0, rel=1e-3)


def test_a_file_of_other_columns_has_no_vectors(tmp_path: Path) -> None:

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
