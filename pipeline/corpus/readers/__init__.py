"""One reader a format: what a source's path holds, and its documents.

To add a reader: a file with an object that has the attributes and methods of `pipeline.corpus.readers.base.Reader` (a
`FileReader`, as a rule) and, if it looks at options of its own, their class; and a line in READERS. The config of the corpus
stage takes its options from all readers, so the modules named here import nothing heavy at their top.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.core.errors import UsageError, did_you_mean
from pipeline.core.registry import load

if TYPE_CHECKING:
    from pipeline.corpus.readers.base import Reader

READERS = {
    "wikipedia": "pipeline.corpus.readers.wikipedia.dump:reader",
    "wikiextractor": "pipeline.corpus.readers.wikipedia.wikiextractor:reader",
    "html": "pipeline.corpus.readers.html.reader:reader",
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
    found: Reader = load(READERS[kind])
    return found
