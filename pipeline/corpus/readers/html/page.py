"""A page in HTML to paragraphs, by the rules of the reader of wikitext (pipeline/corpus/readers/wikipedia/wikitext.py).

lxml parses; one walk over the elements, however deep, gives the blocks of the page in order to the same `Blocks` that put together those of
wikitext: paragraphs, items of lists, headings, tables. What stands around the text is told by pipeline/corpus/readers/html/marks.py.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import orjson
from lxml import etree

from pipeline.corpus.document import HOLE_TEMPLATE
from pipeline.corpus.readers.html import infobox
from pipeline.corpus.readers.html.grid import cells
from pipeline.corpus.readers.html.marks import BLOCKS, HEADINGS, role
from pipeline.corpus.readers.slots import PHONES
from pipeline.corpus.readers.wikipedia import tables
from pipeline.corpus.readers.wikipedia.blocks import Blocks, Extracted, settle
from pipeline.corpus.readers.wikipedia.elements import Formulas, formula, left_over, power
from pipeline.corpus.readers.wikipedia.hidden import hide
from pipeline.corpus.readers.wikipedia.sections import Sections
from pipeline.corpus.readers.wikipedia.templates_silent import PHONETIC

_EXPONENT = re.compile(r"[−–+-]?\d{1,3}")
_BASE = re.compile(r"[\w)]")
_TEMPLATE = re.compile(r'"target":\{"wt":"([^"\\]{1,80})')
_STYLED = re.compile(r"\A\{\\(?:displaystyle|textstyle|scriptstyle)\s*(.*)\}\Z", re.DOTALL)
_MARKUP = re.compile(r"[&\[\]{}|]|~~~")  # what the blocks of wikitext would take for remnants of it
_BETWEEN = "\0"  # lines of a cell; `parse` leaves none in a page
_LISTS = frozenset(("ul", "ol", "dl"))
_ITEMS = frozenset(("li", "dd", "dt"))
_Item = Literal["li", "dd", "dt"]


class TooDeep(Exception):
    """More elements of the page stand inside each other than the parser takes: about 2,000, and no page that people read has a tenth of it."""


def parse(text: str) -> Any:
    """The page's root element, as lxml has it; None for a page without any.

    Raises:
        TooDeep: elements of it would be lost.
    """
    parser = etree.HTMLParser(encoding="utf-8", no_network=True, remove_comments=True, remove_pis=True, huge_tree=True)
    try:
        root = etree.fromstring(text.replace("\0", "").encode("utf-8", "replace"), parser)
    except etree.XMLSyntaxError:
        return None
    if any(entry.type_name == "ERR_RESOURCE_LIMIT" for entry in parser.error_log.filter_from_fatals()):
        raise TooDeep
    return root


def content(root: Any) -> Any:
    """The element that holds the text: of MediaWiki's pages the article, of others `<main>` or `<article>`, else all."""
    body = root.find("body")
    if (
        body is not None and "mw-parser-output" in body.get("class", "").split()
    ):  # Parsoid's; a search would take as long as the parser
        return body
    for expression in (
        "//*[@id='mw-content-text']//*[contains(concat(' ', @class, ' '), ' mw-parser-output ')]",
        "//*[contains(concat(' ', @class, ' '), ' mw-parser-output ')]",
        "//*[@id='mw-content-text' or @id='bodyContent']",
        "//main",
        "//article[not(following::article) and not(preceding::article)]",
        "//body",
    ):
        found = root.xpath(expression)
        if found:
            return found[0]
    return root


