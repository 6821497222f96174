"""Documents, their placeholders, and the marks that end a sentence.

The end marks are the characters of Unicode's property Sentence_Terminal in the Basic Multilingual
Plane, plus Tibetan's shads, which Unicode omits because they also end clauses. U+104A (Burmese) is
omitted: it ends clauses as a comma does. U+2024 is omitted: Armenian uses it in abbreviations.

Each rule decides itself which quotation marks and brackets may follow an end mark. A reader
of English alone may have its own set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

LATIN = ".!?"
"""End marks of Latin, Cyrillic, Greek, Hebrew, Hangul and most other scripts."""

ELLIPSIS = "…"
"""Ends or breaks off a sentence; C4 regards a line that ends in it as truncated."""

ETHIOPIC_STOP = "፡፡"  # two word spaces, typed for `።`
_CODES = Path(__file__).with_name("end_marks.txt").read_text(encoding="utf-8").splitlines()
OTHER_SCRIPTS = "".join(
    chr(int(code, 16)) for line in _CODES if not line.startswith("#") for code in line.split()
)

UNMARKED = "\u0e01-\u0eff\u0f40-\u0fbc\u1000-\u109f\u1780-\u17ff"
"""Scripts without end marks: Thai and Lao always; Tibetan, Burmese and Khmer at line ends."""

_UNMARKED = re.compile(f"[{UNMARKED}]")
_SAMPLE_CHARACTERS = 120  # characters


def is_unmarked(text: str) -> bool:
    """Return True if most of the first 120 characters are of a script without end marks."""
    return not text.isascii() and len(_UNMARKED.findall(text[:_SAMPLE_CHARACTERS])) * 2 > min(
        len(text), _SAMPLE_CHARACTERS
    )


# Placeholders mark text that a reader removed and that words cannot replace: one private-use
# character each. Sentence splitting drops a sentence with a placeholder and counts it by kind.
PLACEHOLDER = "\ue0ff"
HOLE_TEMPLATE = "\ue0fe"
HOLE_LIST = "\ue0fd"
HOLES = {PLACEHOLDER: "formula", HOLE_TEMPLATE: "template", HOLE_LIST: "lead_in"}
PLACEHOLDER_PATTERN = re.compile(f"[{''.join(HOLES)}]")
INTERNAL = "\ue0fa\ue0fb\ue0fc\ue0fd\ue0fe\ue0ff"
"""All characters that readers of wikis put into text for a later step."""

_REFERENCES = re.compile("&#(?:0*5759[4-9]|[xX]0*[eE]0[fF][a-fA-F]);?")

_ASCII_PRINTABLE = bytes(range(0x20, 0x7F))


class InfoboxField(NamedTuple):
    """A line of an infobox."""

    box: str  # type of the box, such as `settlement`; empty if unknown
    name: str  # name and value: plain text
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text with a title and its provenance."""

    # `source/file/name`, unique in a corpus; its hash seeds all randomness about the document
    id: str
    source: str  # name of the reader, such as `wikipedia`
    title: str  # for people; may be empty
    # the text in reading order. Line breaks inside a paragraph have no meaning.
    paragraphs: tuple[str, ...]
    language: str = ""  # ISO 639 code from the source or from language identification; else empty
    url: str = ""  # address of the document, if the source gives one; else empty
    # licence of the document, or else of its source, if known (pipeline/corpus/provenance.py)
    licence: str = ""
    origin: str = ""  # name of the source, set by `cloze.pipeline.corpus.read.read_and_clean`
    # fields of the infobox in order; empty unless the options ask for them
    infobox: tuple[InfoboxField, ...] = ()
    # (reason, text) of what the reader left out, with `keep_dropped`; else empty
    left_out: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """Return the paragraphs, one per line."""
        return "\n".join(self.paragraphs)

    def map_infobox(self, change: Callable[[str], str]) -> tuple[InfoboxField, ...]:
        """Return the infobox with `change` applied to every text, without fields left empty."""
        changed = (InfoboxField(*map(change, field)) for field in self.infobox)
        return tuple(field for field in changed if field.name and field.value)


def has_hole(text: str) -> bool:
    """Return True if the text contains a placeholder."""
    return not text.isascii() and (
        PLACEHOLDER in text or HOLE_TEMPLATE in text or HOLE_LIST in text
    )


def is_plain(text: str) -> bool:
    """Return True if all characters are printable and white space is single inner blanks only."""
    if "  " in text or text[:1] == " " or text[-1:] == " ":
        return False
    if not text.isascii():
        return text.isprintable()
    return not text.encode("ascii").translate(None, _ASCII_PRINTABLE)


def escape_internal(text: str) -> str:
    """Replace INTERNAL in a source's own text by U+FFFD; later steps would drop its sentence."""
    if not text.isascii():
        for character in INTERNAL:
            text = text.replace(character, "\ufffd")
    return text


def escape_markup(text: str) -> str:
    """Return `escape_internal` of HTML or wikitext, which may name the characters by number."""
    return escape_internal(_REFERENCES.sub("\ufffd", text))


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def sanitize_document(document: Document, *, keep_internal: bool = False) -> Document:
    """Return the document without lone surrogates and, unless its reader places it, INTERNAL."""
    names = (document.id, document.title, document.url, document.licence)
    fields = (*names, *document.paragraphs, *(text for field in document.infobox for text in field))

    def change(text: str) -> str:
        text = replace_surrogates(text)
        return text if keep_internal else escape_internal(text)

    if all(text.isascii() or change(text) is text for text in fields):
        return document
    name, title, url, licence = map(change, names)
    return replace(
        document,
        id=name,
        title=title,
        url=url,
        licence=licence,
        paragraphs=tuple(map(change, document.paragraphs)),
        infobox=document.map_infobox(change),
    )


def join_sentences(sentences: Iterable[str], starts: Iterable[int]) -> str:
    """Join sentences with spaces, but paragraphs, which begin at `starts`, with line breaks."""
    opening = set(starts) - {0}
    return "".join(
        f"\n{text}" if number in opening else f" {text}" if number else text
        for number, text in enumerate(sentences)
    )
