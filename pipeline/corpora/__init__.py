"""One reader a format: what a source's path holds, and its documents.

A reader is an object with the methods of `pipeline.corpora.reader.Reader`. To add one: a file here and a line below.
This module and those it names at the top of theirs are imported by the command line, so they import nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from pipeline.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from pipeline.corpora.reader import Reader

READERS = {
    "wikipedia": "pipeline.corpora.wikipedia:reader",
    "wikiextractor": "pipeline.corpora.wikiextractor:reader",
    "books": "pipeline.corpora.books:reader",
    "jsonl": "pipeline.corpora.jsonl:reader",
    "warc": "pipeline.corpora.warc:reader",
    "text": "pipeline.corpora.text:reader",
    "parquet": "pipeline.corpora.columns:parquet",
    "arrow": "pipeline.corpora.columns:arrow",
    "docstrings": "pipeline.corpora.docstrings:reader",
}


def find_reader(kind: str) -> Reader:
    """The reader of sources of this kind; `UsageError` if there is none."""
    if kind not in READERS:
        raise UsageError(f"unknown source kind {kind!r}; {did_you_mean(kind, READERS)}")
    module, _, name = READERS[kind].partition(":")
    found: Reader = getattr(importlib.import_module(module), name)
    return found
