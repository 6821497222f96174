"""Readers: one per source format. Files, directories or packages enter; documents leave.

Read base.py first: slices, counters and the base class. streams.py, plain_text.py and prose.py
are shared; encyclopedia/, books/ and the other modules read one format each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloze.core.plugins import Table

if TYPE_CHECKING:
    from cloze.pipeline.corpus.readers.base import FileReader


_READERS = {
    "wikipedia": "cloze.pipeline.corpus.readers.encyclopedia.dump:reader",
    "wikiextractor": "cloze.pipeline.corpus.readers.encyclopedia.wikiextractor:reader",
    "books": "cloze.pipeline.corpus.readers.books.reader:reader",
    "jsonl": "cloze.pipeline.corpus.readers.records:reader",
    "warc": "cloze.pipeline.corpus.readers.warc:reader",
    "text": "cloze.pipeline.corpus.readers.plain_text:reader",
    "parquet": "cloze.pipeline.corpus.readers.table_files:parquet",
    "arrow": "cloze.pipeline.corpus.readers.table_files:arrow",
}
READERS: Table[FileReader] = Table("readers", "source kind", _READERS, ("kind",))
