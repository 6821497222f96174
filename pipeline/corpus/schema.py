"""The Arrow schema of a corpus shard: one row is one document."""

from __future__ import annotations

import pyarrow as pa

from pipeline.corpus.document import Field

VERSION = 3  # 2: url, licence, origin; 3: infobox; whoever reads shards asks for the columns that it needs, so those of before will do

# One row is one document. `sentences` are in order; `paragraphs` holds the index of each sentence that opens
# a paragraph, so `sentences` and `paragraphs` together are the whole text.
_NAME = pa.dictionary(pa.int32(), pa.string())  # of a few that most documents share
_FIELD = pa.struct([pa.field(name, pa.string(), nullable=False) for name in Field._fields])

CORPUS = pa.schema(
    [
        pa.field("key", pa.uint64(), nullable=False),  # blake2b of `id`: the document's random number seed
        pa.field("id", pa.string(), nullable=False),  # source kind / file / the document's own name
        pa.field("source", pa.string(), nullable=False),  # the reader's name: wikipedia, books, …
        pa.field("title", pa.string(), nullable=False),
        pa.field("url", pa.string(), nullable=False),  # of the document, where its source says it; else empty
        pa.field("licence", _NAME, nullable=False),  # an SPDX name or expression, or any text; empty: nobody says
        pa.field("origin", _NAME, nullable=False),  # what its source is called, with the snapshot's date: `enwiki 2024-05-01`
        pa.field(
            "infobox", pa.list_(_FIELD), nullable=False
        ),  # the lines of the article's infoboxes, where they are wanted; else empty
        pa.field("split", pa.string(), nullable=False),  # train | heldout, from `key` alone
        pa.field("sentences", pa.list_(pa.string()), nullable=False),
        pa.field("paragraphs", pa.list_(pa.int32()), nullable=False),
    ],
    metadata={"cloze.corpus": str(VERSION)},
)

PART = pa.schema(
    [pa.field(field.name, pa.string(), nullable=False) if pa.types.is_dictionary(field.type) else field for field in CORPUS]
)
"""Of a scratch file of documents (pipeline/corpus/parts.py): names stand in full, for a file's batches share no dictionary."""
