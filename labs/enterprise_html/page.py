"""HTML pages to paragraphs, by the rules of the wikitext reader (encyclopedia/wikitext.py).

lxml parses; one iterative walk yields the blocks in order to `Blocks`, which also assembles those
of wikitext: paragraphs, list items, headings, tables. element_roles.py distinguishes text from
other elements.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import orjson
from lxml import etree

from cloze.labs.enterprise_html import element_roles
from cloze.labs.enterprise_html.element_roles import BLOCKS, HEADINGS, TEMPLATE
from cloze.pipeline.corpus.document import HOLE_TEMPLATE
from cloze.pipeline.corpus.readers.encyclopedia.blocks import (
    ArticleRules,
    Blocks,
    ExtractedPage,
    drop_marginal_templates,
)
from cloze.pipeline.corpus.readers.encyclopedia.elements import (
    PHONES,
    escape_literals,
    formula,
    left_over,
)
from cloze.pipeline.corpus.readers.encyclopedia.scripts import lowered_text, raised
from cloze.pipeline.corpus.readers.encyclopedia.templates import is_pronunciation

_BASE = re.compile(r"[\w)]")
_LONGEST_SCRIPT = 200  # characters of raised or lowered text
_STYLED = re.compile(r"\A\{\\(?:displaystyle|textstyle|scriptstyle)\s*(.*)\}\Z", re.DOTALL)
_MARKUP = re.compile(r"[&\[\]{}|]|~~~")  # `Blocks` would take these for wikitext
_BETWEEN = "\0"  # between lines of a cell; `parse` removes NULs
_LISTS = frozenset(("ul", "ol", "dl"))
_ITEMS = frozenset(("li", "dd", "dt"))
_Item = Literal["li", "dd", "dt"]


class TooDeep(Exception):
    """Nesting exceeds the parser's limit of about 2,000; real pages stay below 200."""


def parse(text: str) -> Any:
    """Parse a page with lxml; return the root element, or None if there is none.

    Raises:
        TooDeep: elements would be lost.
    """
    parser = etree.HTMLParser(
        encoding="utf-8", no_network=True, remove_comments=True, remove_pis=True, huge_tree=True
    )
    try:
        root = etree.fromstring(text.replace("\0", "").encode("utf-8", "replace"), parser)
    except etree.XMLSyntaxError:
        return None
    fatal = parser.error_log.filter_from_fatals()
    if any(entry.type_name == "ERR_RESOURCE_LIMIT" for entry in fatal):
        raise TooDeep
    return root


def content(root: Any) -> Any:
    """Return the element with the text: MediaWiki's article, `<main>`, `<article>`, or all."""
    body = root.find("body")
    if body is not None and "mw-parser-output" in body.get("class", "").split():
        return body  # Parsoid; an XPath search would take as long as parsing
    for expression in (
        "//*[@id='mw-content-text']//*[contains(concat(' ', @class, ' '), ' mw-parser-output ')]",
        "//*[contains(concat(' ', @class, ' '), ' mw-parser-output ')]",
        "//*[@id='mw-content-text' or @id='bodyContent']",
        "//main",
        "(//article)[last() = 1]",
        "//body",
    ):
        elements = root.xpath(expression)
        if elements:
            return elements[0]
    return root


class HtmlExtractor(ArticleRules):
    """Extractor for rendered pages of one language."""

    def extract(self, element: Any) -> ExtractedPage:
        """Return the text passages below an element."""
        return _TreeWalk(self).walk(element)

    def lines(self, element: Any) -> list[str]:
        """Return the text of an element by line, as elements and `<br>` divide it."""
        tree_walk = _TreeWalk(self, flat=True)
        tree_walk.walk(element)
        return [
            line
            for piece in "".join(tree_walk.pieces).split(_BETWEEN)
            if (line := " ".join(piece.split()))
        ]


