"""Stage "dataset", between its steps: how often each piece stands in the training rows, for masks whose random pieces follow it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipeline.core.arrow import read_arrow, release, write_arrow
from pipeline.core.ragged import I64
from pipeline.dataset.merge import Part

FILE = "unigrams.arrow"
SCHEMA = pa.schema([pa.field("count", pa.int64(), nullable=False)])


def write_unigrams(path: str, parts: tuple[Part, ...], vocab_size: int) -> None:
    """Count the ids of all parts' rows, and write the counts: one a piece, in the order of ids."""
    counts = np.zeros(vocab_size, np.int64)
    for part in parts:
        if part.batch is not None:
            counts += np.bincount(part.batch["input_ids"].values.to_numpy(), minlength=vocab_size)
            release(part.buffer)
    write_arrow(path, SCHEMA, [pa.RecordBatch.from_arrays([pa.array(counts)], schema=SCHEMA)])


def read_unigrams(path: str) -> I64:
    """Read them back: int64 [V]."""
    found: I64 = read_arrow(path)["count"].to_numpy()
    return found
