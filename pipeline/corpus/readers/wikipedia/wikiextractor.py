"""Source `wikiextractor`: articles already extracted by WikiExtractor, as `<doc id= url= title=>` files or JSON lines.

The first line of a document repeats its title and goes. The old format (the one most corpora lie around in) writes
section headings as a line of a few words with a full stop (`Early life.`): they go too, as they do from a dump.
What the program leaves of templates it dropped is seen and marked: `( ; born 1935)` has slots, which are mended; `formula_12`,
`reaches a depth of .` and `between the and seasons` have holes, and no sentence with a hole stays.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

import orjson

from pipeline.corpus.document import HOLE, HOLE_TEMPLATE, Document
from pipeline.corpus.options import CorpusOptions
from pipeline.corpus.provenance import wiki
from pipeline.corpus.readers.base import FileReader, Slice, Tally
from pipeline.corpus.readers.english_verbs import has_finite_verb
from pipeline.corpus.readers.lines import read_lines
from pipeline.corpus.readers.prose import reads_as_prose, reads_as_statement
from pipeline.corpus.readers.slots import SLOT, mend
from pipeline.corpus.readers.unpack import as_utf8, open_source

_ATTRIBUTE = re.compile(r'(\w+)="(.*?)"(?=\s+\w+="|\s*>)')
_FORMULA = re.compile(r"(?:formula|codice|math)_\d+")
_LEFTOVER = re.compile(
    r"<?\[?(?:https?|ftp)://[^\s\]>)]+\]?>?|\[\d{1,2}\]?(?=\s|$)|\[\[[^\[\]|]*\|(?:[^\[\]|]*\|)*.*$|\[\[|\]\]|\{\{|\}\}|__[A-Z]{3,}__"
)
_MARK = re.compile(r"[\[\]<]|://|\{\{|\}\}|__")  # nothing is left over where there is none
_TAG = re.compile(r"</?(?:[a-zA-Z]+)(?:\s[^<>]*)?/?>")
_HEADING = re.compile(r"#+ .*|(?:[^\W\d_]|\d|[\"'“‘(])(?:(?![.!?] )[^\n]){0,58}\.")
_ABBREVIATION = re.compile(r"\b(U\.S|St|Dr|Mr|Mrs|Ms|Jr|Sr|vs|No|Vol|[A-Z])\. ")
_DISAMBIGUATION = re.compile(
    r"\b(?:may|can) (?:also |either )?(?:refer to|mean)(?: any of)?(?: the following)?:\s*$", re.MULTILINE
)
# What is left where a template went.
_SMALL_WORDS = (
    "of|at|by|in|on|to|from|for|with|and|or|the|an?|is|are|was|were|as|between|about|around|near|over|than|approximately|circa|since|until|"
    "into|through"
)
_EMPTY_BRACKETS = re.compile(rf"(\b(?:{_SMALL_WORDS}) )?([(\[])\s*([)\]])", re.IGNORECASE)
_AFTER_OPENING = re.compile(r"([(\[])\s*(?=[,;:])")
_BEFORE_CLOSING = re.compile(r"([,;:])\s*(?=[)\]])")
_DOUBLED = re.compile(r"([,;:])\s+(?=[,;]\s)")
_EMPTY_QUOTES = re.compile(r"(?<!\S)\"\s*\"(?=[\s,.;)])|“\s*”|«\s*»|\"\s*\"(?=\s*[,;)])")
_LED_TO_CLOSING = re.compile(rf"\b({_SMALL_WORDS}) (?=[)\]])", re.IGNORECASE)
_PADDED = re.compile(r"([(\[]) +| +([)\]])")
_STRANDED = re.compile(r"(?<=[^\W\d]) (?=[.,](?:\s|$))")
_STRANDED_AFTER_OTHER = re.compile(r"(?<=\S) (?=[.,;](?:\s|$)(?! ?\.))")
_TORN = re.compile(
    r"\b(?:(?:from) (?=to |and )|(?:between|at|the|an|approximately) (?=and )|(?:the|an?) (?=or |is |was |were |has |had |of )|by (?=, |and , ))"
)
_MENDABLE = re.compile(
    r"[(\[]\s*[)\],;:\s]|[,;:\s][)\]]|\s[.,;]|[,;:]\s+[,;]|[\"“«]\s?[\"”»]|"
    r"\b(?:from to|by ,|(?:from|between|at|the|an|approximately) and|(?:the|an?) (?:or|is|was|were|has|had|of)) "
)
_MOST_HEADING_WORDS = 8

_Raw = tuple[int, bytes, str, str, str]  # byte offset, text, title, id, address


class WikiextractorReader(FileReader):
    """Documents `wikiextractor/<relative file name>/<doc id>`."""

    kind = "wikiextractor"
    patterns = ("wiki_*", *(f"*.json{ending}{packed}" for ending in ("", "l") for packed in ("", ".bz2", ".gz", ".xz", ".zst")))

    def read(self, file_slice: Slice, options: CorpusOptions, tally: Tally) -> Iterator[Document]:
        """The documents of one file; one that is not UTF-8 is quarantined, a file that breaks off is damaged."""
        for offset, raw, title, name, url in self._raw(file_slice, options, tally):
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                where = offset + error.start
                tally.quarantine("bad_utf8", f"document {name!r} is not UTF-8 at byte {where:,}", offset=where)
                continue
            tally.read(len(raw))
            if _DISAMBIGUATION.search(text[:400]) or title.endswith("(disambiguation)"):
                tally.drop("disambiguation")
                continue
            tally.found(wiki("", url, file_slice.name))
            yield Document(
                id=f"{self.kind}/{file_slice.name}/{name}",
                source=self.kind,
                title=title,
                paragraphs=tuple(_paragraphs(text, title, tally)),
                url=url,
            )

    def _raw(self, file_slice: Slice, options: CorpusOptions, tally: Tally) -> Iterator[_Raw]:
        """The documents that are not too long."""
        attributes: dict[str, str] | None = None
        lines: list[bytes] = []
        start = size = 0
        found = False
        limit = options.maximum_document_bytes
        source = open_source(file_slice.path)
        try:
            for line in read_lines(as_utf8(source), tally, limit):
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
                    tally.damaged("truncated", _unfinished(attributes), offset=start)
                elif attributes is not None:
                    title, name, url = (attributes.get(key, "") for key in ("title", "id", "url"))
                    yield start, b"\n".join([*lines, b""]), title, name, url
                attributes = None
                if data.startswith(b"<doc "):
                    attributes = _attributes(data)
                    lines, size, start, found = [], 0, line.offset + line.size + 1, True
                elif line.data is None:
                    tally.read(line.size)
                    tally.drop("too_long")
                    found = True
                elif data.startswith(b"{"):
                    found = True
                    yield from _json(data, line.offset, tally)
                elif data.strip() and not found:
                    break
        finally:
            source.close()
        if attributes is not None:
            tally.damaged("truncated", _unfinished(attributes), offset=start)
        elif not found and not tally.unreadable:
            tally.quarantine("no_documents", "the file holds neither <doc …> elements nor JSON lines")


def _unfinished(attributes: dict[str, str]) -> str:
    return f"the file ends inside document {attributes.get('id', '')!r} ({attributes.get('title', '')})"


def _attributes(line: bytes) -> dict[str, str]:
    found = _ATTRIBUTE.findall(line.decode("utf-8", "replace"))
    return {name: html.unescape(value) for name, value in found}


def _json(line: bytes, offset: int, tally: Tally) -> Iterator[_Raw]:
    try:
        content = orjson.loads(line)
        text, title, name, url = content["text"], str(content.get("title", "")), str(content["id"]), content.get("url", "")
        raw = text.encode("utf-8", "surrogatepass")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        tally.quarantine("bad_json", f"the line at byte {offset:,} is no JSON object with id and text ({error})", offset=offset)
        return
    yield offset, raw, title, name, url if isinstance(url, str) else ""


def _paragraphs(text: str, title: str, tally: Tally) -> Iterator[str]:
    first = True
    for line in text.split("\n"):
        line = html.unescape(line).strip()
        if not line:
            continue
        was_first, first = first, False
        if was_first and line.rstrip(".") == title.strip().rstrip("."):
            continue
        if is_heading(line):
            tally.drop_lines("heading")
            continue
        if "_" in line:
            line = _FORMULA.sub(HOLE, line)
        if _MARK.search(line):
            line = _TAG.sub("", _LEFTOVER.sub("", line))
        line = " ".join(line.split())
        if _MENDABLE.search(line):
            line = " ".join(mend(_marked(line)).split())
        if reads_as_prose(line) or (len(line) > 80 and line.endswith(":")) or reads_as_statement(line):
            yield line
        elif line:
            tally.drop_lines("fragment")


def _marked(line: str) -> str:
    """The line with slots and holes where it shows that a template went."""
    line = _EMPTY_BRACKETS.sub(lambda match: f"{match[1]}{HOLE_TEMPLATE}" if match[1] else f"{match[2]}{SLOT}{match[3]}", line)
    line = _AFTER_OPENING.sub(rf"\1{SLOT}", line)
    line = _BEFORE_CLOSING.sub(rf"\1{SLOT}", line)
    line = _DOUBLED.sub(rf"\1{SLOT}", line)
    line = _EMPTY_QUOTES.sub(SLOT, line)
    line = _LED_TO_CLOSING.sub(rf"\1 {HOLE_TEMPLATE}", line)
    line = _PADDED.sub(r"\1\2", line)
    line = _STRANDED.sub(f" {HOLE_TEMPLATE}", line)
    line = _TORN.sub(lambda match: f"{match[0]}{HOLE_TEMPLATE} ", line)
    return _STRANDED_AFTER_OTHER.sub("", line)


def is_heading(line: str) -> bool:
    """Whether a line of the old format is a section's heading: a few words, one full stop, and no verb to be a sentence by."""
    if not _HEADING.fullmatch(_ABBREVIATION.sub(r"\1 ", line) if ". " in line else line):
        return False
    return line.startswith("#") or (len(line.split()) <= _MOST_HEADING_WORDS and not has_finite_verb(line))


reader = WikiextractorReader()
