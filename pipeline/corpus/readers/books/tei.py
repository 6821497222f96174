"""Books in TEI XML, P5 (with namespace) or P4 (without): divisions are chapters.

Notes, page breaks, running heads, figures, tables, speakers and stage directions are dropped. Verse
is kept, a stanza per paragraph. Words divided by line or page breaks are joined. Of editorial
alternatives the corrected, regular, expanded one is read.
"""

from __future__ import annotations

import html.entities
import re
from collections.abc import Iterator
from typing import Any

from lxml import etree

from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.readers.books.book_text import Book, Section

_ROOTS = frozenset({"TEI", "TEI.2", "teiCorpus", "teiCorpus.2"})
_DIVISION = re.compile(r"div\d?|group")
_PROSE_OUTSIDE = re.compile(
    r"preface|foreword|introduct|prolog|epilog|afterword|conclusion|postscript|appendix|argument|"
    r"vorwort|einleitung|nachwort|préface|avant-propos|postface|prefacio"
)
_BLOCKS = frozenset(
    """
    p ab lg sp quote cit argument epigraph opener closer salute signed dateline trailer postscript
    list item label castList
    """.split()
)
_DROPPED = frozenset(
    """
    note notes pb cb gb fw milestone figure table formula speaker stage teiHeader index anchor del
    gap bibl listBibl titlePage docTitle
    castList castItem sic orig abbr am graphic media notatedMusic docAuthor docImprint docDate
    interp interpGrp head
    """.split()
)
_FALLBACKS = frozenset({"sic", "orig", "abbr"})  # read unless <choice> has a better form
_BREAKS = frozenset({"lb", "pb", "cb", "gb", "milestone"})
_HYPHENS = "-\u00ad\u2010¬"
_ENTITY = re.compile(rb"&([A-Za-z][A-Za-z0-9]{1,31});")
_XML_ENTITIES = frozenset({b"amp", b"lt", b"gt", b"quot", b"apos"})
_DEEPEST = 200
_LETTER = re.compile(r"[^\W\d_]")
_NOTE_MARK = re.compile(r"[\[(]?(?:\d{1,3}|[a-z]|[*†‡§]{1,3})[\])]?")  # text of a <ref> to a note
_JOIN = "\ue0fe"  # private use: the word continues after a break