class Rendered:
    """How pages of one language are read.

    Args:
        dropped_sections: headings in lower case whose sections are no text.
        kept_sections: headings in lower case; where any are given, only their sections are text. "" is the text before the first.
        language: of the pages (ISO 639).
        formulas: what becomes of those that do not read as they stand.
        kept_tables: what becomes of tables.
        infoboxes: whether their fields are wanted.
    """

    def __init__(
        self,
        dropped_sections: frozenset[str] = frozenset(),
        kept_sections: frozenset[str] = frozenset(),
        *,
        language: str = "en",
        formulas: Formulas = "drop",
        kept_tables: tables.Form = "drop",
        infoboxes: bool = False,
    ) -> None:
        self.dropped_sections, self.kept_sections = dropped_sections, kept_sections
        self.language, self.formulas, self.kept_tables, self.infoboxes = language, formulas, kept_tables, infoboxes

    def extract(self, element: Any) -> Extracted:
        """The text passages below an element."""
        return _Walk(self).over(element)

    def line(self, element: Any) -> str:
        """What stands in an element, on one line, without the tables in it: a cell's text."""
        return " ".join(self.lines(element))

    def lines(self, element: Any) -> list[str]:
        """The same line by line, as elements and `<br>` divide it."""
        walk = _Walk(self, flat=True)
        walk.over(element)
        return [line for piece in "".join(walk.pieces).split(_BETWEEN) if (line := " ".join(piece.split()))]


