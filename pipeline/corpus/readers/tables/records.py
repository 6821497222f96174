"""Sources whose documents are records with fields: how a record becomes a document (jsonl, parquet, arrow).

The fields are `text`, `id`, `title`, `url` and `licence` (by default a field `license`), or what the source calls them (`--field text=content
--field id=meta.url`). The text is a string, or a list of strings, its paragraphs. Without an id a record is named by its number in the file,
from 1; the others may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.corpus.document import Document
from pipeline.corpus.options import CorpusOptions
from pipeline.corpus.readers.base import Slice, Tally
from pipeline.corpus.readers.paragraphs import paragraphs

FIELDS = ("text", "id", "title", "url", "licence")
_USUAL = {"licence": "license"}  # what data sets call them
_SHOWN = 12  # of a record's fields, in a sentence


class Records:
    """The documents of one slice.

    Args:
        file_slice: its `fields` name the columns.
        options: of the stage.
        tally: of the slice.
    """

    def __init__(self, file_slice: Slice, options: CorpusOptions, tally: Tally) -> None:
        names = dict(file_slice.fields)
        self.names = {field: names.get(field, _USUAL.get(field, field)) for field in FIELDS}
        self.given = frozenset(names)
        self._slice, self._tally, self._limit = file_slice, tally, options.maximum_document_bytes

    def document(
        self, values: Mapping[str, Any], number: int, where: str, offset: int, there: Iterable[str] = ()
    ) -> Document | None:
        """The document of a record; None after telling the tally why there is none.

        Args:
            values: of FIELDS; None where there is none.
            number: of the record in the file, from 1.
            where: words for it in a sentence: `the line at byte 5`.
            offset: its byte in the unpacked file, or its row.
            there: what its fields are called.
        """
        text, name = values["text"], values["id"]
        if isinstance(text, bytes):
            try:
                text = text.decode("utf-8")
            except UnicodeDecodeError as error:
                self._tally.quarantine(
                    "bad_utf8", f"{where} has a text that is not UTF-8 at its byte {error.start:,}", offset=offset
                )
                return None
        pieces = text if isinstance(text, list) and all(isinstance(piece, str) for piece in text) else None
        if not isinstance(text, str) and pieces is None:
            sentence = (
                f"{where} has no text in its field {self.names['text']!r}{_listed(there)}"
                if text is None
                else f"{where} has a {type(text).__name__}, not a text, in its field {self.names['text']!r}"
            )
            self._tally.quarantine("no_text", sentence, offset=offset)
            return None
        if name is None or isinstance(name, (dict, list)) or name == "":
            if "id" in self.given:
                self._tally.quarantine("no_id", f"{where} has no id in its field {self.names['id']!r}", offset=offset)
                return None
            name = number
        size = (
            len(text.encode("utf-8", "surrogatepass"))
            if pieces is None
            else sum(len(piece.encode("utf-8", "surrogatepass")) for piece in pieces)
        )
        self._tally.read(size)
        if size > self._limit:
            self._tally.drop("too_long")
            return None
        found = paragraphs(text) if pieces is None else tuple(line for piece in pieces for line in paragraphs(piece))
        title, url, licence = (values[field] if isinstance(values[field], str) else "" for field in ("title", "url", "licence"))
        return Document(
            id=f"{self._slice.kind}/{self._slice.name}/{name}",
            source=self._slice.kind,
            paragraphs=found,
            title=title,
            url=url,
            licence=licence,
        )


def _listed(names: Iterable[str]) -> str:
    """Words for the fields that there are; none where nobody says."""
    found = list(names)
    if not found:
        return ""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f" (its fields: {', '.join(found[:_SHOWN])}{more}; name the one with --field text=NAME)"
