"""Roles of HTML elements: text or not, by tag, class, role and type.

The classes are those of MediaWiki's output (legacy parser and Parsoid) and of templates shared by
the larger Wikipedias. Elements that are not text match what the wikitext reader drops: references,
boxes, hatnotes, editors' notes, pictures.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

from cloze.pipeline.corpus.readers.encyclopedia.blocks import ExtractedPage
from cloze.pipeline.corpus.readers.encyclopedia.elements import escape_literals
from cloze.pipeline.corpus.readers.encyclopedia.tables import (
    TALLEST,
    WIDEST,
    Cell,
    add_field,
    kind_of,
    line_of,
)

Role = Literal["text", "gone", "box", "shown", "table", "formula", "phones", "separator"]
"""Role of an element.

`gone`: not needed by a sentence; `box`: next to the text; `shown`: a program or a chart; `phones`:
pronunciation; `separator`: read aloud between the parts of a fraction.
"""

BLOCKS = frozenset(
    """
    p div li dd dt ul ol dl blockquote pre section article main body center address figure
    figcaption details summary fieldset table tbody
    thead tfoot tr td th caption hr h1 h2 h3 h4 h5 h6 header footer nav aside form poem
    """.split()
)
HEADINGS = {f"h{level}": level for level in range(1, 7)}

_GONE_TAGS = frozenset(
    """
    script style link meta title base head noscript template img picture svg audio video object
    embed iframe canvas map button input select
    textarea s strike del figure rp rt
    """.split()
)
_BOX_TAGS = frozenset("nav aside header footer form dialog menu".split())
_SHOWN_TAGS = frozenset(("pre",))

# Classes of elements that are dropped without a trace.
_GONE = frozenset(
    """
    reference mw-ref mw-editsection mw-empty-elt mw-jump-link mw-cite-backlink noprint
    Inline-Template Template-Fact need_ref_tag cite_virgule
    Z3988 mw-ext-cite-error error flagicon geo-nondefault geo-multi-punct wikidata-linkback
    indicateur-langue asof-tag ouvrage
    shortdescription sortkey thumb floatright floatleft floatnone mw-file-element templatequotecite
    listen haudio-icon ext-phonos-attribution
    mw-collapsible-toggle mw-references-wrap
    """.split()
)
_BOX = frozenset(
    """
    navbox navbox-styles navbar vertical-navbox sidebar infobox infobox_v2 infobox_v3 taxobox ambox
    tmbox ombox cmbox fmbox dmbox mbox-small
    metadata hatnote dablink rellink hauptartikel homonymie toc toccolours reflist references
    references-small mw-references catlinks
    printfooter mw-indicators sistersitebox side-box portal portalbox portal-bar bandeau-container
    bandeau-section bandeau-portail
    bandeau-article bandeau-niveau-information navbox-container NavFrame NavHead NavContent
    navigation-not-searchable succession-box quotebox
    tright tleft tmulti gallery gallerybox mw-gallery-traditional mw-gallery-packed spoken-wikipedia
    sister-bar authority-control stub
    BoxenVerschmelzen boite-a-droite bar-chart legend mw-kartographer-container barbox messagebox
    thumbcaption wikitable-caption
    """.split()
)
_SHOWN = frozenset(
    """
    mw-highlight mw-syntaxhighlight-container timeline-wrapper mw-ext-score mw-hiero-outer mw-graph
    """.split()
)
_FORMULA = frozenset("mwe-math-element tex".split())
_PHONES = frozenset("IPA API".split())
_ROLES = frozenset(
    "navigation note banner contentinfo search complementary menu menubar dialog alert".split()
)
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
# Beginnings of `typeof`, without `mw:`. `Extension/ref` includes references.
_TYPES: dict[Role, tuple[str, ...]] = {
    "gone": (
        *("File", "Image", "Video", "Audio", "Extension/ref", "Extension/indicator"),
        *("Extension/templatestyles", "Extension/imagemap", "Extension/map"),
    ),
    "box": ("Extension/gallery", "Extension/categorytree", "Extension/inputbox"),
    "formula": ("Extension/math", "Extension/chem", "Extension/ce"),
    "shown": (
        *("Extension/syntaxhighlight", "Extension/source", "Extension/score", "Extension/hiero"),
        *("Extension/timeline", "Extension/graph"),
    ),
    "phones": ("Extension/phonos",),
}


def role(element: Any) -> Role:
    """Return the role of an element, without regard to its template."""
    tag = element.tag
    if tag in _GONE_TAGS:
        return "formula" if tag == "img" and "tex" in element.get("class", "").split() else "gone"
    if tag == "math":
        return "formula"
    attributes = element.attrib
    if attributes:
        by_attributes = _by_attributes(element, attributes)
        if by_attributes is not None:
            return by_attributes
    if tag in _BOX_TAGS:
        return "box"
    if tag in _SHOWN_TAGS:
        return "shown"
    return "table" if tag == "table" else "text"


def _by_attributes(element: Any, attributes: Any) -> Role | None:
    types = attributes.get("typeof")
    if types is not None and types != "mw:Transclusion":
        for name in types.split():
            for type_role, beginnings in _TYPES.items():
                if name.startswith("mw:") and name[3:].startswith(beginnings):
                    return type_role
    if attributes.get("role") in _ROLES and element.tag != "main":
        return "box"
    style = attributes.get("style")
    if (
        style is not None
        and _HIDDEN.search(style)
        and "mwe-math" not in attributes.get("class", "")
    ):
        return "gone"
    classes = attributes.get("class")
    if classes is None:
        return None
    if element.tag == "cite":
        return "gone" if "citation" in classes.split() else None
    if element.tag == "a":
        is_bare = "autonumber" in classes or "free" in classes.split()
        return "gone" if "external" in classes and is_bare else None
    for name in classes.split():
        if name in _GONE:
            return "gone"
        if name in _BOX:
            return "box"
        if name in _FORMULA:
            return "formula"
        if name in _PHONES:
            return "phones"
        if name in _SHOWN and element.tag != "code":
            return "shown"
        if name == "sr-only":
            return "separator"
    return None


# Cells of HTML tables.


def cells(table: Any, line: Callable[[Any], str]) -> tuple[str, list[list[Cell]]]:
    """Return (caption, rows); rows of nested tables are not included.

    Args:
        table: lxml element of the table.
        line: function from an element to its text on one line.
    """
    caption = ""
    rows: list[list[Cell]] = []
    for child in table:
        if child.tag == "caption":
            caption = line(child)
        elif child.tag == "tr":
            rows.append(_row(child, line))
        elif child.tag in ("thead", "tbody", "tfoot"):
            rows += [_row(row, line) for row in child if row.tag == "tr"]
    return caption, rows


def _row(row: Any, line: Callable[[Any], str]) -> list[Cell]:
    return [
        Cell(
            escape_literals(line(cell)),
            cell.tag == "th",
            min(_span(cell.get("colspan")), WIDEST),
            min(_span(cell.get("rowspan")), TALLEST),
        )
        for cell in row
        if cell.tag in ("td", "th")
    ]


def _span(value: str | None) -> int:
    digits = (value or "").strip()
    return max(1, int(digits)) if digits.isascii() and digits.isdigit() and len(digits) < 5 else 1


# Infoboxes of rendered pages: rows with name and value, by the same rules as in wikitext.

_TEMPLATE = re.compile(r'"target":\{"wt":"([^"\\]{1,80})')
_CLASS = re.compile(r"(?:^|\s)(?:infobox|taxobox|geobox)")
_HEADER = re.compile(r"(?:^|\s)infobox-(?:header|above|subheader)(?=\s|$)")
_LONGEST_NAME = 80  # characters
# Prefixes of the name of a row that belongs to the preceding row without one.
_BELOW = ("•", "·", "-", "–")


def collect(element: Any, lines: Callable[[Any], list[str]], page: ExtractedPage) -> None:
    """Add the fields of a box to `page` if it is an infobox.

    Args:
        element: lxml element of the box.
        lines: function from an element to the lines of its text.
        page: result to which the fields are added.
    """
    if not _CLASS.search(element.get("class", "")):
        return
    kinds = map(kind_of, _TEMPLATE.findall(element.get("data-mw") or ""))
    box = next(filter(None, kinds), "")
    parent_name = ""
    for row in element.iter("tr"):
        row_cells = [cell for cell in row if cell.tag in ("th", "td")]
        if not row_cells:
            continue
        name = " ".join(lines(row_cells[0]))
        is_subrow = name.startswith(_BELOW)
        is_th, is_header = (
            row_cells[0].tag == "th",
            bool(_HEADER.search(row_cells[0].get("class", ""))),
        )
        if len(row_cells) == 1 or (is_th and is_header):
            parent_name = name if is_th or is_header else parent_name
        elif len(row_cells) == 2 and 0 < len(name) <= _LONGEST_NAME:
            full_name = (
                f"{parent_name}, {name.strip('•·-– ')}" if is_subrow and parent_name else name
            )
            value = [line_of(escape_literals(line)) for line in lines(row_cells[1])]
            add_field(box, escape_literals(full_name), value, page)
            parent_name = parent_name if is_subrow else name