class _Walk:
    """One page on its way.

    Args:
        how: the options.
        flat: whether all goes to one line, as in a cell.
    """

    def __init__(self, how: Rendered, flat: bool = False) -> None:
        self._how, self._flat = how, flat
        self._found = Extracted()
        self._blocks = Blocks(self._found, how.language == "en")
        self._sections = Sections(how.dropped_sections, how.kept_sections)
        self.pieces: list[str] = []  # of what is open: a paragraph, an item, a heading
        self._items: list[_Item] = []  # open ones, one in the other
        self._term = ""  # of a definition that has not come yet
        self._spoken: set[str] = set()  # names of templates' outputs that only say how a word is spoken

    def over(self, top: Any) -> Extracted:
        """Walk."""
        walker = etree.iterwalk(top, events=("start", "end"))
        skipped: Any = None
        for event, element in walker:
            if event == "start":
                if self._begin(element, top):
                    if element.text:
                        self.pieces.append(element.text)
                else:
                    skipped = element
                    walker.skip_subtree()
                continue
            if element is skipped:
                skipped = None
            else:
                self._end(element.tag)
            if element is not top and element.tail:
                self.pieces.append(element.tail)
        self._flush()
        self._close_term()
        return self._blocks.finish()

    def _begin(self, element: Any, top: Any) -> bool:
        """An element opens; whether what is in it is looked at."""
        tag = element.tag
        if element is not top and (found := self._role(element)) != "text":
            return self._no_text(element, found)
        if tag == "br" or tag == "wbr":
            self.pieces.append((_BETWEEN if self._flat else " ") if tag == "br" else "")
        elif tag == "sup":
            return self._raised(element)
        elif tag == "hr":
            self._flush()
            self._dropped()
        elif tag in BLOCKS and not self._flat:
            self._flush()
            if tag in HEADINGS:
                self._close_term()
                self._blocks.heading()
                self._items.clear()
            elif tag in _ITEMS:
                self._items.append(tag)
        elif tag in BLOCKS:
            self.pieces.append(_BETWEEN)
        return True

    def _role(self, element: Any) -> str:
        about = element.get("about")
        if about is not None:
            if about in self._spoken:
                return "gone"
            data = element.get("data-mw")
            if data is not None and '"template"' in data:
                names = [name.strip().lower().replace("_", " ") for name in _TEMPLATE.findall(data)]
                if names and all(PHONETIC.fullmatch(name) for name in names):
                    self._spoken.add(about)
                    return "phones"
                if names == ["ipa"] and '"2":{' not in data:
                    return "text"  # what the sentence speaks of
        return role(element)

    def _no_text(self, element: Any, found: str) -> bool:
        """An element that is no text; whether it is looked into all the same."""
        if self._how.infoboxes and not self._flat and found in ("box", "table"):
            infobox.collect(element, self._how.lines, self._found)
        if found == "formula":
            self.pieces.append(formula(_tex(element), self._how.formulas))
        elif found == "phones":
            self.pieces.append(PHONES)
        elif found == "separator":
            text = "".join(element.itertext()).strip()
            self.pieces.append(text if text != "+" else " ")
        elif self._flat or (element.tag not in BLOCKS and found != "table"):
            if found == "shown":
                self.pieces.append(HOLE_TEMPLATE)
            else:
                self.pieces.append(left_over(self._last(), (element.tail or "")[:1]))
        elif found == "table" or found == "shown":
            if found == "shown" and self._items:  # a line of a program in an item
                self.pieces.append(HOLE_TEMPLATE)
            else:
                self._flush()
                self._table(element) if found == "table" else self._dropped()
        elif found == "box" and not self._items:
            self._flush()
            if self._sections.is_read:
                self._blocks.paragraph("")  # a list ends here
        else:
            self.pieces.append(" ")
        return False

    def _raised(self, element: Any) -> bool:
        """A raised number is a power; whether the element is looked into."""
        text = "".join(element.itertext()).strip()
        before = self._last()
        if not (_EXPONENT.fullmatch(text) and _BASE.match(before)):
            return True
        place = next(number for number in range(len(self.pieces) - 1, -1, -1) if self.pieces[number])
        self.pieces[place] = self.pieces[place][:-1] + power(before, text)
        return False

    def _end(self, tag: str) -> None:
        if tag not in BLOCKS:
            return
        if self._flat:
            self.pieces.append(_BETWEEN)
        elif tag in HEADINGS:
            self._heading(HEADINGS[tag])
        elif tag in _ITEMS:
            self._flush()
            if self._items:
                self._items.pop()
        elif self._items and tag not in _LISTS:
            self.pieces.append(" ")  # a paragraph of an item
        else:
            self._flush()

    def _last(self) -> str:
        return next((piece[-1] for piece in reversed(self.pieces) if piece), "")

    def _heading(self, level: int) -> None:
        name = " ".join("".join(self.pieces).split())
        self.pieces.clear()
        if name:
            self._found.dropped["heading"] += 1
            self._sections.heading(level, name)

    def _flush(self) -> None:
        """What is open becomes a paragraph, an item or a term."""
        if self._flat or not self.pieces:
            return
        text = "".join(self.pieces).strip().replace("⁄", "/")
        self.pieces.clear()
        if HOLE_TEMPLATE in text:
            text = settle(text)
        if not text:
            return
        if not self._sections.is_read:
            self._found.dropped["section"] += 1
            return
        if _MARKUP.search(text):
            text = hide(text)
        if not self._items:
            self._close_term()
            self._blocks.paragraph(text)
        elif self._items[-1] == "dt":
            self._close_term()
            self._term = text
        elif self._term:
            self._blocks.item(f"{self._term.rstrip(': ')}: {text}" if self._items[-1] == "dd" else text, indented=False)
            self._term = ""
        else:
            self._blocks.item(text, indented=all(item == "dd" for item in self._items))

    def _close_term(self) -> None:
        """A term without a definition is bold text that heads what follows."""
        if self._term:
            self._found.dropped["heading"] += 1
            self._blocks.heading()
            self._term = ""

    def _dropped(self) -> None:
        if self._sections.is_read:
            self._close_term()
            self._blocks.dropped()

    def _table(self, element: Any) -> None:
        if not self._sections.is_read:
            self._found.dropped["section"] += 1
            return
        found: list[str] = []
        if self._how.kept_tables != "drop":
            caption, rows = cells(element, self._how.line)
            found = tables.lines(hide(caption), rows, self._how.kept_tables)
        self._close_term()
        for row in found:
            self._blocks.kept(row)
        if not found:
            self._blocks.dropped()


def _tex(element: Any) -> str:
    """A formula as its author wrote it."""
    data = element.get("data-mw")
    if data is not None:
        try:
            return str(orjson.loads(data)["body"]["extsrc"]).strip()
        except (ValueError, KeyError, TypeError):
            pass
    for one in element.iter():
        text = one.get("alttext") or (one.get("alt") if one.tag == "img" else None)
        if not text and one.tag == "annotation":
            text = one.text
        if text:
            styled = _STYLED.match(text.strip())
            return (styled[1] if styled else text).strip()
    return "".join(element.itertext()).strip()
