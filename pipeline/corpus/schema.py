"""The Arrow schema of a corpus shard: one row is one document."""

from __future__ import annotations

import pyarrow as pa

VERSION = 1

# One row is one document. `sentences` are in order; `paragraphs` holds the index of each sentence that opens
# a paragraph, so `sentences` and `paragraphs` together are the whole text.
CORPUS = pa.schema(
    [
        pa.field("key", pa.uint64(), nullable=False),  # blake2b of `id`: the document's random number seed
        pa.field("id", pa.string(), nullable=False),  # source kind / file / the document's own name
        pa.field("source", pa.string(), nullable=False),  # the reader's name: wikipedia, books, …
        pa.field("title", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),  # train | heldout, from `key` alone
        pa.field("sentences", pa.list_(pa.string()), nullable=False),
        pa.field("paragraphs", pa.list_(pa.int32()), nullable=False),
    ],
    metadata={"cloze.corpus": str(VERSION)},
)