class _TreeWalk:
    """Conversion of one page or, if `flat`, of one element, such as a cell, without blocks."""

    def __init__(self, rules: HtmlExtractor, flat: bool = False) -> None:
        self._rules, self._flat = rules, flat
        self._page = ExtractedPage()
        self._blocks = Blocks(self._page, rules)
        self.pieces: list[str] = []  # of the open paragraph, item or heading
        self._items: list[_Item] = []  # open, nested
        # ids of template outputs that only give a pronunciation
        self._pronunciations: set[str] = set()

    def walk(self, top: Any) -> ExtractedPage:
        """Walk over the tree; return the page."""
        walker = etree.iterwalk(top, events=("start", "end"))
        skipped_element: Any = None
        for event, element in walker:
            if event == "start":
                if self._begin(element, top):
                    if element.text:
                        self.pieces.append(element.text)
                else:
                    skipped_element = element
                    walker.skip_subtree()
                continue
            if element is skipped_element:
                skipped_element = None
            else:
                self._end(element.tag)
            if element is not top and element.tail:
                self.pieces.append(element.tail)
        self._flush()
        self._blocks.close_term()
        return self._blocks.finish()

    def _begin(self, element: Any, top: Any) -> bool:
        """Open an element; return True to visit its content."""
        tag = element.tag
        if element is not top and (role := self._role(element)) != "text":
            self._omit_element(element, role)
            return False
        if tag == "br" or tag == "wbr":
            self.pieces.append((_BETWEEN if self._flat else " ") if tag == "br" else "")
        elif tag == "sup" or tag == "sub":
            return self._script(element)
        elif tag == "hr":
            self._flush()
            self._omit()
        elif tag in BLOCKS and not self._flat:
            self._flush()
            if tag in HEADINGS:
                self._blocks.close_term()
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
            if about in self._pronunciations:
                return "dropped"
            data = element.get("data-mw")
            if data is not None and '"template"' in data:
                names = [name.strip().lower().replace("_", " ") for name in TEMPLATE.findall(data)]
                if names and all(is_pronunciation(name) for name in names):
                    self._pronunciations.add(about)
                    return "phones"
                if names == ["ipa"] and '"2":{' not in data:
                    return "text"  # what the sentence is about
        return element_roles.role(element)

    def _omit_element(self, element: Any, role: str) -> None:
        """Handle an element that is not text; its content is not visited."""
        if self._rules.infoboxes and not self._flat and role in ("box", "table"):
            element_roles.collect(element, self._rules.lines, self._page)
        if role == "formula":
            self.pieces.append(formula(_tex(element), self._rules.formulas))
        elif role == "phones":
            self.pieces.append(PHONES)
        elif role == "separator":
            text = "".join(element.itertext()).strip()
            self.pieces.append(text if text != "+" else " ")
        elif self._flat or (element.tag not in BLOCKS and role != "table"):
            gap = left_over(self._last(), (element.tail or "")[:1])
            self.pieces.append(HOLE_TEMPLATE if role == "shown" else gap)
        elif role == "shown" and self._items:
            self.pieces.append(HOLE_TEMPLATE)  # a line of a program in an item
        elif role == "shown":
            self._flush()
            self._omit()
        elif role == "table":
            self._flush()
            self._table()
        elif role == "box" and not self._items:
            self._flush()
            if self._blocks.sections.is_read:
                self._blocks.paragraph("")  # ends a list
        else:
            self.pieces.append(" ")

    def _script(self, element: Any) -> bool:
        """Convert raised or lowered text; return True to visit the element instead."""
        text, previous = _written(element).strip(), self._last()
        if not _BASE.match(previous) or len(text) > _LONGEST_SCRIPT:
            return True
        if any(self._role(child) != "text" for child in element.iterdescendants()):
            return True
        self.pieces.append(_script(element, previous, text))
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
            self._blocks.section(level, name)

    def _flush(self) -> None:
        """Finish the open paragraph, item or term."""
        if self._flat or not self.pieces:
            return
        text = "".join(self.pieces).strip().replace("⁄", "/")
        self.pieces.clear()
        if HOLE_TEMPLATE in text:
            text = drop_marginal_templates(text)
        if not text:
            return
        if not self._blocks.sections.is_read:
            self._page.omit("section", escape_literals(text))
            return
        if _MARKUP.search(text):
            text = escape_literals(text)
        if not self._items:
            self._blocks.close_term()
            self._blocks.paragraph(text)
        elif self._items[-1] == "dt":
            self._blocks.term(text)
        else:
            is_indented = all(item == "dd" for item in self._items)
            is_definition = self._items[-1] == "dd"
            self._blocks.item(text, indented=is_indented, defines=is_definition)

    def _omit(self) -> None:
        if self._blocks.sections.is_read:
            self._blocks.close_term()
            self._blocks.omit()

    def _table(self) -> None:
        if self._blocks.sections.is_read:
            self._omit()
        else:
            self._page.omit("section", "")


def _script(element: Any, base: str, text: str) -> str:
    after = (element.tail or "")[:1]
    if element.tag == "sub":
        return lowered_text(base, text, after)
    return raised(base, text, after, is_variable=element.find(".//i") is not None)


def _written(element: Any) -> str:
    """Return the text of an element, with raised and lowered text as on one line."""
    text = element.text or ""
    for child in element:
        inner = _written(child)
        if child.tag in ("sup", "sub") and _BASE.match(text[-1:]):
            inner = _script(child, text[-1], inner)
        text += inner + (child.tail or "")
    return text


def _tex(element: Any) -> str:
    """Return the TeX source of a formula."""
    data = element.get("data-mw")
    if data is not None:
        try:
            return str(orjson.loads(data)["body"]["extsrc"]).strip()
        except (ValueError, KeyError, TypeError):
            pass
    for node in element.iter():
        text = node.get("alttext") or (node.get("alt") if node.tag == "img" else None)
        if not text and node.tag == "annotation":
            text = node.text
        if text:
            match = _STYLED.match(text.strip())
            return (match[1] if match else text).strip()
    return "".join(element.itertext()).strip()
