"""Readers: one per source format; each yields the documents of a source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloze.core.errors import UsageError, did_you_mean
from cloze.core.options import import_object

if TYPE_CHECKING:
    from cloze.pipeline.corpus.readers.base import Reader


READERS = {
    "wikipedia": "cloze.pipeline.corpus.readers.encyclopedia.dump:reader",
    "wikiextractor": "cloze.pipeline.corpus.readers.encyclopedia.wikiextractor:reader",
    "html": "cloze.pipeline.corpus.readers.html.reader:reader",
    "books": "cloze.pipeline.corpus.readers.books.reader:reader",
    "jsonl": "cloze.pipeline.corpus.readers.tables.jsonl:reader",
    "warc": "cloze.pipeline.corpus.readers.warc:reader",
    "text": "cloze.pipeline.corpus.readers.plain_text:reader",
    "parquet": "cloze.pipeline.corpus.readers.tables.records:parquet",
    "arrow": "cloze.pipeline.corpus.readers.tables.records:arrow",
    "docstrings": "cloze.pipeline.corpus.readers.docstrings:reader",
}


def find_reader(kind: str) -> Reader:
    """Return the reader of sources of this kind.

    Raises:
        UsageError: unknown kind.
    """
    if kind not in READERS:
        raise UsageError(f"unknown source kind {kind!r}; {did_you_mean(kind, READERS)}")
    found: Reader = import_object(READERS[kind])
    return found
