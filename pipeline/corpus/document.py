"""The one thing that passes through the corpus stage: a document, its text already cut into paragraphs.

Readers make it (pipeline/corpus/readers); steps (pipeline/corpus/steps) map it to a new one or give a reason to drop it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

# Holes stand where a reader took out something that words cannot replace, one character each. A sentence with a hole in it is no
# sentence any more: it is dropped when the text is split, and counted by what was there. They are private-use characters.
HOLE = "\ue0ff"
HOLE_TEMPLATE = "\ue0fe"
HOLE_LIST = "\ue0fd"
HOLES = {HOLE: "formula", HOLE_TEMPLATE: "template", HOLE_LIST: "lead_in"}
A_HOLE = re.compile(f"[{''.join(HOLES)}]")

_ASCII_PRINTABLE = bytes(range(0x20, 0x7F))


class Field(NamedTuple):
    """A line of an infobox. Attributes: box: what kind it is, such as `settlement`, where the source says it; name, value: plain text."""

    box: str
    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text with a name.

    Attributes:
        id: `source/file/own name`, unique in a corpus; its hash is the seed of everything random about the document.
        source: the reader's name, such as `wikipedia`.
        title: for people; may be empty.
        paragraphs: the text in reading order. Line breaks inside a paragraph mean nothing.
        language: ISO 639 code, where the source or the identification of languages says it; else empty.
        url: its own address, where the source says it; else empty.
        licence: its own, where the source says it; from the reader on that of its source, where that is known (pipeline/corpus/provenance.py).
        origin: what its source is called, which `pipeline.corpus.extract` fills in.
        infobox: what stands beside the text as names and values, in order; empty unless the options want it.
    """

    id: str
    source: str
    title: str
    paragraphs: tuple[str, ...]
    language: str = ""
    url: str = ""
    licence: str = ""
    origin: str = ""
    infobox: tuple[Field, ...] = ()

    @property
    def text(self) -> str:
        """The paragraphs, one a line."""
        return "\n".join(self.paragraphs)

    def infobox_by(self, change: Callable[[str], str]) -> tuple[Field, ...]:
        """The infobox with all its texts changed, without the fields that lost their name or value."""
        changed = (Field(*map(change, field)) for field in self.infobox)
        return tuple(field for field in changed if field.name and field.value)


def has_hole(text: str) -> bool:
    """Whether something was taken out of the text."""
    return not text.isascii() and (HOLE in text or HOLE_TEMPLATE in text or HOLE_LIST in text)


def is_plain(text: str) -> bool:
    """Whether every character prints, and no white space stands there but single blanks inside: so no private-use character either."""
    if "  " in text or text[:1] == " " or text[-1:] == " ":
        return False
    return not text.encode("ascii").translate(None, _ASCII_PRINTABLE) if text.isascii() else text.isprintable()


def mended(text: str) -> str:
    """The text with lone surrogates, which no UTF-8 has, replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def well_formed(document: Document) -> Document:
    """The document with `mended` names and text, so that it can be written."""
    names = (document.id, document.title, document.url, document.licence)
    fields = (*names, *document.paragraphs, *(text for field in document.infobox for text in field))
    if all(text.isascii() or mended(text) is text for text in fields):
        return document
    paragraphs = tuple(map(mended, document.paragraphs))
    name, title, url, licence = map(mended, names)
    infobox = document.infobox_by(mended)
    return replace(document, id=name, title=title, url=url, licence=licence, paragraphs=paragraphs, infobox=infobox)


def joined(sentences: Iterable[str], starts: Iterable[int]) -> str:
    """A stored document's text: a space between sentences, a line break between paragraphs."""
    opening = set(starts) - {0}
    return "".join(f"\n{text}" if at in opening else f" {text}" if at else text for at, text in enumerate(sentences))
