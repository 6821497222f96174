"""Arrow arrays in a worker: without pandas until something converts to it."""

from __future__ import annotations

import subprocess
import sys

# pytest's own process may have imported pandas before
WORKER = """
import sys
import pyarrow as pa
from cloze.core.arrow import spare_pandas

finders = list(sys.meta_path)
spare_pandas()
rows = [{"a": ["x"]}, {"a": None}]
table = pa.Table.from_pylist(rows)
assert "pandas" not in sys.modules
assert sys.meta_path[: len(finders)] == finders
assert table.to_pylist() == rows
import pandas
assert table.to_pandas()["a"].isna().tolist() == [False, True]
assert pa.array(pandas.Series([1, None])).null_count == 1
"""


def test_a_worker_makes_arrays_without_pandas_and_converts_to_it_when_asked() -> None:
    ended = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
