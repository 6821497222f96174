"""Source `wikiextractor`: output of WikiExtractor, `<doc id= url= title=>` files or JSON lines.

The first line of a document repeats its title and is dropped. The old format, in which most corpora
exist, writes section headings as short lines with a full stop (`Early life.`). They are dropped as
well, except in Wikimedia's wikis of other languages: English verbs tell short sentences from
headings. Formulas (`formula_12`) become placeholders, and sentences with one are dropped. Of the
templates that WikiExtractor removes, only empty brackets are repaired: `( ; born 1935)` becomes
`(born 1935)`.
"""

from __future__ import annotations

import contextlib
import html
import re
from collections import defaultdict
from collections.abc import Iterator

import orjson

from cloze.pipeline.corpus.document import PLACEHOLDER, Document, escape_markup
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.provenance import wiki
from cloze.pipeline.corpus.readers.base import (
    Documents,
    FileReader,
    ReadCounters,
    Slice,
    file_patterns,
)
from cloze.pipeline.corpus.readers.encyclopedia.elements import without_padding
from cloze.pipeline.corpus.readers.plain_text import read_lines
from cloze.pipeline.corpus.readers.prose import has_finite_verb, reads_as_prose, reads_as_statement
from cloze.pipeline.corpus.readers.streams import as_utf8, open_source

_ATTRIBUTE = re.compile(r'(\w+)="(.*?)"(?=\s+\w+="|\s*>)')
_FORMULA = re.compile(r"(?:formula|codice|math)_\d+")
_LEFTOVER = re.compile(
    r"<?\[?(?:https?|ftp)://[^\s\]>)]+\]?>?|\[\d{1,2}\]?(?=\s|$)|\[\[[^\[\]|]*\|(?:[^\[\]|"
    r"]*\|)*.*$|\[\[|\]\]|\{\{|\}\}|__[A-Z]{3,}__"
)
_MARK = re.compile(r"[\[\]<]|://|\{\{|\}\}|__")  # quick test for _LEFTOVER and _TAG
_TAG = re.compile(r"</?(?:[a-zA-Z]+)(?:\s[^<>]*)?/?>")
_HEADING = re.compile(r"#+ .*|(?:[^\W\d_]|\d|[\"'“‘(])(?:(?![.!?] )[^\n]){0,58}\.")
_OTHER_LANGUAGE = re.compile(r"//(?!(?:en|simple)\.)[a-z-]+\.(?:m\.)?wik")
_ABBREVIATION = re.compile(r"\b(U\.S|St|Dr|Mr|Mrs|Ms|Jr|Sr|vs|No|Vol|[A-Z])\. ")
_DISAMBIGUATION = re.compile(
    r"\b(?:may|can) (?:also |either )?(?:refer to|mean)(?: any of)?(?: the following)?:\s*$",
    re.MULTILINE,
)
_BRACKETS = re.compile(r"[(\[]")
_EMPTY_BRACKETS = re.compile(r" ?[(\[](?:[\s,;:]|\"\"|“”)*[)\]]")
_AFTER_OPENING = re.compile(r"(?<=[(\[])(?:[\s,;:]|\"\"|“”)+")
_MOST_HEADING_WORDS = 8

_Raw = tuple[int, bytes, str, str, str]  # byte offset, text, title, id, URL


