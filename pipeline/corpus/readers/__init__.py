"""One reader a format: what a source's path holds, and its documents.

A reader is an object with the methods of `pipeline.corpus.readers.base.Reader`. To add one: a file here and a line below.
This module and those it names at the top of theirs are imported by the command line, so they import nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from pipeline.core.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from pipeline.corpus.readers.base import Reader

READERS = {
    "wikipedia": "pipeline.corpus.readers.wikipedia.dump:reader",
    "wikiextractor": "pipeline.corpus.readers.wikipedia.wikiextractor:reader",
    "books": "pipeline.corpus.readers.books.reader:reader",
    "jsonl": "pipeline.corpus.readers.tables.jsonl:reader",
    "warc": "pipeline.corpus.readers.web.warc:reader",
    "text": "pipeline.corpus.readers.plain_text:reader",
    "parquet": "pipeline.corpus.readers.tables.columns:parquet",
    "arrow": "pipeline.corpus.readers.tables.columns:arrow",
    "docstrings": "pipeline.corpus.readers.docstrings.reader:reader",
}


def find_reader(kind: str) -> Reader:
    """The reader of sources of this kind; `UsageError` if there is none."""
    if kind not in READERS:
        raise UsageError(f"unknown source kind {kind!r}; {did_you_mean(kind, READERS)}")
    module, _, name = READERS[kind].partition(":")
    found: Reader = getattr(importlib.import_module(module), name)
    return found