def read(data: bytes, tally: ReadCounters) -> Book | None:
    """Return the book in a TEI file, or None after recording the damage."""
    parser = etree.XMLParser(
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        root = etree.fromstring(_ENTITY.sub(_character, data), parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        line_number = getattr(error, "lineno", None) or 1
        offset = sum(len(text) + 1 for text in data.split(b"\n")[: line_number - 1])
        tally.record_damage(
            "damaged_tei", f"the XML cannot be read ({str(error).rstrip('.')})", offset=offset
        )
        return None
    if _name(root) not in _ROOTS:
        tally.quarantine(
            "not_tei", f"the file is XML, but its first element is <{_name(root)}>, not <TEI>"
        )
        return None
    titles = [title for title in root.iter("{*}title") if _name(title.getparent()) == "titleStmt"]
    reader = _Tei(tally)
    for element in root.iter("{*}front", "{*}body", "{*}back"):
        if any(_name(ancestor) in ("floatingText", "note") for ancestor in element.iterancestors()):
            continue
        reader.part(element)
    book = Book(title=_flat("".join(titles[0].itertext())) if titles else "")
    book.sections = [section for section in reader.sections if section[1]]
    return book


class _Tei:
    """Collector of the sections of a text."""

    def __init__(self, tally: ReadCounters) -> None:
        self._tally = tally
        self.sections: list[Section] = []

    def part(self, element: Any) -> None:
        """Add `<front>`, `<body>` or `<back>`; of the outer two only prefaces and epilogues."""
        if _name(element) == "body":
            self._division(element, "", 0)
            return
        for child in element:
            label = (
                f"{child.get('type', '')} {_flat(''.join(_heads(child)))}".lower()
                if isinstance(child.tag, str)
                else ""
            )
            if _DIVISION.fullmatch(_name(child)) and _PROSE_OUTSIDE.search(label):
                self._division(child, "", 0)
            elif _name(child):
                self._tally.drop_lines("front_matter")

    def _division(self, element: Any, above: str, depth: int) -> None:
        """Add a division and nested ones; text after a nested one continues under this heading."""
        heading = _flat(" ".join(_heads(element)))
        if heading:
            self._tally.drop_lines("heading")
        title = heading[:200] or above
        self.sections.append((title, []))
        for child in element:
            name = _name(child)
            if _DIVISION.fullmatch(name) and depth < _DEEPEST:
                self._division(child, title, depth + 1)
                self.sections.append((title, []))
            elif name == "floatingText":
                self._division(child, title, depth + 1)
            elif name and name != "head":
                texts = map(_flat, _blocks(child, 0))
                self.sections[-1][1].extend(text for text in texts if _LETTER.search(text))


def _blocks(element: Any, depth: int) -> Iterator[str]:
    name = _name(element)
    if name in _DROPPED or depth > _DEEPEST:
        return
    block_children = [
        child
        for child in element
        if _name(child) in _BLOCKS
        or (_name(child) == "q" and len(child) and _name(child[0]) in _BLOCKS)
    ]
    if not block_children and not (name in ("lg", "sp", "list", "castList") and len(element)):
        yield _inline(element)
        return
    pieces = [element.text or ""]
    for child in element:
        if _name(child) in _BLOCKS or child in block_children:
            yield "".join(pieces)
            pieces = []
            yield from _blocks(child, depth + 1)
        else:
            pieces.append(_child(child, depth))
        pieces.append(child.tail or "")
    yield "".join(pieces)


def _inline(element: Any, depth: int = 0) -> str:
    pieces = [element.text or ""]
    for child in element:
        pieces.append(_child(child, depth))
        pieces.append(child.tail or "")
    return "".join(pieces)


def _child(child: Any, depth: int) -> str:
    """Return what an element contributes to the text around it."""
    name = _name(child)
    if isinstance(child, etree._Entity):
        return ""
    if name in _BREAKS:
        return _JOIN if child.get("break") == "no" else f"{_JOIN}\n"
    if name == "choice":
        alternatives = {_name(alternative): alternative for alternative in child}
        for kind in ("corr", "reg", "expan", "sic", "orig", "abbr"):
            if kind in alternatives and depth <= _DEEPEST:
                return _inline(alternatives[kind], depth + 1)
        return ""
    if name == "space":
        return " "
    if not name or depth > _DEEPEST:
        return ""
    if name == "ref" and _NOTE_MARK.fullmatch(_flat("".join(child.itertext()))):
        return ""
    if name in _DROPPED and not (name in _FALLBACKS and _name(child.getparent()) != "choice"):
        return ""
    text = _inline(child, depth + 1)
    return f" {text} " if name in ("l", "lg", "item", "p") else text


def _heads(element: Any) -> Iterator[str]:
    for child in element:
        if _name(child) == "head":
            yield _inline(child)


_DIVIDED = re.compile(
    rf"(?<=[^\W\d_])(?:[{_HYPHENS}]\s*{_JOIN}[\s{_JOIN}]*(?=[a-zà-öø-ÿ])|[\u00ad¬]\s*(?=[^\W\d_]))"
)
# Before a capital: New-York.
_COMPOUND = re.compile(rf"(?<=[^\W\d_])[-\u2010]\s*{_JOIN}[\s{_JOIN}]*(?=[^\W\d_])")


def _flat(text: str) -> str:
    """Return the text on one line with divided words joined."""
    if _JOIN in text or "\u00ad" in text or "¬" in text:
        text = _COMPOUND.sub("-", _DIVIDED.sub("", text))
        text = re.sub(rf"\s*{_JOIN}(?!\n)\s*", "", text).replace(_JOIN, "")
    return " ".join(text.split())


def _name(element: Any) -> str:
    """Return the local name of an element; empty for comments and others."""
    tag = element.tag if element is not None else None
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def _character(match: re.Match[bytes]) -> bytes:
    """Resolve an HTML entity of old TEI; others are left to the parser, which drops them."""
    if match[1] in _XML_ENTITIES:
        return match[0]
    characters = html.entities.html5.get(f"{match[1].decode()};")
    if characters is None:
        return match[0]
    return "".join(f"&#{ord(character)};" for character in characters).encode()