class WikiextractorReader(FileReader):
    """Reader of documents `wikiextractor/<relative file name>/<doc id>`."""

    kind = "wikiextractor"
    places_internal = True
    patterns = ("wiki_*", *file_patterns(".json", ".jsonl"))

    def read(self, file_slice: Slice, options: CorpusOptions, tally: ReadCounters) -> Documents:
        """Yield the documents of a file; those that are not UTF-8 are quarantined.

        A file that ends inside a document is damaged.
        """
        for offset, data, title, document_id, url in self._raw(file_slice, options, tally):
            try:
                text = escape_markup(data.decode("utf-8"))
            except UnicodeDecodeError as error:
                position = offset + error.start
                tally.quarantine(
                    "bad_utf8",
                    f"document {document_id!r} is not UTF-8 at byte {position:,}",
                    offset=position,
                )
                continue
            tally.read(len(data))
            if _DISAMBIGUATION.search(text[:400]) or title.endswith("(disambiguation)"):
                tally.drop("disambiguation")
                continue
            tally.set_origin(wiki("", url, file_slice.name))
            yield Document(
                id=f"{self.kind}/{file_slice.name}/{document_id}",
                source=self.kind,
                title=title,
                paragraphs=tuple(_paragraphs(text, title, url, tally)),
                url=url,
            )

    def _raw(
        self, file_slice: Slice, options: CorpusOptions, tally: ReadCounters
    ) -> Iterator[_Raw]:
        """Yield the documents that are not too long."""
        attributes: defaultdict[str, str] | None = None
        lines: list[bytes] = []
        start = size = 0
        has_documents = False
        limit = options.maximum_document_bytes
        with contextlib.closing(open_source(file_slice.path)) as source:
            for line in read_lines(as_utf8(source), limit, tally.record_damage):
                data = b"" if line.data is None else line.data
                if attributes is not None and not data.startswith((b"</doc>", b"<doc ")):
                    size += line.size + 1
                    if size > limit:
                        lines.clear()
                    else:
                        lines.append(data)
                    continue
                if attributes is not None and size > limit:
                    tally.read(size)
                    tally.drop("too_long")
                elif attributes is not None and data.startswith(b"<doc "):
                    tally.record_damage("truncated", _unfinished(attributes), offset=start)
                elif attributes is not None:
                    title, document_id = attributes["title"], attributes["id"]
                    yield start, b"\n".join([*lines, b""]), title, document_id, attributes["url"]
                attributes = None
                if data.startswith(b"<doc "):
                    pairs = _ATTRIBUTE.findall(data.decode("utf-8", "replace"))
                    values = {name: html.unescape(value) for name, value in pairs}
                    attributes = defaultdict(str, values)
                    lines, size, start, has_documents = [], 0, line.offset + line.size + 1, True
                elif line.data is None:
                    tally.read(line.size)
                    tally.drop("too_long")
                    has_documents = True
                elif data.startswith(b"{"):
                    has_documents = True
                    yield from _json(data, line.offset, tally)
                elif data.strip() and not has_documents:
                    break
        if attributes is not None:
            tally.record_damage("truncated", _unfinished(attributes), offset=start)
        elif not has_documents and not tally.unreadable:
            tally.quarantine(
                "no_documents", "the file holds neither <doc …> elements nor JSON lines"
            )


def _unfinished(attributes: defaultdict[str, str]) -> str:
    return f"the file ends inside document {attributes['id']!r}"


def _json(line: bytes, offset: int, tally: ReadCounters) -> Iterator[_Raw]:
    try:
        record = orjson.loads(line)
        data = record["text"].encode("utf-8", "surrogatepass")
        title, document_id = str(record.get("title", "")), str(record["id"])
        url = record.get("url", "")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        tally.quarantine(
            "bad_json",
            f"the line at byte {offset:,} is no JSON object with id and text ({error})",
            offset=offset,
        )
        return
    yield offset, data, title, document_id, url if isinstance(url, str) else ""


def _paragraphs(text: str, title: str, url: str, tally: ReadCounters) -> Iterator[str]:
    is_english = _OTHER_LANGUAGE.search(url) is None
    is_first = True
    for line in text.split("\n"):
        line = html.unescape(line).strip()
        if not line:
            continue
        was_first, is_first = is_first, False
        if was_first and line.rstrip(".") == title.strip().rstrip("."):
            continue
        if (is_english or line.startswith("#")) and is_heading(line):
            tally.drop_lines("heading")
            continue
        if "_" in line:
            line = _FORMULA.sub(PLACEHOLDER, line)
        if _MARK.search(line):
            line = _TAG.sub("", _LEFTOVER.sub("", line))
        line = " ".join(line.split())
        if _BRACKETS.search(line):
            line = _AFTER_OPENING.sub("", _EMPTY_BRACKETS.sub("", line))
        line = without_padding(line).strip()
        leads = len(line) > 80 and line.endswith(":")
        if reads_as_prose(line) or leads or reads_as_statement(line):
            yield line
        elif line:
            tally.drop_lines("fragment")


def is_heading(line: str) -> bool:
    """Return True if a line of the old format is a heading: few words, one full stop, no verb."""
    if not _HEADING.fullmatch(_ABBREVIATION.sub(r"\1 ", line) if ". " in line else line):
        return False
    return line.startswith("#") or (
        len(line.split()) <= _MOST_HEADING_WORDS and not has_finite_verb(line)
    )


reader = WikiextractorReader()
