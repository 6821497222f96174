"""The counts of tokens that random replacements are drawn by: of all training rows, in all files."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.pipeline.dataset import merge

PART = pa.schema([pa.field("input_ids", pa.list_(pa.uint16()))])


@given(
    st.lists(
        st.lists(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=3), max_size=3),
        min_size=1,
        max_size=3,
    )
)
def test_each_token_of_each_batch_of_each_file_counts(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[list[list[int]]]]
) -> None:
    paths = []
    for number, batches in enumerate(files):
        path = str(tmp_path_factory.mktemp("parts") / f"{number}.arrow")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, PART) as writer:
            for rows in batches:
                writer.write_batch(
                    pa.record_batch([pa.array(rows, PART.field(0).type)], schema=PART)
                )
        paths.append(path)
    everything = [token for batches in files for rows in batches for row in rows for token in row]
    expected = np.bincount(np.array(everything, np.int64), minlength=12)
    assert merge.count_tokens(paths, PART, 12).tolist() == expected.tolist()
