"""How often each piece stands in a dataset's training rows, for masks whose random pieces follow the text: a file of the artifact."""

from __future__ import annotations

import pyarrow as pa

from pipeline.core.arrow import read_arrow, write_arrow
from pipeline.core.ragged import I64

UNIGRAMS = "unigrams.arrow"
SCHEMA = pa.schema([pa.field("count", pa.int64(), nullable=False)])


def write_unigrams(path: str, counts: I64) -> None:
    """Write the counts, int64 [V]: one a piece, in the order of ids."""
    write_arrow(path, SCHEMA, [pa.RecordBatch.from_arrays([pa.array(counts)], schema=SCHEMA)])


def read_unigrams(path: str) -> I64:
    """Read them back: int64 [V]."""
    found: I64 = read_arrow(path)["count"].to_numpy()
    return found
